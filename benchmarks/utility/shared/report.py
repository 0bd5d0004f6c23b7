"""Results of a benchmark: all rows as CSV, means as Markdown, a figure as PNG and SVG."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import msgspec
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.framework import ROOT, machine
from benchmarks.utility.shared.runs import Cell, Options, Row, Task
from capedjica.errors import InputError

RESULTS: Final = ROOT / "benchmarks" / "results"
Label = Callable[[Cell], str]


@dataclass(frozen=True)
class Claim:
    """A benchmark: what to run, and what to say about it.

    Parameters
    ----------
    title : str
        One line.
    tasks : callable
        The work, given the options.
    summary : callable
        Two sentences or so, from the means.
    figure : callable
        The figure, from the means.
    label : callable
        Name of the series a cell belongs to, for the table.
    timed : bool
        Whether it is about time: then nothing runs beside it, and the table shows seconds.
    needs_folder : bool
        Whether it reads data from a folder.
    tables : callable, optional
        The tables, from the means, where they are not one of gain indices and one of correlations.
    seeds : int
        Data sets, or repetitions, unless the command line says otherwise.
    maps_first : bool
        Whether there is one table of correlations, each with the gain index beside it.
    """

    title: str
    tasks: Callable[[Options], list[Task]]
    summary: Callable[[Sequence[Cell]], str]
    figure: Callable[[Sequence[Cell]], Figure]
    label: Label
    timed: bool = False
    needs_folder: bool = False
    tables: Callable[[Sequence[Cell]], str] | None = None
    seeds: int = 5
    maps_first: bool = False


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows({key: _text(value) for key, value in asdict(row).items()} for row in rows)


def read_csv(path: Path) -> list[Row]:
    """Read the rows of an earlier run."""
    if not path.exists():
        raise InputError(f"there is no {path} to draw from: run the benchmark without --redraw")
    with open(path, newline="", encoding="utf-8") as file:
        lines = [{name: text or None for name, text in line.items()} for line in csv.DictReader(file)]
    return msgspec.convert(lines, list[Row], strict=False)


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def write_markdown(path: Path, claim: Claim, cells: Sequence[Cell], command: str, origin: str) -> None:
    """Write the means, with how they were made and what they show."""
    facts = machine()
    load = f", load {facts['load']}" if claim.timed else ""
    made_by = f"`{command}`, {origin}, {facts['cpu']}, {facts['cores']} cores{load}"
    tables = _all_tables(claim, cells)
    files = f"[Figure]({path.stem}.svg), [every run]({path.stem}.csv)."
    path.write_text(
        f"# {claim.title}\n\n{claim.summary(cells)}\n\n{files}\n\n{tables}\n\nMade by {made_by}. δ = 1e-5; "
        "every stage is accounted for exactly, on the real protocol, against an aggregator with "
        "max(1, ⌈S/3⌉ - 1) colluding sites. Noise is drawn afresh by each run: figures change within their "
        "standard errors.\n",
        encoding="utf-8",
    )


def _all_tables(claim: Claim, cells: Sequence[Cell]) -> str:
    if claim.tables is not None:
        return claim.tables(cells)
    if claim.maps_first:
        return score_lines(claim.label, cells)
    return _timing_table(claim, cells) if claim.timed else _tables(claim, cells)


def _tables(claim: Claim, cells: Sequence[Cell]) -> str:
    gains = table(claim.label, cells, lambda cell: plus_minus(cell.gain_index, cell.gain_error, 4))
    maps = table(claim.label, cells, lambda cell: plus_minus(cell.map_correlation, cell.map_error, 3))
    return (
        f"Gain index (0 is perfect), mean ± standard error of {_runs(cells)} runs, by total ε:\n\n{gains}\n\n"
        f"Correlation of matched maps (1 is perfect):\n\n{maps}"
    )


def score_lines(label: Label, cells: Sequence[Cell]) -> str:
    """Return correlations of maps and gain indices, one line for each series."""
    return (
        "Correlation of matched maps (1 is perfect) / gain index (0 is perfect), mean ± standard error of "
        f"{_runs(cells)} runs:\n\n{table(label, cells, both)}"
    )


def both(cell: Cell) -> str:
    """Write the correlation of maps and, beside it, the gain index."""
    maps = plus_minus(cell.map_correlation, cell.map_error, 3)
    return f"{maps} / {plus_minus(cell.gain_index, cell.gain_error, 4)}"


def _runs(cells: Sequence[Cell]) -> str:
    """Say how many runs means are of."""
    count = {cell.n_rows for cell in cells}
    return f"{min(count)}" if len(count) == 1 else f"{min(count)} to {max(count)}"


def table(label: Label, cells: Sequence[Cell], shown: Callable[[Cell], str]) -> str:
    """Return a line for each label, and what is shown of it by epsilon."""
    epsilons = sorted({cell.epsilon for cell in cells if cell.epsilon is not None})
    columns: list[float | None] = [
        *epsilons,
        *([None] if any(cell.epsilon is None for cell in cells) else []),
    ]
    headings = ["", *("no privacy" if epsilon is None else f"ε = {epsilon:g}" for epsilon in columns)]
    values = {(label(cell), cell.epsilon): shown(cell) for cell in cells}
    lines = [
        [name, *(values.get((name, epsilon), "") for epsilon in columns)]
        for name in dict.fromkeys(map(label, cells))
    ]
    return markdown([headings, ["---"] * len(headings), *lines])


def _timing_table(claim: Claim, cells: Sequence[Cell]) -> str:
    headings = ["", "seconds (median)", "iterations", "gain index", "runs"]
    lines = [
        [
            claim.label(cell),
            f"{cell.seconds:.3g}",
            f"{cell.n_iter:.0f}",
            f"{cell.gain_index:.4f}",
            str(cell.n_rows),
        ]
        for cell in cells
    ]
    return markdown([headings, ["---"] * len(headings), *lines])


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of a table, the first its headings."""
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plus_minus(value: float, error: float, digits: int) -> str:
    """Write a value with its standard error, if there is one."""
    return f"{value:.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG and as SVG."""
    FigureCanvasAgg(figure)
    figure.savefig(path.with_suffix(".png"), dpi=200)
    with rc_context({"svg.hashsalt": "capedjica", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
