"""The last of our code before a carrier: it shuts itself in, tries the doors, and becomes FLARE.

``python -m capedjica.flare.launch FOLDER`` reads its orders, confines its own process, tries to open what the
carrier must not reach, and executes the command only if nothing opens. From then on the process is code of
others with a network, and what it may do is decided by the operating system.
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

# With this code a program says that it would do no better a second time.
FINAL_CODE = 78
# A client of FLARE and its job take about 150 MB each, a message at most 50.
MEMORY = 4 << 30


def program_input(
    confinement: Confinement, folder: Path, command: Sequence[str], secrets: Sequence[Path], socket: Path
) -> str:
    """Return the orders of a launcher, whose command writes to one folder and connects to one socket.

    Names of secrets go no further than the launcher: executing the command replaces its memory.
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
    """Confine this process and become the command; InputError if the carrier could read a secret."""
    try:
        given = json.loads(orders)
        confinement = Confinement(**given["confinement"])
        folder, command = Path(given["folder"]), list(given["command"])
        secrets, socket = [Path(path) for path in given["secrets"]], Path(given["socket"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError("the launcher of a carrier was given no orders that it can read") from None
    confine(confinement, reads=[], writes=[folder], memory=MEMORY, secrets=secrets, connects=[socket.parent])
    # defence: a-carrier-tries-the-doors
    check_doors(confinement, secrets)
    os.chdir(folder)
    os.execve(command[0], command, environment(folder))  # noqa: S606 (no shell)


def check_doors(confinement: Confinement, secrets: Sequence[Path]) -> None:
    """Refuse to go on in a process that can open what a carrier must not, where anything confines it."""
    open_doors = openable(secrets) if confinement.kind != "none" else []
    if open_doors:
        raise InputError(
            f"the carrier could read {open_doors[0]}, although it is confined by {confinement.words}: it does"
            " not start. Keep that file out of the folders of the programs, and closed to other users"
        )


def run_carrier(folder: Path) -> None:
    """Become the carrier that works in a folder, as whoever this process is run by."""
    try:
        settings = json.loads((folder / "local" / SETTINGS).read_text())
        closed, socket = [Path(path) for path in settings["closed"]], Path(settings["socket"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{folder} is not the folder of a carrier: {error}") from None
    launch(program_input(_as_it_is(folder), folder, start_command(folder), closed, socket))


def _as_it_is(folder: Path) -> Confinement:
    """Return the confinement of a process that a system manager started as a user of its own."""
    given = strongest(None, [folder], str(folder.absolute()))
    if os.geteuid() == 0:
        return given
    # The doors are tried also where there is no Landlock.
    return Confinement("user", None, None, f"the user {os.geteuid()}, and {given.words}")


def start_command(folder: Path) -> tuple[str, ...]:
    """Return FLARE's own command that starts what a workspace is for, in the foreground."""
    shell = shutil.which("bash")
    if shell is None:
        raise InputError("NVIDIA FLARE is started by a script of bash, which is not installed")
    return (shell, str(folder.absolute() / "startup" / "sub_start.sh"), "--once")


def main() -> None:
    """Read the orders and carry them out."""
    orders = sys.stdin.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        launch(orders)
    except (CapedjicaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(FINAL_CODE)


if __name__ == "__main__":
    main()
