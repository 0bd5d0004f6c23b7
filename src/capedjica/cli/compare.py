"""``capedjica compare``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capedjica.cli.options import JsonOption


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    truth: Annotated[
        Path | None, typer.Option(help="The true mixing matrix (.npy, features by components), if known.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put complete runs side by side: quality, cost and time.

    With --truth, quality is the gain index (0 is perfect) and the correlation of matched maps with the true
    ones; without, the correlation with the maps of the first run.
    """
    from capedjica.privacy.statement import round_up
    from capedjica.study.comparison import compare_runs

    rows = compare_runs(runs, truth)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table(box=None, header_style="dim", padding=(0, 2), pad_edge=False)
    against = "the truth" if truth else "the first"
    columns = ["run", "method", "mechanism", "epsilon", "gain index", "maps like", "worst map", "time"]
    for index, column in enumerate(columns):
        table.add_column(
            column if column != "maps like" else f"maps like {against}",
            justify="left" if index < 3 else "right",
            no_wrap=index != 0,
        )
    for row in rows:
        table.add_row(
            row.run,
            row.method,
            row.mechanism,
            round_up(row.epsilon) if row.private else "not private",
            "–" if row.gain_index is None else f"{row.gain_index:.3f}",
            f"{row.map_correlation:.3f}",
            f"{row.worst_map:.3f}",
            f"{row.seconds:.0f} s",
        )
    Console(highlight=False).print(table)
