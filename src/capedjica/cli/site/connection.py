"""``capedjica site join|start|stop|status|forget|migrate``: the connection of a site to a study's server."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from capedjica.cli.options import JsonOption, SiteArgument, need_flare, of_a_site
from capedjica.errors import InputError

if TYPE_CHECKING:
    from capedjica.site.flare.kits import Kit
    from capedjica.site.home import SiteHome
    from capedjica.study.study_file import Study

_EVERY_SECONDS = 2.0
WhichOption = Annotated[
    str | None,
    typer.Option("--study", help="Study, given by its title or a prefix of its hash; by default the latest."),
]
AnyOption = Annotated[
    str | None,
    typer.Option("--study", help="Study, given by its title or a prefix of its hash; by default all."),
]


@of_a_site
def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Kit from the coordinator (NAME.zip).")],
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a prompt.")] = False,
) -> None:
    """Take part in a study: check, approve and start.

    The command reads every scan as the study will read it, shows the study and asks for approval, and
    connects the site. It stops at the first step that fails and states the reason.
    """
    need_flare()
    from capedjica.cli.site.commands import approve, look_at

    if kit.suffix != ".zip":
        raise InputError(f"{kit} is not a kit (NAME.zip); for a study without a kit: capedjica site approve")
    look_at(kit, site)
    approve(study=kit, site=site, site_option=None, yes=yes)
    start(site=site, site_option=None, study=None, foreground=False, unconfined=False)


@of_a_site
def start(
    site: SiteArgument,
    study: WhichOption = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground, for systemd and containers.")
    ] = False,
    unconfined: Annotated[
        bool,
        typer.Option(
            "--unconfined",
            help="Start even if the carrier cannot be confined.",
        ),
    ] = False,
) -> None:
    """Connect this site to the server of a study.

    The site answers only what was approved. Two programs are started: the agent has the keys, the ledger and
    the scans but no network; the carrier has the network but cannot open the site's files. All requirements
    are checked first. Each program is restarted if it dies.
    """
    need_flare()
    from capedjica.flare import processes
    from capedjica.site.flare.starting import choose, note_unconfined, programs
    from capedjica.site.flare.status import await_connection

    home, kit, given = _ready(site, study)
    if not foreground and (process := processes.running(kit.path)) is not None:
        raise InputError(
            f"site {home.settings.name} already takes part in '{given.content.title}', as process {process}; "
            f"to see its connection: capedjica site status {shlex.quote(str(site))}"
        )
    confinement = choose(home, kit, unconfined=unconfined)
    note_unconfined(home, given, confinement)
    typer.echo(
        f"Site {home.settings.name} takes part in '{given.content.title}', through the server at "
        f"{kit.server()}."
    )
    typer.echo(f"The carrier, the program with network access, is confined by {confinement.words}.")
    if foreground:
        processes.supervise(kit.path, programs(home, kit, confinement))
        return
    processes.start(kit.path, programs(home, kit, confinement))
    typer.echo(await_connection(kit))
    typer.echo(f"The site runs in the background. To stop it: capedjica site stop {shlex.quote(str(site))}")
    typer.echo(f"Status: capedjica site status {shlex.quote(str(site))}")
    typer.echo(f"Logs: {home.folder / 'site.log'} (site), {kit.workspace / 'log.txt'} (network)")


@of_a_site
def agent(
    site: SiteArgument,
    study: WhichOption = None,
) -> None:
    """Run only the agent, in the foreground.

    A system manager such as systemd starts the carrier as another user. site.toml names that user ([carrier]
    user), and only its processes may connect.
    """
    need_flare()
    from capedjica.site.flare.starting import run_agent

    home, kit, _ = _ready(site, study)
    run_agent(home, kit)


def carrier(
    workspace: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the carrier for the study, carrier/HASH.")
    ],
) -> None:
    """Run only the carrier, in the foreground.

    The carrier is the NVIDIA FLARE client, which reads only its own folder.
    """
    need_flare()
    from capedjica.flare.launch import run_carrier

    run_carrier(workspace)


def _ready(site: Path, study: str | None) -> tuple[SiteHome, Kit, Study]:
    """Return a site, its kit and the study; raise InputError if the site cannot take part."""
    from capedjica.flare.certificates import check_certificates
    from capedjica.flare.kit import check_protocol
    from capedjica.site.approval.admission import problems
    from capedjica.site.flare import kits
    from capedjica.site.flare.kits import OVER
    from capedjica.site.home import SiteHome
    from capedjica.tools.toml import listed

    home = SiteHome.load(site)
    kit = kits.find_kit(home, study)
    check_protocol(kit.label.protocol, str(kit.path))
    warning = check_certificates(kit.workspace)
    if warning:
        typer.echo(f"Warning: {warning}.", err=True)
    given = kit.study()
    if (kit.path / OVER).exists():
        when = (kit.path / OVER).read_text().strip()
        raise InputError(f"the coordinator ended '{given.content.title}' on {when}; nothing to start")
    found = problems(home, given)
    if found:
        raise InputError(listed(f"site {home.settings.name} is not ready for '{given.content.title}'", found))
    return home, kit, given


@of_a_site
def stop(site: SiteArgument, study: AnyOption = None) -> None:
    """Disconnect this site from one study or from all.

    Its releases stay charged, and a run can continue without it.
    """
    need_flare()
    from capedjica.flare import processes
    from capedjica.site.agent.owner_commands import standing
    from capedjica.site.flare import kits
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    chosen = kits.installed(home) if study is None else [kits.find_kit(home, study)]
    stopped = [kit for kit in chosen if processes.stop(kit.path)]
    apart = [kit for kit in chosen if standing(kit) is not None]
    for kit in apart:
        typer.echo(f"The agent of '{kit.study().content.title}' was started separately; stop it there.")
    if not stopped and not apart:
        typer.echo(f"Site {home.settings.name} was not running.")
    for kit in stopped:
        typer.echo(f"Disconnected site {home.settings.name} from '{kit.study().content.title}'.")


@of_a_site
def status(
    site: SiteArgument,
    study: AnyOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print every change, until interrupted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the connection and spending of each study.

    Exit codes for scripts: 0 connected, 10 no study is running here, 11 running but not connected.
    """
    need_flare()
    from capedjica.site.flare.status import look
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    found = look(home, study)
    while watch:
        # One line for each change.
        typer.echo(
            json.dumps(found) if as_json else "; ".join(f"{one['title']}: {one['words']}" for one in found)
        )
        sys.stdout.flush()
        before = found
        while found == before:
            time.sleep(_EVERY_SECONDS)
            found = look(home, study)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        Console(highlight=False, soft_wrap=True).print(_view(home.settings.name, found))
    running = {one["state"] for one in found} - {"stopped", "over", "unusable"}
    raise typer.Exit(10 if not running else 0 if running == {"connected"} else 11)


