"""What a hostile program reaches beside what it was granted."""

import json
import shutil
import socket

import pytest

from capedjica.tools.confinement import landlock
from tests.support.confined import outcomes, run_python

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this system has no Landlock")

FILES = {
    "read": "contents(secret)",
    "list": "os.listdir(folder)",
    "symbolic link": "os.symlink(secret, workspace + '/link') or contents(workspace + '/link')",
    "hard link": "os.link(secret, workspace + '/hard') or contents(workspace + '/hard')",
    "root of another": "contents(f'/proc/{victim}/root{secret}')",
    "working folder of another": "os.listdir(f'/proc/{victim}/cwd/')",
    "inherited descriptor": "os.read(3, 9)",
    "write": "open(secret, 'a').close()",
    "new file": "open(folder + '/new', 'x').close()",
    "new folder": "os.mkdir(folder + '/folder')",
    "grandchild": "subprocess.run(['/bin/cat', secret], capture_output=True).check_returncode()",
    "grandchild in Python": "subprocess.check_output([sys.executable, '-c', f'open({secret!r})'], stderr=-3)",
    "rename": "os.rename(other, workspace + '/stolen')",
    "remove": "os.remove(secret)",
}
PROCESSES = {
    "environment": "contents(f'/proc/{victim}/environ')",
    "memory": "open(f'/proc/{victim}/mem', 'rb').close()",
    "debugger": "ctypes.CDLL(None).ptrace(16, victim, None, None) == 0 or 1 / 0",
}
OUTSIDE = {
    "signal": "os.kill(victim, signal.SIGCONT)",
    "abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + abstract)",
}
GRANTED = {
    "own file": "open(workspace + '/own', 'w').write('x') and contents(workspace + '/own')",
    "own folders": "os.makedirs(workspace + '/a/b') or os.rename(workspace + '/a/b', workspace + '/b')",
    "own child": "subprocess.run(['/bin/true']).check_returncode()",
    "own signal": "os.kill(os.getpid(), 0)",
    "devices": "open('/dev/null', 'w').write('x') and open('/dev/urandom', 'rb').read(1)",
    "names": "socket.getaddrinfo('localhost', 80) and contents('/etc/hosts')",
    "certificates": "__import__('ssl').create_default_context()",
    "network": "socket.create_connection(('127.0.0.1', port))",
    "threads": "__import__('concurrent.futures').futures.ThreadPoolExecutor(2).submit(int).result()",
    "temporary file": "__import__('tempfile').TemporaryFile()",
    "granted folder": "contents(granted)",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory, victim):
    """What one and the same program said: confined, with all but the rules ("none"), and free."""
    with socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as server:
        listener.bind("\0capedjica-test-" + str(victim))
        listener.listen(9)
        names = {"victim": victim, "abstract": f"capedjica-test-{victim}", "port": server.getsockname()[1]}
        return {
            kind: _tried(tmp_path_factory.mktemp(kind), kind, names) for kind in ("landlock", "none", "free")
        }


def _tried(top, kind, names):
    secret, other, granted = top / "site" / "secret", top / "site" / "other", top / "study" / "granted"
    workspace = top / "workspace"
    for file in (secret, other, granted):
        file.parent.mkdir(exist_ok=True)
        file.write_text("secret")
    workspace.mkdir()
    names |= {"secret": str(secret), "other": str(other), "folder": str(secret.parent)}
    names |= {"workspace": str(workspace), "granted": str(granted)}
    attempts = PROCESSES | OUTSIDE | GRANTED | FILES
    more = {"secrets": [secret.parent], "reads": [granted.parent], "open": str(secret)}
    return outcomes(attempts, workspace, kind, names=names, **more)


@pytest.mark.parametrize("attempt", FILES)
def test_no_file_of_the_same_user_is_in_reach(said, attempt):
    control = "free" if attempt == "inherited descriptor" else "none"
    assert said[control][attempt].startswith("did"), "the attempt itself is wrong"
    refusals = {
        "inherited descriptor": "EBADF",
        "hard link": "EXDEV",
        "grandchild": "CalledProcessError",
        "grandchild in Python": "CalledProcessError",
    }
    assert said["landlock"][attempt] == refusals.get(attempt, "EACCES")


