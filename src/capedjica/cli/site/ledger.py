"""``capedjica ledger``: show, verify and export the ledger of a site."""

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

app = typer.Typer(help="Show and verify a site's record of every release.", no_args_is_help=True)


@app.command()
@of_a_site
def show(site: SiteArgument, as_json: JsonOption = False) -> None:
    """Show the spending of each study and in total."""
    from capedjica.site.approval.copies import approved_copies
    from capedjica.site.home import SiteHome
    from capedjica.site.ledger_view import spending

    home = SiteHome.load(site)
    rows: list[dict[str, Any]] = []
    if home.has_ledger:
        with home.open_ledger() as ledger:
            rows = spending(ledger, approved_copies(home))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(
            f"Site {home.settings.name} has no ledger yet: nothing computed from participants' data has ever "
            "left it. The ledger is created when the first study is approved."
        )
        return
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    columns = ("study", "protects each", "spent epsilon", "allowed", "delta", "releases", "aborted")
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
    """Verify that the ledger is complete and unmodified.

    Checks every entry, every stored message and the signed head, and reports what is wrong.
    """
    from capedjica.site.home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        count = ledger.verify_chain()
    typer.echo(
        f"The ledger is valid: {count} entries, each linked to the previous one, and the head matches."
    )


@app.command()
@of_a_site
def export(
    path: Annotated[Path, typer.Argument(help="File to write.")],
    site: SiteArgument,
    messages: Annotated[bool, typer.Option(help="Include the messages as they were sent.")] = False,
) -> None:
    """Write the whole ledger to a JSON file."""
    from capedjica.site.home import SiteHome

    with SiteHome.load(site).open_ledger(must_exist=True) as ledger:
        ledger.export(path, messages=messages)
    typer.echo(f"Wrote {path}.")


@app.command("rebuild-head")
@of_a_site
def rebuild_head(
    site: SiteArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Rebuild the head without a prompt.")] = False,
) -> None:
    """Rebuild the lost head of the ledger.

    Use this only if the file of the signed head is lost permanently; the ledger records the rebuild.
    The head distinguishes the latest ledger from an outdated copy. Only you can know that this is the latest
    ledger: if it is not, later spending would be forgotten, and the same budget spent again.
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
        typer.echo(f"The head {home.head_path} exists and matches the ledger: nothing was done.")
        return
    with home.open_ledger(must_exist=True, rebuild_head=True) as ledger:
        count = ledger.verify_chain()
    typer.echo(f"The head was rebuilt at entry {count}, which records this: {home.head_path}")


def _ask_about(error: Exception) -> None:
    """Ask the user to confirm that the ledger is the latest one, or exit."""
    if not sys.stdin.isatty():
        raise InputError(f"{error}; nothing was done. If this is the latest ledger, confirm it with --yes")
    typer.echo(f"{error}.", err=True)
    if not typer.confirm("Is this the latest ledger, not restored from a backup?", default=False):
        typer.echo("Nothing was done.")
        raise typer.Exit(1)
