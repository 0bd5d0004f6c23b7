"""The wall around a program with a network: which one is chosen, and what is behind it."""

import os
import pwd
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from capedjica.errors import InputError
from capedjica.tools.confinement import grants, landlock, users
from capedjica.tools.confinement.carrier import environment, openable, strongest
from tests.support.confined import launched, outcomes, run_python

User = namedtuple("User", "pw_uid pw_gid pw_dir", defaults=("/nonexistent",))
MEGABYTE = 1 << 20


@pytest.fixture
def machine(monkeypatch):
    """A machine with one account, whose root and kernel and readable paths are as told."""

    def as_told(uid=0, abi=7, obstacle=""):
        accounts = {"carrier": User(950, 951), "root": User(0, 0)}
        monkeypatch.setattr(pwd, "getpwnam", accounts.__getitem__)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(landlock, "abi", lambda: abi)
        monkeypatch.setattr(users, "obstacle", lambda uid, gid, needed: obstacle)

    return as_told


def test_root_gives_the_program_the_account_that_was_named(machine):
    machine()
    found = strongest("carrier", [], "seed")
    assert (found.kind, found.uid, found.gid) == ("user", 950, 951)
    assert found.words == "a separate user account (950) and Landlock, ABI 7"
    machine(abi=0)
    assert strongest("carrier", [], "seed").words == "a separate user account (950)"


def test_root_gives_the_program_a_number_that_nobody_has(machine, monkeypatch):
    machine()
    first, again, other = (strongest(None, [], seed) for seed in ("a", "a", "b"))
    assert first == again != other
    assert first.kind == "user"
    assert first.uid == first.gid
    assert 61184 <= first.uid <= 65519
    taken = first.uid

    def look_up(uid):
        if uid != taken:
            raise KeyError
        return User(uid, uid)

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    assert strongest(None, [], "a").uid == taken + 1


def test_a_machine_may_have_no_number_left(machine, monkeypatch):
    machine()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: User(uid, uid))
    with pytest.raises(InputError, match="all user IDs from 61184 to 65519 are in use"):
        strongest(None, [], "a")


@pytest.mark.parametrize(("account", "why"), [("nobody-here", "no user account"), ("root", "is root, which")])
@pytest.mark.parametrize("uid", [0, 1000])
def test_an_account_that_is_missing_or_roots_is_refused(machine, account, why, uid):
    machine(uid=uid)
    with pytest.raises(InputError, match=why):
        strongest(account, [], "seed")


def test_an_account_that_cannot_read_the_interpreter_is_refused(machine):
    machine(obstacle="another user cannot read the interpreter /closed/python")
    with pytest.raises(InputError, match="another user cannot read the interpreter /closed/python"):
        strongest("carrier", [], "seed")
    found = strongest(None, [], "seed")
    assert (found.kind, found.uid) == ("landlock", None)
    assert "cannot read the interpreter /closed/python" in found.words


def test_who_is_not_root_uses_landlock_if_there_is_any(machine):
    machine(uid=950)
    for account in (None, "carrier"):
        found = strongest(account, [], "seed")
        assert found.kind == "landlock"
        assert found.words.startswith("Landlock, ABI 7, in the same user account: ")
        assert "sockets" in found.words
    machine(uid=950, abi=9)
    assert "sockets" not in strongest(None, [], "seed").words
    machine(uid=950, abi=0)
    found = strongest(None, [], "seed")
    assert found.kind == "none"
    words = "nothing: this system has no Landlock, and only root can use a separate user account"
    assert found.words == words


def test_who_is_not_root_cannot_use_another_account(machine):
    machine(uid=1000)
    with pytest.raises(InputError, match="start this as root, or use the systemd units"):
        strongest("carrier", [], "seed")


def test_a_secret_is_never_granted(tmp_path):
    secret = tmp_path / "site" / "keys" / "secret"
    secret.parent.mkdir(parents=True)
    secret.touch()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    (tmp_path / "workspace").mkdir()
    above = [tmp_path, tmp_path / "site", tmp_path / "link", tmp_path / "site" / ".." / "site", secret]
    beside = [tmp_path / "workspace", tmp_path / "site" / "carrier", Path("/usr")]
    assert grants.without_secrets([*above, *beside], [secret]) == beside


def test_nothing_is_granted_that_holds_a_secret(tmp_path):
    """A folder of modules that somebody keeps scans in is not granted, however it is named."""
    if landlock.abi() == 0:
        pytest.skip("this system has no Landlock")
    workspace, secret = tmp_path / "workspace", tmp_path / "project" / "scans" / "scan"
    workspace.mkdir()
    secret.parent.mkdir(parents=True)
    secret.write_text("scan")
    beside = tmp_path / "project" / "module"
    beside.write_text("module")
    attempts = {"scan": "contents(secret)", "module": "contents(beside)"}
    names = {"secret": str(secret), "beside": str(beside)}
    granted = {"names": names, "reads": [tmp_path / "project"]}
    assert outcomes(attempts, workspace, "landlock", **granted) == {
        "scan": "did scan",
        "module": "did module",
    }
    kept = outcomes(attempts, workspace, "landlock", **granted, secrets=[secret.parent])
    assert kept == {"scan": "EACCES", "module": "EACCES"}


def test_an_interpreter_among_secrets_is_refused(tmp_path):
    if landlock.abi() == 0:
        pytest.skip("this system has no Landlock")
    interpreter = Path(os.path.realpath(sys.executable))
    done = launched(
        [sys.executable], tmp_path, "landlock", secrets=[interpreter.parent / "secret", interpreter]
    )
    assert "InputError: the interpreter" in done.stderr


