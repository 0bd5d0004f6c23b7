"""``capedjica report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its unpacked results.zip.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; by default report.html in the folder.")
    ] = None,
) -> None:
    """Write the report of a complete run: one page for a browser, to be read by anybody, without a network.

    It is made from what the run published; sites are not asked for anything.
    """
    from capedjica.coordinator.run.report import REPORT, run_report

    path = out or run / REPORT
    run_report(run).save_as_html(path)
    typer.echo(f"Wrote {path}: open it in a browser.")