@pytest.mark.parametrize("attempt", PROCESSES)
def test_no_process_of_the_same_user_can_be_read(said, attempt):
    if not said["none"][attempt].startswith("did"):
        pytest.skip("this system keeps all processes from each other")
    assert said["landlock"][attempt] in ("EACCES", "EPERM", "ZeroDivisionError")


@pytest.mark.parametrize("attempt", OUTSIDE)
def test_no_process_of_the_same_user_can_be_signalled(said, attempt):
    assert said["none"][attempt].startswith("did"), "the attempt itself is wrong"
    if landlock.abi() < landlock.SCOPES_SINCE:
        pytest.skip("this Landlock does not govern signals")
    assert said["landlock"][attempt] == "EPERM"


@pytest.mark.parametrize("attempt", GRANTED)
def test_what_is_granted_works(said, attempt):
    assert said["free"][attempt].startswith("did"), "the attempt itself is wrong"
    assert said["landlock"][attempt].startswith("did")


def test_without_landlock_a_file_is_in_reach_and_no_descriptor_is_handed_on(said):
    assert said["none"]["read"] == "did secret"
    assert said["none"]["inherited descriptor"] == "EBADF"


MOUNT = """
import ctypes, os, sys
from pathlib import Path
from capedjica.tools.confinement import landlock
workspace = Path(sys.argv[1])
if sys.argv[2] == "confined":
    landlock.restrict([Path("/usr"), Path("/proc")], [workspace])
answer = ctypes.CDLL(None).mount(b"none", os.fsencode(workspace), b"tmpfs", 0, None)
print("mounted" if answer == 0 else "refused")
"""


def test_nothing_can_be_mounted_even_by_root(tmp_path):
    unshare = shutil.which("unshare")
    wrapper = [unshare, "-r", "-m"]
    if unshare is None or run_python(MOUNT, tmp_path, "free", wrapper=wrapper).stdout != "mounted\n":
        pytest.skip("nothing can be mounted here anyway")
    done = run_python(MOUNT, tmp_path, "confined", wrapper=wrapper)
    assert done.stdout == "refused\n", done.stderr


EACH_ABI = """
import json, os, sys
from pathlib import Path
from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.calls import in_child
folder, newest, said = Path(sys.argv[1]), landlock.abi(), {}
def tried(version):
    landlock.abi = lambda: version
    landlock.restrict([folder / "read", folder / "file", folder / "missing"], [folder / "write"])
    Path(folder / "write" / f"{version}").write_text("x")
    got = [(folder / "read" / "x").read_text(), (folder / "file").read_text()]
    for name in ("secret", "read/new", "file"):
        try:
            (folder / name).open("r" if name == "secret" else "w")
        except PermissionError:
            got.append("refused")
    return " ".join(got)
for version in range(1, newest + 1):
    said[version] = in_child(lambda: tried(version))
print(json.dumps(said))
"""


def test_every_version_of_landlock_is_asked_for_what_it_knows(tmp_path):
    (tmp_path / "read").mkdir()
    (tmp_path / "write").mkdir()
    for name in ("read/x", "file", "secret"):
        (tmp_path / name).write_text("x")
    done = run_python(EACH_ABI, tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == landlock.abi()
    assert set(said.values()) == {"x x refused refused refused"}


def test_later_versions_know_more_rights():
    known = [landlock.rights_of_files(version) for version in range(1, 11)]
    assert [rights.bit_length() for rights in known] == [13, 14, 15, 15, 16, 16, 16, 16, 17, 17]


TCP = """
import socket, sys
from capedjica.tools.confinement import landlock
if sys.argv[2] == "confined":
    landlock.forbid_tcp()
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
    print("connected", open("/etc/hostname").close())
except PermissionError:
    print("refused", open("/etc/hosts").close())
"""


def test_tcp_alone_can_be_forbidden():
    if landlock.abi() < landlock.TCP_SINCE:
        pytest.skip("this Landlock does not govern TCP")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run_python(TCP, port, "confined").stdout == "refused None\n"
        assert run_python(TCP, port, "free").stdout == "connected None\n"
