"""``capedjica site``: for the data manager of a hospital."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from capedjica.cli.options import JsonOption, SiteOption

app = typer.Typer(
    help="A hospital's own side: its identity, its limits, and what left.", no_args_is_help=True
)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The name this site goes by in studies.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where to keep its files; by default ./NAME.")
    ] = None,
    total_epsilon: Annotated[
        float, typer.Option(help="The most that all studies together may ever spend on one subject.")
    ] = 10.0,
    study_epsilon: Annotated[float, typer.Option(help="The most that any one study may spend.")] = 2.0,
    delta: Annotated[float, typer.Option(help="The delta of both limits.")] = 1e-5,
) -> None:
    """Make a site: a private key that never leaves, a site.toml with its limits, and a card for its peers."""
    from capedjica.study.site_home import SiteHome

    home = SiteHome.create(folder or Path(name), name, total_epsilon, study_epsilon, delta)
    card = home.card()
    typer.echo(f"Made {home.folder / 'site.toml'}. Read it, and change what you want to be different.")
    typer.echo(f"Card, to be given to the coordinator:\n  {card.card}")
    typer.echo(f"Fingerprint, to be compared by voice:\n  {card.fingerprint}")


@app.command()
def approve(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    site: SiteOption = Path("."),
) -> None:
    """Approve a study as it is, for what it asks; a study that is changed afterwards is refused."""
    from capedjica.study import participation
    from capedjica.study.site_home import SiteHome
    from capedjica.study.study_file import Study

    home, given = SiteHome.load(site), Study.load(study)
    participation.approve(home, given)
    cost = given.contract.cap(home.settings.name) if given.contract.protects else "NO privacy"
    typer.echo(f"Site {home.settings.name} approved '{given.content.title}' for {cost}.")
    typer.echo(f"Its hash, to be compared with the others:\n  {given.hash.hex()}")


@app.command()
def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    site: SiteOption = Path("."),
) -> None:
    """Look at every scan, the limits and the approval, and list all that keeps this site from taking part."""
    from capedjica.errors import InputError
    from capedjica.study.participation import problems
    from capedjica.study.site_home import SiteHome
    from capedjica.study.study_file import Study
    from capedjica.study.toml import listed

    home, given = SiteHome.load(site), Study.load(study)
    found = problems(home, given)
    if found:
        raise InputError(listed(f"not ready for '{given.content.title}'", found))
    enrolled = given.contract.enrolled[home.settings.name]
    typer.echo(f"Site {home.settings.name} is ready: {enrolled} scans, all readable; approved, affordable.")


@app.command()
def outbox(site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """List everything that ever left this site, in plain words."""
    from capedjica.study.ledger_view import messages_sent
    from capedjica.study.site_home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        rows = messages_sent(ledger)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(row["text"])
    typer.echo(f"{len(rows)} messages in all." if rows else "Nothing ever left this site.")
