"""Start the two programs of a site: the agent and the confined carrier."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.flare import processes
from capedjica.flare.kit import SITE_CLASS, project, startup_files
from capedjica.flare.launch import start_command
from capedjica.flare.link import socket_path
from capedjica.flare.workspace import flare_folders, point_to, restrict, share
from capedjica.site.agent.serving import ROLE
from capedjica.site.flare.kits import Kit
from capedjica.site.home import SiteHome
from capedjica.site.participants.enrolment import enrolment_path
from capedjica.study.study_file import Study
from capedjica.tools.confinement.carrier import Confinement, strongest
from capedjica.tools.confinement.users import account
from capedjica.tools.text import printable

AGENT: Final = "agent"
CARRIER: Final = "carrier"


def write_workspace(kit: Kit, workspace: Path) -> None:
    """Write the working folder of this site's FLARE client, with the key of the kit."""
    label, startup = kit.label, startup_files(kit.path)
    if not workspace.parent.exists():
        # The carrier may run as another user, who must be able to traverse it.
        workspace.parent.mkdir(parents=True)
        workspace.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix=".workspace-", dir=workspace.parent) as scratch:
        made = flare_folders(project(label.study), label.host, label.port, [label.site], Path(scratch))
        folder = made / label.site
        restrict(folder, SITE_CLASS)
        for name, content in startup.items():
            (folder / "startup" / name).write_bytes(content)
            (folder / "startup" / name).chmod(0o600)
        folder.chmod(0o700)
        # Files of a carrier of another user may be undeletable; its folder is renamed first.
        earlier = Path(f"{scratch}-earlier")
        with suppress(FileNotFoundError):
            workspace.rename(earlier)
        shutil.rmtree(earlier, ignore_errors=True)
        folder.rename(workspace)


def choose(home: SiteHome, kit: Kit, *, unconfined: bool = False) -> Confinement:
    """Return the strongest confinement available here for a carrier.

    If there is none, real data require ``unconfined``; simulated data do not.
    """
    confinement = strongest(home.settings.carrier.user, [kit.workspace.parent], str(home.folder.absolute()))
    # defence: real-data-need-a-boundary
    if confinement.kind == "none" and not unconfined and not home.settings.policy.auto_approve:
        raise InputError(
            f"site {home.settings.name}: this system cannot keep the carrier, the program with network "
            f"access, from the site's files ({confinement.words}). To start anyway: --unconfined, which is "
            "recorded in the ledger and stated in the report"
        )
    return confinement


def programs(home: SiteHome, kit: Kit, confinement: Confinement) -> list[processes.Program]:
    """Return the programs of a study; the carrier has its own folder and access to one socket."""
    workspace, socket = kit.workspace.resolve(), socket_path(kit.path, ROLE)
    point_to(workspace, socket)
    command, closed = start_command(workspace), secrets(home, kit)
    carrier = processes.confined(CARRIER, confinement, workspace, command, closed, socket)
    return [agent_program(kit, confinement), carrier]


def agent_program(kit: Kit, confinement: Confinement) -> processes.Program:
    """Return the program of the agent."""
    command = _agent_command(kit, confinement.kind, confinement.uid)
    return processes.Program(AGENT, command, str(kit.path.resolve()))


def _agent_command(kit: Kit, carrier: str, uid: int | None) -> tuple[str, ...]:
    own = "" if uid is None else str(uid)
    return sys.executable, "-P", "-m", "capedjica.site.agent", str(kit.path.resolve()), carrier, own


def secrets(home: SiteHome, kit: Kit) -> list[Path]:
    """Return files that the carrier must not be able to open: key, ledger, enrolment, study, a scan."""
    own = [home.identity_path, home.ledger_path, home.head_path, enrolment_path(home), home.data_path]
    found = [path for path in (*own, kit.path, home.folder / "site.log") if path.exists()]
    with suppress(StopIteration, OSError):
        found.append(next(path for path in home.data_path.rglob("*") if path.is_file()))
    return found


def note_unconfined(home: SiteHome, study: Study, confinement: Confinement) -> None:
    """Record in the ledger that a carrier was started without confinement."""
    if confinement.kind == "none":
        with home.open_ledger() as ledger:
            ledger.note(f"started unconfined for '{printable(study.content.title)}': {confinement.words}")


def run_agent(home: SiteHome, kit: Kit) -> None:
    """Replace this process by the agent, if a system manager starts the carrier as another user.

    The carrier's folder is configured to connect to the agent, and shared with the group of its parent.
    """
    name = home.settings.carrier.user
    if name is None:
        raise InputError(
            f"site {home.settings.name}: [carrier] user is missing in site.toml; running the agent alone "
            "requires it"
        )
    uid, _ = account(name)
    if uid == os.getuid():
        raise InputError(
            f"site {home.settings.name}: the agent runs as {name}, the user of the carrier; use two "
            "different users"
        )
    # The carrier must not learn the names of scans.
    closed = [path for path in secrets(home, kit) if home.data_path not in path.parents]
    try:
        point_to(kit.workspace, socket_path(kit.path, ROLE), closed)
        share(kit.workspace)
    except OSError as error:
        raise InputError(f"{kit.workspace} cannot be prepared for the carrier: {error.strerror}") from None
    command = _agent_command(kit, "user", uid)
    os.execv(command[0], command)  # noqa: S606 (no shell)
