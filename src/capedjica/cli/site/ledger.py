"""``capedjica ledger``: what was spent, and whether the record is sound."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capedjica.cli.options import JsonOption, SiteArgument, of_a_site
from capedjica.errors import InputError
from capedjica.tools.text import printable

app = typer.Typer(help="The site's record of all that was made from data and left.", no_args_is_help=True)


@app.command()
@of_a_site
def show(site: SiteArgument, as_json: JsonOption = False) -> None:
    """Show what each study has spent, and all together."""
    from capedjica.site.home import SiteHome
    from capedjica.site.ledger_view import spending, study_hashes

    home = SiteHome.load(site)
    rows: list[dict[str, Any]] = []
    if home.has_ledger:
        with home.open_ledger() as ledger:
            rows = spending(ledger, study_hashes(home))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(
            f"Site {home.settings.name} has no ledger yet: nothing made from anybody's data ever left. "
            "It begins with the first study that is approved."
        )
        return
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    columns = ("study", "protects each", "spent epsilon", "allowed", "delta", "releases", "given up")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        style = "bold" if row["study"] is None else ""
        table.add_row(
            Text(f"{row['title']} (revoked)" if row["revoked"] else row["title"]),
            "subject" if row["neighbour"] == "subject" else "time point",
            str(row["epsilon_text"]),
            # A study without privacy has no limit that its releases are held to.
            "–" if row["study"] is not None and row["epsilon"] is None else f"{row['allowed']:g}",
            f"{row['delta']:.3g}",
            str(row["releases"]),
            str(row["aborted"]),
            style=style,
        )
    Console(highlight=False).print(table)
    for row in rows:
        if row["study_hash"] is not None:
            typer.echo(f"Hash of {printable(row['title'])}: {row['study_hash']}")


@app.command()
@of_a_site
def verify(site: SiteArgument) -> None:
    """Check that the record is whole.

    Every entry, every stored message and the signed head; it is said what is wrong, if anything is.
    """
    from capedjica.site.home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        count = ledger.verify_chain()
    typer.echo(f"The ledger is sound: {count} entries, each linked to the one before, and the head matches.")


@app.command()
@of_a_site
def export(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    site: SiteArgument,
    messages: Annotated[bool, typer.Option(help="Include the messages as they left.")] = False,
) -> None:
    """Write the whole ledger to one JSON file."""
    from capedjica.site.home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        ledger.export(path, messages=messages)
    typer.echo(f"Wrote {path}.")


@app.command("rebuild-head")
@of_a_site
def rebuild_head(
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Rebuild it without being asked.")] = False,
) -> None:
    """Make the ledger's lost head again.

    Only when the file of the signed head is lost for good; the ledger records it.
    The head is what tells an older copy of the ledger from the latest. Only you can know that this is the
    latest one: if it is not, what was spent since would be forgotten, and spent once more.
    """
    from capedjica.privacy.ledger import LedgerError
    from capedjica.site.home import SiteHome

    home = SiteHome.load(site)
    try:
        home.open_ledger(must_exist=True).close()
    except LedgerError as error:
        # defence: a-head-is-made-again-on-demand-only
        if not yes:
            _ask_about(error)
    else:
        typer.echo(f"The head {home.head_path} is there and fits the ledger: nothing was done.")
        return
    with home.open_ledger(must_exist=True, rebuild_head=True) as ledger:
        count = ledger.verify_chain()
    typer.echo(f"The head was made again at entry {count}, which records it: {home.head_path}")


def _ask_about(error: Exception) -> None:
    """Let the person say that the ledger is the latest, or end."""
    if not sys.stdin.isatty():
        raise InputError(f"{error}; nothing was done: if this is the latest ledger, say so with --yes")
    typer.echo(f"{error}.", err=True)
    if not typer.confirm("Is this the latest ledger, restored from no backup?", default=False):
        typer.echo("Nothing was done.")
        raise typer.Exit(1)
