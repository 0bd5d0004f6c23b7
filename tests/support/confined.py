"""Programs that are confined and try what they can, and the same programs without confinement."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import capedjica

PACKAGE = Path(capedjica.__file__).parent
NOBODY = 61234
PLENTY = 1 << 32
ROOT_ONLY = "only root can switch users"

# Confines itself as it is told, and becomes another program.
_LAUNCHER = """
import json, os, sys
from pathlib import Path
from capedjica.tools.confinement import carrier
told = json.loads(sys.argv[1])
workspace = Path(told["workspace"])
if "open" in told:
    os.set_inheritable(os.open(told["open"], os.O_RDONLY), True)
if told["kind"] != "free":
    user = told["uid"]
    how = carrier.Confinement(told["kind"], user, user, "")
    secrets = [Path(one) for one in told["secrets"]]
    reads = [Path(one) for one in told["reads"]]
    carrier.confine(how, reads, [workspace], told["memory"], secrets=secrets)
elif told["uid"] is not None:
    os.setgroups([])
    os.setresgid(*[told["uid"]] * 3)
    os.setresuid(*[told["uid"]] * 3)
os.execve(told["program"][0], told["program"], carrier.environment(workspace))
"""

# Tries one thing after another, and says what it did or how it was refused.
_HOSTILE = """
import ctypes, errno, json, os, signal, socket, subprocess, sys
attempts, names = json.loads(sys.argv[1])
globals().update(names)
def contents(path):
    with open(path, "rb") as file:
        return file.read(20).decode()
def told(attempt):
    try:
        return f"did {eval(attempt)}"
    except OSError as error:
        return errno.errorcode[error.errno]
    except Exception as error:
        return type(error).__name__
print(json.dumps({name: told(attempt) for name, attempt in attempts.items()}))
"""


def hostile(attempts, **names):
    """Return the command of a program that tries expressions in which some names stand for values."""
    return [sys.executable, "-I", "-c", _HOSTILE, json.dumps([attempts, names])]


def launched(program, workspace, kind, *, wrapper=(), uid=None, memory=PLENTY, secrets=(), reads=(), **more):
    """Run a program under a confinement ("free" for none); return the finished process."""
    told = {"program": list(map(str, program)), "workspace": str(workspace), "kind": kind, "uid": uid}
    told |= {"memory": memory, "secrets": list(map(str, secrets)), "reads": list(map(str, reads)), **more}
    return run_python(_LAUNCHER, json.dumps(told), wrapper=wrapper)


def outcomes(attempts, workspace, kind, *, names, **more):
    """Return what a hostile program said of each attempt."""
    done = launched(hostile(attempts, **names), workspace, kind, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_python(code, *words, wrapper=(), package=PACKAGE):
    """Run Python with this package; return the finished process."""
    command = [*map(str, wrapper), sys.executable, "-c", code, *map(str, words)]
    variables = os.environ | {"PYTHONPATH": str(package.parent)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)


_OPENED = """set -e
mkdir -p "$1/$3"
mount --bind "$2/$3" "$1/$3"
mount --rbind "$1" "$2"
shift 3
exec "$@"
"""


def opened_to_others(scratch):
    """Return what makes a command run where every user can read the interpreter; None if that cannot be done.

    Over a folder that only its owner can enter a new one is mounted, for this command alone, and in it the
    interpreter's folder again.
    """
    if os.geteuid() != 0:
        return None
    base = Path(os.path.realpath(sys.base_prefix))
    closed = [folder for folder in reversed(base.parents) if not folder.stat().st_mode & 1]
    wrapper = []
    if closed:
        folder = scratch / "opened"
        folder.mkdir(mode=0o755)
        wrapper = ["unshare", "-m", "sh", "-c", _OPENED, "sh", folder, closed[0], base.relative_to(closed[0])]
    code = f"import os, sys; os.setresuid(*[{NOBODY}] * 3); os.execv(sys.executable, ['python', '-c', ''])"
    tried = run_python(code, wrapper=wrapper) if not closed or shutil.which("unshare") else None
    return wrapper if tried is not None and tried.returncode == 0 else None


def copied_package(folder):
    """Copy what is tested to where every user can read it; return the package."""
    package = folder / "src" / "capedjica"
    for name in ("__init__.py", "errors.py", "tools/__init__.py", "tools/confinement"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (PACKAGE / name).is_dir() else shutil.copy
        copy(PACKAGE / name, package / name)
    return package
