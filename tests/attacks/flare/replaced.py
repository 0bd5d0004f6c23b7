"""Sites whose carrier is a hostile program: ``python -m tests.attacks.flare.replaced STUDY KIND NAME ...``.

A program of its own, so that it can be run where other users can read the interpreter.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from capedjica.flare import processes
from capedjica.flare.link import socket_path
from capedjica.site.flare import kits
from capedjica.site.flare.starting import CARRIER, agent_program, choose, secrets
from capedjica.site.home import SiteHome
from tests.attacks.flare.attacked import NOTHING

PROGRAM = Path(__file__).with_name("hostile_carrier.py")


def start(folder: Path, kind: str) -> None:
    """Start a site's agent, and the hostile program as the product would start FLARE."""
    home = SiteHome.load(folder)
    kit = kits.find_kit(home)
    confinement = NOTHING if kind == "none" else choose(home, kit)
    assert confinement.kind == kind, confinement.words
    workspace = kit.workspace.absolute()
    shutil.copy(PROGRAM, workspace)
    told = {
        "files": [str(path) for path in private_files(home, kit)],
        "carrier": str(socket_path(kit.path, "carrier")),
        "owner": str(socket_path(kit.path, "owner")),
        "place": str(kit.path.absolute()),
    }
    (workspace / "told.json").write_text(json.dumps(told))
    command = (sys.executable, str(workspace / PROGRAM.name), str(workspace / "told.json"))
    carrier = processes.confined(
        CARRIER, confinement, workspace, command, secrets(home, kit), socket_path(kit.path, "carrier")
    )
    processes.start(kit.path, [agent_program(kit, confinement), carrier])


def private_files(home: SiteHome, kit: kits.Kit) -> list[Path]:
    """Return all of a site's folder but what is the carrier's, and where the agent will write."""
    folder = home.folder.absolute()
    found = [
        path for path in (folder, *folder.rglob("*")) if not path.is_relative_to(home.carrier_path.absolute())
    ]
    later = [folder / "site.log", *(kit.path.absolute() / name for name in ("owner.token", "programs.json"))]
    return [*found, home.head_path.absolute(), *later]


if __name__ == "__main__":
    for name in sys.argv[3:]:
        start(Path(sys.argv[1]) / "sites" / name, sys.argv[2])
