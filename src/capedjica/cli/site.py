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
