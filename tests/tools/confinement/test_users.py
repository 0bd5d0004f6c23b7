"""A program that runs as another user."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from capedjica.tools.confinement import landlock, users
from tests.support.confined import NOBODY, launched, outcomes, run_python

ATTEMPTS = {
    "who": "os.getresuid() + os.getresgid() + tuple(os.getgroups())",
    "secret": "contents(secret)",
    "root again": "os.setresuid(0, 0, 0)",
    "root's group again": "os.setresgid(0, 0, 0)",
    "groups": "os.setgroups([0])",
    "victim": "contents(f'/proc/{victim}/environ')",
    "signal": "os.kill(victim, 0)",
    "own file": "open(f'{workspace}/own-{os.getuid()}', 'w').write('x')",
}


@pytest.fixture
def workspace(public, request):
    """A folder of the other user, in which there is a file of root's: only its mode keeps it."""
    folder = public / request.node.name
    folder.mkdir()
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    os.chown(folder, NOBODY, NOBODY)
    return folder


def test_another_user_reads_no_file_of_ours_and_stays_another(wrapper, workspace, victim):
    names = {"secret": str(workspace / "secret"), "workspace": str(workspace), "victim": victim}
    free = outcomes(ATTEMPTS, workspace, "free", names=names, wrapper=wrapper)
    assert [name for name, said in free.items() if not said.startswith("did")] == []
    said = outcomes(ATTEMPTS, workspace, "user", names=names, uid=NOBODY, wrapper=wrapper)
    assert said.pop("who") == f"did {(NOBODY,) * 6}"
    assert said.pop("own file") == "did 1"
    assert set(said.values()) <= {"EACCES", "EPERM"}


def test_no_program_gives_rights_back(wrapper, workspace):
    """A program that runs as root whoever starts it, as sudo does, runs as who started it."""
    program = workspace / "id"
    shutil.copy(shutil.which("id"), program)
    program.chmod(0o4755)
    command = [program, "-u"]
    if launched(command, workspace, "free", uid=NOBODY, wrapper=wrapper).stdout != "0\n":
        pytest.skip("no program runs as its owner in this folder")
    done = launched(command, workspace, "user", uid=NOBODY, wrapper=wrapper)
    assert (done.stdout, done.stderr) == (f"{NOBODY}\n", "")


STRONGEST = """
import sys
from pathlib import Path
from capedjica.tools.confinement.carrier import strongest
found = strongest(None, [Path(one) for one in sys.argv[1:]], "seed")
print(found.kind, found.uid, found.words, sep=";")
"""


def test_what_another_user_can_read_is_tried(wrapper, package, public):
    done = run_python(STRONGEST, public, wrapper=wrapper, package=package)
    kind, uid, words = done.stdout.strip().split(";")
    rules = f" and Landlock, ABI {landlock.abi()}" if landlock.abi() else ""
    assert kind == "user"
    assert words == f"a separate user account ({uid}){rules}"


def test_what_another_user_cannot_read_is_named(wrapper, package, public):
    closed = public / "closed"
    closed.mkdir(mode=0o700)
    (closed / "kit").touch()
    done = run_python(STRONGEST, closed / "kit", wrapper=wrapper, package=package)
    why = f"another user cannot read {closed}/kit: it is inside {closed}, which only its owner can enter"
    assert why in done.stdout
    assert not done.stdout.startswith("user")


def test_an_interpreter_that_only_root_can_read_is_named():
    interpreter = Path(os.path.realpath(sys.executable))
    closed = [folder for folder in reversed(interpreter.parents) if not folder.stat().st_mode & 0o011]
    if os.geteuid() != 0 or not closed:
        pytest.skip("everybody can read this interpreter, or this is not root")
    assert users.obstacle(NOBODY, NOBODY, []) == (
        f"another user cannot read the interpreter {interpreter}: "
        f"it is inside {closed[0]}, which only its owner can enter"
    )
