"""The section of a report about an analysis that found tables, or maps of another kind than networks."""

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
    """A table as a page shows it: a chart, the first rows, and all of it as a file."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_out: int
    chart: Figure | None
    file: Download


@dataclass(frozen=True, eq=False)
class Section:
    """What one analysis found.

    Attributes
    ----------
    name, summary, article : str
        What it is called, what was computed, and the same as part of a sentence of an article.
    tables : sequence of ShownTable
        The numbers.
    components : sequence of Component
        Pictures of what has one number for each feature.
    paragraphs : sequence of str
        What is to be known of the numbers, in words.
    figures : sequence of Figure
        What shows several numbers at once.
    files : sequence of Download
        The same for programs.
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
    """Return the section of an analysis."""
    shown = [shown_table(one) for one in tables]
    if maps is None:
        return Section(name, summary, article, shown)
    return Section(name, summary, article, shown, components(maps), maps.look)


def shown_table(one: ResultTable) -> ShownTable:
    """Return a table as a page shows it."""
    file = table(f"{one.name}.csv", one.columns, one.rows)
    rows = [[_cell(value) for value in row] for row in one.rows[:_MOST_ROWS]]
    return ShownTable(one.caption, one.columns, rows, len(one.rows) - len(rows), _chart(one, file), file)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _chart(one: ResultTable, file: Download) -> Figure | None:
    """Draw the second column; nothing where there are too many bars to be told apart."""
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