def test_what_python_reads_is_no_home_and_no_folder_of_everybody(monkeypatch, tmp_path):
    modules, home = tmp_path / "modules", tmp_path / "home"
    (home / "me").mkdir(parents=True)
    modules.mkdir()
    monkeypatch.setenv("HOME", str(home / "me"))
    monkeypatch.chdir(home / "me")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(modules), str(home), "/etc", "/tmp/missing"]))
    monkeypatch.setattr(sys, "path", [*sys.path, "", ".", str(home / "me"), "/", "/tmp", "/var"])
    found = grants.runtime_reads()
    assert modules in found
    assert Path(os.path.realpath(sys.executable)) in found
    wide = ["/", "/etc", "/tmp", "/var", "/home", "/root", "/run", "/etc/shadow", "/etc/ssl", "/dev", "."]
    assert not {*map(Path, wide), home, home / "me", Path("/tmp/missing")} & {*found}


def test_private_keys_of_the_machine_are_not_granted():
    for secret in map(
        Path, ("/etc/ssl/private/key", "/etc/pki/tls/private/key", "/etc/shadow", "/var/lib/x")
    ):
        assert grants.without_secrets(grants.runtime_reads(), [secret]) == grants.runtime_reads()


def test_the_environment_leads_to_no_other_program(monkeypatch, tmp_path):
    for name in ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "AWS_SECRET"):
        monkeypatch.setenv(name, "/run/somewhere")
    passed = {"https_proxy": "http://p:1", "NO_PROXY": "x", "TZ": "UTC", "LANG": "sl_SI.UTF-8"}
    passed |= {"PYTHONPATH": "src:.", "LD_PRELOAD": "", "CAPEDJICA_PORT": "1", "NVFLARE_X": "y"}
    for name, value in passed.items():
        monkeypatch.setenv(name, value)
    found = environment(tmp_path)
    assert passed.items() <= found.items()
    assert not [name for name, value in found.items() if value == "/run/somewhere"]
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert Path(found["HOME"]) == Path(found["TMPDIR"]) == tmp_path
    assert found["PYTHONSAFEPATH"] == "1"


def test_what_can_be_opened_is_found(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / name for name in ("file", "missing", "loop", "file/below", "pipe")]
    assert openable([tmp_path, *paths]) == [tmp_path, tmp_path / "file", tmp_path / "pipe"]


PROBE = """
import sys
from pathlib import Path
from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.carrier import openable
landlock.restrict([Path("/usr")], [])
print(openable(map(Path, ["/etc", "/etc/hosts", "/usr"])))
"""


def test_the_probe_sees_a_wall():
    if landlock.abi() == 0:
        pytest.skip("this system has no Landlock")
    assert run_python(PROBE).stdout == "[PosixPath('/usr')]\n"


def test_memory_is_limited(tmp_path):
    attempts = {"much": "len(bytearray(400 << 20))", "little": "len(bytearray(20 << 20))"}
    child = "subprocess.run([sys.executable, '-Ic', 'bytearray(400 << 20)'], capture_output=True).returncode"
    attempts["child"] = child
    free = outcomes(attempts, tmp_path, "none", names={})
    assert free == {"much": f"did {400 * MEGABYTE}", "little": f"did {20 * MEGABYTE}", "child": "did 0"}
    bound = outcomes(attempts, tmp_path, "none", names={}, memory=200 * MEGABYTE)
    assert bound == {"much": "MemoryError", "little": f"did {20 * MEGABYTE}", "child": "did 1"}


CAPABILITIES = {
    "sets": "[line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]",
    "root of files": "os.chroot('/')",
    "file of another": "contents(foreign)",
    "core files": "__import__('resource').getrlimit(4)",
}


def test_root_without_capabilities_is_root_by_name_only(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities")
    foreign = tmp_path / "foreign"
    foreign.write_text("foreign")
    foreign.chmod(0o600)
    os.chown(foreign, 61235, 61235)
    free = outcomes(CAPABILITIES, tmp_path, "free", names={"foreign": str(foreign)})
    assert (free["root of files"], free["file of another"]) == ("did None", "did foreign")
    for kind in ("none", "landlock"):
        said = outcomes(CAPABILITIES, tmp_path, kind, names={"foreign": str(foreign)})
        assert said["file of another"] == "EACCES"
        assert said["root of files"] == "EPERM"
        assert set(said["sets"].removeprefix("did ").strip("[]").replace("'", "").split(", ")) == {"0" * 16}
        assert said["core files"] == "did (0, 0)"


TERMINAL = """
import os, pty, sys
from capedjica.tools.confinement import process
child, master = pty.fork()
if child == 0:
    if sys.argv[1] != "leader" and os.fork():
        os.wait()
        os._exit(0)
    if sys.argv[1] == "group":
        os.setpgid(0, 0)
    if sys.argv[2] == "confined":
        process.leave_terminal()
    try:
        os.open("/dev/tty", os.O_RDONLY)
        os.write(1, b"opened;")
    except OSError:
        os.write(1, b"refused;")
    os._exit(0)
print(os.read(master, 100).decode())
"""


@pytest.mark.parametrize("position", ["leader", "group", "member"])
def test_the_terminal_is_left(position):
    assert run_python(TERMINAL, position, "free").stdout.startswith("opened;")
    assert run_python(TERMINAL, position, "confined").stdout.startswith("refused;")


IMPORTED = """
import sys
from capedjica.tools.confinement import agent, carrier
print(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""


def test_nothing_but_the_standard_library_is_loaded():
    said = run_python(IMPORTED).stdout
    assert "'capedjica'" in said
    assert not {"numpy", "msgspec", "nvflare"} & set(said.replace("'", " ").split())
