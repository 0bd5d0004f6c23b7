"""``capedjica site start|stop|status|forget``: what connects a hospital with the server of a study."""

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
    typer.Option("--study", help="Which study, by the beginning of its hash; by default the latest."),
]
AnyOption = Annotated[
    str | None, typer.Option("--study", help="Which study, by the beginning of its hash; by default all.")
]


@of_a_site
def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit that the coordinator sent, NAME.zip.")],
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
) -> None:
    """Take part in a study: check, approve, start.

    Every scan is read as the study reads it; then the study is shown, and approved if you say so; then the
    site is connected. It ends at the first of the three that cannot be done, and says why.
    """
    need_flare()
    from capedjica.cli.site.commands import approve, look_at

    if kit.suffix != ".zip":
        raise InputError(f"{kit} is not a kit, NAME.zip; a study without one: capedjica site approve")
    look_at(kit, site)
    approve(study=kit, site=site, site_option=None, yes=yes)
    start(site=site, site_option=None, study=None, foreground=False, unconfined=False)


@of_a_site
def start(
    site: SiteArgument,
    study: WhichOption = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, for systemd and containers.")
    ] = False,
    unconfined: Annotated[
        bool,
        typer.Option(
            "--unconfined",
            help="Start although nothing keeps the program with the network from the site's files.",
        ),
    ] = False,
) -> None:
    """Connect this site to the server of a study.

    It answers what was approved. Two programs are started: the agent has the keys, the ledger and the scans,
    and no network; the carrier has the network, and cannot open the site's files. Everything is checked
    first, and nothing runs that was not approved. Each is started again when it dies.
    """
    need_flare()
    from capedjica.flare import processes
    from capedjica.site.flare.starting import choose, note_unconfined, programs
    from capedjica.site.flare.status import await_connection

    home, kit, given = _ready(site, study)
    confinement = choose(home, kit, unconfined=unconfined)
    note_unconfined(home, given, confinement)
    typer.echo(
        f"Site {home.settings.name} takes part in '{given.content.title}', by the server at {kit.server()}."
    )
    typer.echo(f"The program with the network is confined by {confinement.words}.")
    if foreground:
        processes.supervise(kit.path, programs(home, kit, confinement))
        return
    processes.start(kit.path, programs(home, kit, confinement))
    typer.echo(await_connection(kit))
    typer.echo(f"It runs in the background. To stop: capedjica site stop {shlex.quote(str(site))}")
    typer.echo(f"How it stands: capedjica site status {shlex.quote(str(site))}")
    typer.echo(f"What happens: {home.folder / 'site.log'}; of the network: {kit.workspace / 'log.txt'}")


@of_a_site
def agent(
    site: SiteArgument,
    study: WhichOption = None,
) -> None:
    """Run only the agent, in the foreground.

    A system manager starts the carrier as another user. The site.toml names that user ([carrier] user), and
    only its processes may connect.
    """
    need_flare()
    from capedjica.site.flare.starting import run_agent

    home, kit, _ = _ready(site, study)
    run_agent(home, kit)


def carrier(
    workspace: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The carrier's folder of the study, carrier/HASH.")
    ],
) -> None:
    """Run only the carrier, in the foreground.

    That is NVIDIA FLARE's client, which reads nothing but its folder.
    """
    need_flare()
    from capedjica.flare.launch import run_carrier

    run_carrier(workspace)


def _ready(site: Path, study: str | None) -> tuple[SiteHome, Kit, Study]:
    """Return a site, its kit and the study; refuse where anything keeps the site from taking part."""
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
        raise InputError(f"the coordinator ended '{given.content.title}' on {when}: there is nothing to do")
    found = problems(home, given)
    if found:
        raise InputError(listed(f"site {home.settings.name} is not ready for '{given.content.title}'", found))
    return home, kit, given


@of_a_site
def stop(site: SiteArgument, study: AnyOption = None) -> None:
    """Disconnect this site, from one study or all.

    What it released stays charged, and a run can go on.
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
        typer.echo(f"The agent of '{kit.study().content.title}' was started by itself: stop it where it was.")
    if not stopped and not apart:
        typer.echo(f"Site {home.settings.name} was not running.")
    for kit in stopped:
        typer.echo(f"Stopped site {home.settings.name} of '{kit.study().content.title}'.")


@of_a_site
def status(
    site: SiteArgument,
    study: AnyOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print every change, until interrupted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show of each study whether this site is connected.

    And what it has spent. Exit codes for scripts: 0 connected, 10 no study is running here, 11 running but
    not connected.
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
        return Group(Text(f"Site {name} has no kit; first: capedjica site approve KIT.zip"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for one in found:
        table.add_row("study", Text(f"{one['title']} ({one['study'][:16]})"))
        table.add_row("server", Text(one.get("server", "not known")))
        table.add_row(
            f"site {name}", Text(one["words"], style="" if one["state"] == "connected" else "yellow")
        )
        if one["state"] != "unusable":
            table.add_row("agent", Text(one["agent"]))
            table.add_row("carrier", Text(one["carrier"]))
        if spent := one.get("spent"):
            words = f"epsilon {spent['epsilon_text']} of {spent['allowed']:g} by {spent['releases']} releases"
            table.add_row("spent", Text(words))
        for warning in one.get("warnings", ()):
            table.add_row("warning", Text(warning, style="yellow"))
    return Group(table)


@of_a_site
def forget(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The beginning of the study's hash.")],
    site: SiteArgument,
) -> None:
    """Remove the kit of a study that is over.

    Its approval and the ledger stay.
    """
    need_flare()
    from capedjica.site.flare import kits
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    kit = kits.forget(home, study)
    typer.echo(
        f"Site {home.settings.name} removed its kit of study {kit.label.study[:16]}, and FLARE's logs in it. "
        "What was approved and spent stays in the ledger."
    )


@of_a_site
def migrate(site: SiteArgument) -> None:
    """Put aside kits of an earlier kind.

    Those from before the network was kept apart; it is said what becomes of each study. The ledger, the
    approvals and the enrolment stay as they are: what was spent stays spent.
    """
    from capedjica.site.flare.migration import migrate as carry_over
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    for words in carry_over(home):
        typer.echo(words)
