"""Report section of an analysis whose results are tables, or maps other than networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capedjica.algorithms.analysis import ResultTable
from capedjica.report.downloads import Download, Figure, table
from capedjica.report.maps import Component, MapSet, components
from capedjica.report.pictures import charts

_MOST_BARS: Final = 60
_MOST_ROWS: Final = 100


@dataclass(frozen=True, eq=False)
class ShownTable:
    """A table in a report: a chart, the first rows, and the whole table as a file."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_out: int
    chart: Figure | None
    file: Download


@dataclass(frozen=True, eq=False)
class Section:
    """Results of one analysis.

    Attributes
    ----------
    name, summary, article : str
        Its name, a summary of what was computed, and the same as part of a sentence for an article.
    tables : sequence of ShownTable
        Tables of results.
    components : sequence of Component
        Pictures of results with one number per feature.
    look : str
        How these pictures are shown (`MapSet.look`).
    paragraphs : sequence of str
        Text on how to read the results.
    figures : sequence of Figure
        Charts of the results.
    files : sequence of Download
        The results as machine-readable files.
    """

    name: str
    summary: str
    article: str
    tables: Sequence[ShownTable] = ()
    components: Sequence[Component] = ()
    look: str = ""
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    files: Sequence[Download] = ()


def section(
    name: str, summary: str, article: str, tables: Sequence[ResultTable], maps: MapSet | None
) -> Section:
    """Build the report section of an analysis."""
    shown = [shown_table(one) for one in tables]
    if maps is None:
        return Section(name, summary, article, shown)
    return Section(name, summary, article, shown, components(maps), maps.look)


def shown_table(one: ResultTable) -> ShownTable:
    """Return a table in the form shown in a report."""
    file = table(f"{one.name}.csv", one.columns, one.rows)
    rows = [[_cell(value) for value in row] for row in one.rows[:_MOST_ROWS]]
    return ShownTable(one.caption, one.columns, rows, len(one.rows) - len(rows), _chart(one, file), file)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _chart(one: ResultTable, file: Download) -> Figure | None:
    """Draw the second column as bars; return None if there are too many bars to read."""
    if one.chart != "bars" or not 0 < len(one.rows) <= _MOST_BARS:
        return None
    labels = [str(row[0]) for row in one.rows]
    values = [float(row[1]) for row in one.rows]
    if not all(map(math.isfinite, values)):
        return None
    said = ", ".join(f"{label}: {value:.3g}" for label, value in zip(labels, values, strict=True))
    return Figure(
        alt=f"{one.columns[1]} by {one.columns[0]}. {said}.",
        drawing=charts.signed_bars(labels, values, one.columns[1]),
        numbers=file,
    )
