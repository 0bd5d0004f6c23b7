"""``capedjica report``, ``bids-export`` and ``compare``, for complete runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capedjica.cli.options import CsfOption, JsonOption, LabelNamesOption, LabelsOption, WhiteMatterOption

_LEGEND = "correlation: mean correlation of matched maps with {}; worst map: lowest of these correlations."


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its unpacked results.zip.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default report.html in the folder.")
    ] = None,
    labels: LabelsOption = None,
    label_names: LabelNamesOption = None,
    csf: CsfOption = None,
    white_matter: WhiteMatterOption = None,
    regions: Annotated[
        Path | None,
        typer.Option(help="For tables of regions: their image, or a table of their centres."),
    ] = None,
) -> None:
    """Write the report of a complete run as one HTML page.

    The page is public and loads no external resources.
    It is computed from published results, without any message to a site. Atlases for labels are not part of
    the study and have no privacy cost; labels are also written to labels.csv in the folder.
    """
    from capedjica.coordinator.run.labelling import LabelFiles, write_labels
    from capedjica.coordinator.run.report import REPORT, run_findings, run_report

    files = LabelFiles(labels, label_names, csf, white_matter)
    if files.given:
        run_findings(run, regions)  # raises if the run is not complete
        write_labels(run, files, regions)
    path = out or run / REPORT
    run_report(run, regions).save_as_html(path)
    typer.echo(f"Wrote {path}: open it in a browser.")


def bids_export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its unpacked results.zip.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to create.")],
    regions: Annotated[
        Path | None,
        typer.Option(help="For tables of regions: their image, or a table of their centres."),
    ] = None,
) -> None:
    """Write the results of a complete run as BIDS derivatives.

    Maps, tables and the report, with names as in the derivatives of other ICA tools. The sidecar of each
    file states the privacy guarantee. It is computed from published results, without any message to a site.
    """
    from capedjica.coordinator.run.bids_export import export_run

    names = export_run(run, out, regions)
    typer.echo(f"Wrote {out}: {len(names)} files of BIDS derivatives; {out / 'group.html'} is the report.")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    truth: Annotated[
        Path | None, typer.Option(help="True mixing matrix (.npy, features by components), if known.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with all matched maps.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the quality, cost and time of complete runs.

    With --truth, quality is the gain index (0 is perfect) and the correlation of matched maps with the true
    maps; without it, the correlation with the maps of the first run.
    """
    from capedjica.coordinator.run.comparison import compare_runs
    from capedjica.privacy.wording import NOT_PRIVATE, round_up
    from capedjica.tools.terminal import show_paragraph, show_table

    rows = compare_runs(runs, truth)
    if html is not None:
        from capedjica.coordinator.run.report import comparison_report

        comparison_report(runs, truth).save_as_html(html)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    columns = ["run", "method", "mechanism", "epsilon", "correlation", "worst map", "time"]
    cells = [
        [
            row.run,
            row.method,
            row.mechanism,
            NOT_PRIVATE if row.epsilon is None or not row.private else round_up(row.epsilon),
            f"{row.map_correlation:.3f}",
            f"{row.worst_map:.3f}",
            f"{row.seconds:.0f} s",
        ]
        for row in rows
    ]
    if truth:
        columns.insert(4, "gain index")
        for row, line in zip(rows, cells, strict=True):
            line.insert(4, f"{row.gain_index:.3f}")
    console = Console(highlight=False)
    for row in rows:
        if row.warning:
            show_paragraph(f"{row.run}: {row.warning}", console)
    show_table(columns, cells, console)
    show_paragraph(_LEGEND.format("the true maps" if truth else "those of the first run"), console, "dim")
