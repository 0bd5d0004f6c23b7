"""``capedjica sites``: all sites of a study at once, where they are folders of this machine."""

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

app = typer.Typer(help="All sites of a folder at once, for trials.", no_args_is_help=True)
SitesArgument = Annotated[Path, typer.Argument(metavar="SITES", help="The folder of the sites' folders.")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")]


@app.command()
def init(
    out: SitesArgument,
    data: Annotated[
        Path,
        typer.Option(
            help="The scans of all sites: a folder with participants.tsv (participant_id, site) and an .npz "
            "archive; nilearn's copy of ABIDE; or a folder with a folder of scans for each site."
        ),
    ],
    kind: Annotated[str, typer.Option(help="What the scans are, as for `capedjica site init`.")] = "auto",
    total_epsilon: Annotated[
        float, typer.Option(help="The most that all studies together may ever spend on one participant.")
    ] = 20.0,
    study_epsilon: Annotated[float, typer.Option(help="The most that any one study may spend.")] = 10.0,
    delta: Annotated[float, typer.Option(help="The delta of both limits.")] = 1e-5,
) -> None:
    """Make a site for each that a collection names.

    Each gets a key, limits and a ledger of its own, below SITES. Arrays of an archive are written out, one
    file for each participant; other scans stay where they are.
    """
    from capedjica.one_machine.many_sites import Limits, make_sites

    made = make_sites(out, data, Limits(total_epsilon, study_epsilon, delta), kind)
    for name, count in made.items():
        typer.echo(f"  {name:<24} {count:>6,} people")
    typer.echo(f"Made {counted(len(made), 'site')} with {sum(made.values()):,} people in {out}.")
    typer.echo(f"Next: capedjica sites enrol {shlex.quote(str(out))}")


@app.command()
def enrol(
    sites: SitesArgument,
    study: Annotated[Path | None, typer.Option("--study", help="The study.toml, or its folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace earlier enrolments.")] = False,
) -> None:
    """Fix who takes part, at every site."""
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
                typer.echo(f"{home.settings.name}, left out: {reason}")
    typer.echo(f"Enrolled {enrolled:,} people at {counted(len(homes), 'site')}.")
    where = shlex.quote(str(sites))
    typer.echo(f"Next: capedjica study new STUDY.toml --sites {where}")
    typer.echo(f"For a study.toml that exists: capedjica study add-site {where}/*/*.card --study STUDY.toml")


@app.command()
def approve(
    study: StudyArgument,
    sites: Annotated[
        Path | None,
        typer.Argument(metavar="[SITES]", help="Their folder; by default 'sites' beside the study."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
) -> None:
    """Approve a study for every site of it.

    On a terminal the question is asked first; elsewhere the command is the answer. If one of the sites cannot
    approve it, none does, and all that is in the way is listed.
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
        raise InputError("not approved; nothing changed")
    approve_all(homes, given)
    typer.echo(f"{counted(len(homes), 'site')} approved '{given.content.title}'.")
    where = "" if sites is None else f" --sites {shlex.quote(str(sites))}"
    typer.echo(f"Next: capedjica run {shlex.quote(str(study))}{where}")
