"""``capedjica sites``: commands for all sites of a study at once, as folders on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from capedjica.errors import InputError
from capedjica.tools.text import counted

app = typer.Typer(help="Manage all sites of a folder at once, for trials.", no_args_is_help=True)
SitesArgument = Annotated[Path, typer.Argument(metavar="SITES", help="Folder of the sites' folders.")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")]


@app.command()
def init(
    out: SitesArgument,
    data: Annotated[
        Path,
        typer.Option(
            help="Scans of all sites: a folder with participants.tsv (participant_id, site) and an .npz "
            "archive; nilearn's copy of ABIDE; or a folder with one folder of scans per site."
        ),
    ],
    kind: Annotated[str, typer.Option(help="Kind of scans, as for `capedjica site init`.")] = "auto",
    total_epsilon: Annotated[
        float, typer.Option(help="Budget per participant for all studies of a site in total.")
    ] = 20.0,
    study_epsilon: Annotated[float, typer.Option(help="Budget per participant for any one study.")] = 10.0,
    delta: Annotated[float, typer.Option(help="Delta of both budgets.")] = 1e-5,
) -> None:
    """Create all sites of a data collection.

    Each site gets its own key, limits and ledger, in a folder below SITES. Arrays of an archive are written
    as one file per participant; other scans are not copied.
    """
    from capedjica.one_machine.many_sites import Limits, make_sites, unnamed_arrays

    made = make_sites(out, data, Limits(total_epsilon, study_epsilon, delta), kind)
    for name, count in made.items():
        typer.echo(f"  {name:<24} {count:>6,} participants")
    typer.echo(f"Created {counted(len(made), 'site')} with {sum(made.values()):,} participants in {out}.")
    if unnamed := unnamed_arrays(data):
        typer.echo(f"Not used: {counted(unnamed, 'array')} without a row in {data / 'participants.tsv'}.")
    typer.echo(f"Next: capedjica sites enrol {shlex.quote(str(out))}")


@app.command()
def enrol(
    sites: SitesArgument,
    study: Annotated[Path | None, typer.Option("--study", help="The study.toml, or its folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace earlier enrolments.")] = False,
) -> None:
    """Enrol the participants of every site."""
    from capedjica.one_machine.local_run import site_files
    from capedjica.site.home import SiteHome
    from capedjica.site.participants.cohort import enrol as fix
    from capedjica.study.study_file import Study

    given = None if study is None else Study.load(study)
    homes, console, enrolled = list(map(SiteHome.load, site_files(sites))), Console(stderr=True), 0
    quiet = not console.is_interactive
    for home in track(homes, "reading data", console=console, transient=True, disable=quiet):
        enrolment = fix(home, home.settings.data, given, again=again)
        enrolled += len(enrolment.enrolled)
        for one in enrolment.left_out:
            for reason in one.reasons:
                typer.echo(f"{home.settings.name}, excluded: {reason}")
    typer.echo(f"Enrolled {enrolled:,} participants at {counted(len(homes), 'site')}.")
    where = shlex.quote(str(sites))
    typer.echo(f"Next: capedjica study new STUDY.toml --sites {where}")
    typer.echo(f"For an existing study.toml: capedjica study add-site {where}/*/*.card --study STUDY.toml")


@app.command()
def approve(
    study: StudyArgument,
    sites: Annotated[
        Path | None,
        typer.Argument(metavar="[SITES]", help="Folder of the sites; by default 'sites' next to the study."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without a prompt.")] = False,
) -> None:
    """Approve a study for all of its sites.

    On a terminal, the command asks for confirmation. If one of the sites cannot approve the study, none does,
    and all problems are listed.
    """
    from capedjica.one_machine.local_run import find_sites
    from capedjica.one_machine.many_sites import approve_all
    from capedjica.study.approval_text import show_study
    from capedjica.study.study_file import Study

    given = Study.load(study)
    homes = find_sites(given, sites or (study if study.is_dir() else study.parent) / "sites")
    show_study(given, Console(highlight=False))
    typer.echo()
    if not yes and sys.stdin.isatty() and not typer.confirm("Approve for all sites?", default=False):
        raise InputError("the study was not approved; nothing was changed")
    approve_all(homes, given)
    typer.echo(f"{counted(len(homes), 'site')} approved '{given.content.title}'.")
    where = "" if sites is None else f" --sites {shlex.quote(str(sites))}"
    typer.echo(f"Next: capedjica run {shlex.quote(str(study))}{where}")
