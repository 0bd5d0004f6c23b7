"""``capedjica status``: the sites and the progress of a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from capedjica.cli.options import JsonOption, need_flare

if TYPE_CHECKING:
    from capedjica.study.study_file import Study

_EVERY_SECONDS = 1.0


def status(
    study: Annotated[
        Path, typer.Argument(metavar="[STUDY]", help="The study.toml, its folder, or the folder of a run.")
    ] = Path("."),
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default 'run' next to the study.toml.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update the display until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the status of a run.

    Shows connected sites, the current stage and the epsilon spent so far.
    Exit codes for scripts: 0 complete, 10 not sealed or not started, 11 running, 12 stopped.
    """
    given, run = _placed(study, out)
    look = _looker(given, run)
    facts = look(given, run)
    console = Console(highlight=False)
    if as_json and watch:
        # One line for each change.
        typer.echo(json.dumps(facts))
        while facts["state"] not in ("complete",):
            sys.stdout.flush()
            time.sleep(_EVERY_SECONDS)
            before, facts = facts, look(given, run)
            if facts != before:
                typer.echo(json.dumps(facts))
    elif as_json:
        typer.echo(json.dumps(facts, indent=2))
    elif watch:
        with Live(_view(facts), console=console, auto_refresh=False) as live:
            while facts["state"] in ("not begun", "running"):
                time.sleep(_EVERY_SECONDS)
                facts = look(given, run)
                live.update(_view(facts), refresh=True)
    else:
        console.print(_view(facts))
    raise typer.Exit({"complete": 0, "running": 11, "stopped": 12}.get(facts["state"], 10))


def _placed(path: Path, out: Path | None) -> tuple[Study, Path]:
    """Return a study and the folder of its run, given the study or the run."""
    from capedjica.coordinator.drafts import sealed_path
    from capedjica.study.study_file import Study

    study = Study.load(path)
    if out is not None or not (path / "run.json").exists():
        return study, out or (path if path.is_dir() else path.parent) / "run"
    above = path.resolve().parent
    # The kits, and with them the server, are next to the coordinator's own study.toml.
    beside = Study.load(above) if sealed_path(above).exists() else study
    return beside if beside.hash == study.hash else study, path


def _looker(study: Study, run: Path) -> Callable[[Study, Path], dict[str, Any]]:
    """Return the status function for a run on this machine or, if the study is sealed, on several."""
    from capedjica.coordinator.drafts import sealed_path
    from capedjica.coordinator.run import run_status

    begun, by_a_server = ((run / name).exists() for name in ("run.json", "progress.json"))
    if not by_a_server and (begun or not sealed_path(study.folder).exists()):
        return run_status.look
    need_flare()
    from capedjica.coordinator.flare.status import look

    return look


def sites_table(sites: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the sites: participants, connection, approval and problems."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("site", "participants", "connected", "approved", "problem"):
        table.add_column(column)
    for site in sites:
        table.add_row(
            Text(site["name"]),
            f"{site['enrolled']:,}",
            "yes" if site["connected"] else "no",
            # A site that does not answer may have approved nevertheless; its reason is private.
            "yes" if site["approved"] else "?",
            Text(site["lost"] or "-"),
        )
    return table


def _site_words(site: Mapping[str, Any]) -> Text:
    words = f"{site['enrolled']:,} enrolled; {site['words']}"
    return Text(words, style="" if site["connected"] else "yellow")


def _view(facts: dict[str, Any]) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row("study", Text(facts["title"]))
    table.add_row("server", Text(facts["server"]))
    for site in facts["sites"]:
        table.add_row(f"site {site['name']}", _site_words(site))
    table.add_row("run", Text(facts["words"]))
    if facts["n_done"]:
        table.add_row("releases", Text(f"{facts['n_done']} of at most {facts['n_total']}"))
        table.add_row("epsilon", Text(f"{facts['epsilon']} spent so far"))
    for warning in facts["warnings"]:
        table.add_row("warning", Text(warning, style="yellow"))
    return Group(table)
