"""``capedjica ledger``: what was spent, and whether the record is sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capedjica.cli.options import JsonOption, SiteOption

app = typer.Typer(help="The site's record of everything that ever left.", no_args_is_help=True)


@app.command()
def show(site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """Show what each study has spent of its budget, and all together."""
    from capedjica.study.ledger_view import spending
    from capedjica.study.site_home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        rows = spending(ledger)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for index, column in enumerate(("study", "spent epsilon", "allowed", "delta", "releases", "given up")):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        style = "bold" if row["study"] is None else ""
        table.add_row(
            Text(f"{row['title']} (revoked)" if row["revoked"] else row["title"]),
            str(row["epsilon_text"]),
            f"{row['allowed']:g}",
            f"{row['delta']:.3g}",
            str(row["releases"]),
            str(row["aborted"]),
            style=style,
        )
    Console(highlight=False).print(table)


@app.command()
def verify(site: SiteOption = Path(".")) -> None:
    """Check every entry, every stored message and the signed head; say what is wrong, if anything is."""
    from capedjica.study.site_home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        count = ledger.verify_chain()
    typer.echo(f"The ledger is sound: {count} entries, each linked to the one before, and the head matches.")


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    site: SiteOption = Path("."),
    messages: Annotated[bool, typer.Option(help="Include the messages as they left.")] = False,
) -> None:
    """Write the whole ledger to one JSON file that a person can open."""
    from capedjica.study.site_home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        ledger.export(path, messages=messages)
    typer.echo(f"Wrote {path}.")
