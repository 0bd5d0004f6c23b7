"""Launcher of a carrier: confines its own process, verifies the confinement and executes FLARE.

``python -m capedjica.flare.launch FOLDER`` reads its instructions, confines its own process, tries to open
the files that the carrier must not reach, and executes the command only if none can be opened. From then on
the process runs third-party code with network access, restricted by the operating system.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from capedjica.errors import CapedjicaError, InputError
from capedjica.flare.wire import SETTINGS
from capedjica.tools.confinement.carrier import Confinement, confine, environment, openable, strongest

# Exit code of a program that would fail again if restarted.
FINAL_CODE = 78
# A FLARE client and its job use about 150 MB each, a message at most 50 MB.
MEMORY = 4 << 30


def program_input(
    confinement: Confinement, folder: Path, command: Sequence[str], secrets: Sequence[Path], socket: Path
) -> str:
    """Return the instructions of a launcher, whose command writes to one folder and uses one socket.

    The paths of secrets stay in the launcher: executing the command replaces its memory.
    """
    orders = {
        "confinement": asdict(confinement),
        "folder": str(folder.absolute()),
        "command": list(command),
        "secrets": [str(path.absolute()) for path in secrets],
        "socket": str(socket.absolute()),
    }
    return json.dumps(orders)


def launch(orders: str) -> None:
    """Confine this process and execute the command; raise InputError if the carrier could read a secret."""
    try:
        given = json.loads(orders)
        confinement = Confinement(**given["confinement"])
        folder, command = Path(given["folder"]), list(given["command"])
        secrets, socket = [Path(path) for path in given["secrets"]], Path(given["socket"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError("the launcher of a carrier received invalid instructions") from None
    confine(confinement, reads=[], writes=[folder], memory=MEMORY, secrets=secrets, connects=[socket.parent])
    # defence: a-carrier-tries-the-doors
    check_doors(confinement, secrets)
    os.chdir(folder)
    os.execve(command[0], command, environment(folder))  # noqa: S606 (no shell)


def check_doors(confinement: Confinement, secrets: Sequence[Path]) -> None:
    """Refuse to continue if this process can open a secret although it is confined."""
    open_doors = openable(secrets) if confinement.kind != "none" else []
    if open_doors:
        raise InputError(
            f"the carrier could read {open_doors[0]}, although it is confined by {confinement.words}; it does"
            " not start. Move that file out of the program folders and deny access to other users"
        )


def run_carrier(folder: Path) -> None:
    """Run the carrier of a folder in this process, as its current user."""
    try:
        settings = json.loads((folder / "local" / SETTINGS).read_text())
        closed, socket = [Path(path) for path in settings["closed"]], Path(settings["socket"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{folder} is not the folder of a carrier: {error}") from None
    launch(program_input(_as_it_is(folder), folder, start_command(folder), closed, socket))


def _as_it_is(folder: Path) -> Confinement:
    """Return the confinement of a process that a service manager started under a separate user account."""
    given = strongest(None, [folder], str(folder.absolute()))
    if os.geteuid() == 0:
        return given
    # Access to the secrets is also tested without Landlock.
    return Confinement("user", None, None, f"the user {os.geteuid()}, and {given.words}")


def start_command(folder: Path) -> tuple[str, ...]:
    """Return the FLARE command that starts a workspace in the foreground."""
    shell = shutil.which("bash")
    if shell is None:
        raise InputError("NVIDIA FLARE is started by a bash script, but bash is not installed; install bash")
    return (shell, str(folder.absolute() / "startup" / "sub_start.sh"), "--once")


def main() -> None:
    """Read the instructions from standard input and execute them."""
    orders = sys.stdin.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        launch(orders)
    except (CapedjicaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(FINAL_CODE)


if __name__ == "__main__":
    main()