def _view(name: str, found: list[dict[str, Any]]) -> Group:
    if not found:
        return Group(Text(f"Site {name} has no kit; first run: capedjica site approve KIT.zip"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for one in found:
        table.add_row("study", Text(f"{one['title']} ({one['study'][:16]})"))
        table.add_row("server", Text(one.get("server", "unknown")))
        table.add_row(
            f"site {name}", Text(one["words"], style="" if one["state"] == "connected" else "yellow")
        )
        if one["state"] != "unusable":
            table.add_row("agent", Text(one["agent"]))
            table.add_row("carrier", Text(one["carrier"]))
        if spent := one.get("spent"):
            words = f"epsilon {spent['epsilon_text']} of {spent['allowed']:g} in {spent['releases']} releases"
            table.add_row("spent", Text(words))
        for warning in one.get("warnings", ()):
            table.add_row("warning", Text(warning, style="yellow"))
    return Group(table)


@of_a_site
def forget(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="Title of the study, or a prefix of its hash.")
    ],
    site: SiteArgument,
) -> None:
    """Remove the kit of a finished study.

    The approval and the ledger stay.
    """
    need_flare()
    from capedjica.site.flare import kits
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    kit = kits.forget(home, study)
    typer.echo(
        f"Removed the kit of study {kit.label.study[:16]} at site {home.settings.name}, including FLARE's "
        "logs. The approval and the spending stay in the ledger."
    )


@of_a_site
def migrate(site: SiteArgument) -> None:
    """Archive kits of an earlier version.

    Archives kits from before the carrier was a separate program, and reports what happens to each study. The
    ledger, the approvals and the enrolment do not change, and all past spending still counts.
    """
    from capedjica.site.flare.migration import migrate as carry_over
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    for words in carry_over(home):
        typer.echo(words)
