"""Comparison page of several analyses: methods, privacy cost, and maps next to those of a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capedjica.report.downloads import Figure, table
from capedjica.report.maps import MapSet, map_figures, maps_file
from capedjica.report.page import render
from capedjica.tools.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Entry:
    """One analysis in the comparison.

    Attributes
    ----------
    name, title, method, mechanism : str
        Its folder, title, method and mechanism.
    epsilon : float or None
        The guarantee; None if there is none.
    gain_index : float or None
        Gain index against the ground truth, if this is known.
    maps : MapSet
        Maps in the order and with the signs of the reference.
    correlations : array (R,)
        Correlation of each map with that of the reference.
    seconds : float
        Duration of the run.
    """

    name: str
    title: str
    method: str
    mechanism: str
    epsilon: float | None
    gain_index: float | None
    maps: MapSet
    correlations: FloatArray
    seconds: float


@dataclass(frozen=True)
class _Shown:
    """One map of one analysis."""

    name: str
    correlation: float | None
    reliable: bool
    figure: Figure


def comparison_page(entries: Sequence[Entry], truth: MapSet | None) -> str:
    """Return the comparison page; without a ground truth, the first analysis is the reference."""
    columns = [] if truth is None else [_column("the ground truth", truth, None)]
    columns += [_column(entry.name, entry.maps, entry.correlations) for entry in entries]
    header = ["map", *(entry.name for entry in entries)]
    rows = [
        [number + 1, *(float(entry.correlations[number]) for entry in entries)]
        for number in range(len(entries[0].maps))
    ]
    return render(
        "comparison.html.jinja",
        title="Comparison of analyses",
        entries=entries,
        reference="the ground truth" if truth is not None else entries[0].name,
        truth=truth is not None,
        look=entries[0].maps.look,
        files=[maps_file(entry.maps) for entry in entries],
        rows=list(zip(*columns, strict=True)),
        warnings=[(entry.name, said) for entry in entries if (said := entry.maps.reliability.banner)],
        numbers=table("correlations.csv", header, rows),
    )


def _column(name: str, maps: MapSet, correlations: FloatArray | None) -> list[_Shown]:
    return [
        _Shown(
            name, None if correlations is None else float(correlations[index]), not maps.faded(index), figure
        )
        for index, figure in enumerate(map_figures(maps))
    ]
