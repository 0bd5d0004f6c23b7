"""Table, page and figure of a dimension, and the table of all exponents in the documentation."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from benchmarks.framework import machine
from benchmarks.scale.dimensions import DIMENSIONS, Dimension
from benchmarks.scale.growth import FITTED, Fit, fit
from benchmarks.scale.measuring import Row
from benchmarks.utility.shared.figures import INK, PLAIN
from benchmarks.utility.shared.report import markdown, write_figure
from capedjica.errors import InputError
from capedjica.report.pictures.figures import COLOURS

# Around the table in the documentation.
BEGIN: Final = "<!-- table -->"
END: Final = "<!-- end of table -->"
_PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))


def fits(rows: Sequence[Row], dimension: Dimension) -> list[Fit]:
    """Fit all exponents of a dimension."""
    return [fit(rows, theory) for theory in dimension.theory]


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write every run as soon as it has finished: the last may take many minutes."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _text(value) for key, value in asdict(row).items()})
            file.flush()


def _text(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:.0f}"


def read_csv(path: Path) -> list[Row]:
    """Read the runs of an earlier measurement."""
    if not path.exists():
        raise InputError(f"there is no {path} to draw from: run the benchmark without --redraw")
    with open(path, newline="", encoding="utf-8") as file:
        return msgspec.convert(list(csv.DictReader(file)), list[Row], strict=False)


def shown(value: float, unit: str) -> str:
    """Write a number with three digits and its unit."""
    factor, prefix = next((one for one in _PREFIXES if abs(value) >= one[0]), _PREFIXES[-1])
    scaled = f"{value / factor:.3g}" if unit == "B" or value < 1 else f"{value:.3g}"
    return f"{scaled} {prefix}{unit}" if unit == "B" or value < 1 else f"{scaled} {unit}"


def measurements(found: Sequence[Fit], axis: str) -> str:
    """Return a table with a line for each size."""
    headings = [axis, *(one.theory.quantity.name for one in found)]
    lines = [
        [f"{size:,}", *(shown(one.values[place], one.theory.quantity.unit) for one in found)]
        for place, size in enumerate(found[0].sizes)
    ]
    return markdown([headings, ["---"] * len(headings), *lines])


def exponents(found: Mapping[str, Sequence[Fit]]) -> str:
    """Return a table with a line for each dimension and quantity."""
    headings = ["dimension", "quantity", "largest", "fitted", "theory", "because", "verdict"]
    lines = [
        [
            name,
            one.theory.quantity.name,
            f"{shown(one.values[-1], one.theory.quantity.unit)} at {one.sizes[-1]:,}",
            f"{one.exponent:.2f} ± {one.error:.2f}",
            str(one.theory),
            one.theory.why,
            one.verdict,
        ]
        for name, own in found.items()
        for one in own
    ]
    return markdown([headings, ["---"] * len(headings), *lines])


def write_page(path: Path, name: str, rows: Sequence[Row], command: str, origin: str) -> None:
    """Write the page and the figure of a dimension beside its CSV."""
    dimension, facts = DIMENSIONS[name], machine()
    found = fits(rows, dimension)
    write_figure(path, draw(found, dimension))
    loads = [row.load for row in rows]
    path.with_suffix(".md").write_text(
        f"# {dimension.title}\n\n{dimension.setting} Each size runs in a fresh process; memory is its peak "
        "minus what it had before, with everything loaded and compiled. Processor time counts all threads; "
        f"of several runs, the least counts. Exponents are fitted to the {FITTED} largest sizes, with "
        f"standard errors.\n\n[Figure]({path.stem}.svg), [every run]({path.stem}.csv).\n\n"
        f"{exponents({name: found})}\n\n{measurements(found, dimension.axis)}\n\n"
        f"Made by `{command}`, {origin}, {facts['cpu']}, {facts['cores']} cores, load {min(loads):.1f} to "
        f"{max(loads):.1f} by other programs and this one. Absolute times depend on the load.\n",
        encoding="utf-8",
    )


def write_table(page: Path, found: Mapping[str, Sequence[Fit]]) -> None:
    """Replace the table of all exponents in a page of the documentation."""
    before, rest = page.read_text(encoding="utf-8").split(f"{BEGIN}\n")
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{exponents(found)}\n\n{END}{after}", encoding="utf-8")


def draw(found: Sequence[Fit], dimension: Dimension) -> Figure:
    """Draw time, memory and bytes over the size, with the fitted lines."""
    groups = [[one for one in found if one.theory.quantity.unit == "s"]]
    groups += [[one for one in found if one.theory.quantity.name == "memory"]]
    groups += [[one for one in found if "bytes" in one.theory.quantity.name]]
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    figure.suptitle(dimension.title, fontsize=11, color=INK)
    for axis, own, label in zip(
        figure.subplots(1, 3), groups, ("processor time [s]", "memory [MB]", "bytes sent [MB]"), strict=True
    ):
        _draw_fits(axis, own, 1.0 if label.endswith("[s]") else 1e6)
        axis.set(xlabel=dimension.axis, ylabel=label)
        axis.set_xticks(found[0].sizes, [_short(size) for size in found[0].sizes])
    return figure


def _draw_fits(axis: Axes, found: Sequence[Fit], unit: float) -> None:
    for one, colour, marker in zip(found, COLOURS, "osD", strict=False):
        values = np.array(one.values) / unit
        label = f"{one.theory.quantity.name}:\n{one.exponent:.2f} ± {one.error:.2f}, in theory {one.theory}"
        axis.plot(one.sizes, values, marker, color=colour, markersize=5, label=label)
        fitted = np.array(one.sizes[-FITTED:], dtype=float)
        centre = np.exp(np.log(values[-FITTED:]).mean() - one.exponent * np.log(fitted).mean())
        axis.plot(fitted, centre * fitted**one.exponent, "-", color=colour, linewidth=1.2)
    every = np.concatenate([np.array(one.values) / unit for one in found])
    axis.set(xscale="log", yscale="log", ylim=(every.min() / 2, every.max() * 2))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_locator(
        LogLocator(subs=(1.0,) if every.max() > 50 * every.min() else (1.0, 2.0, 5.0))
    )
    axis.yaxis.set_major_formatter(PLAIN)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17))


def _short(size: int) -> str:
    return f"{size / 1000:g}k" if size >= 10_000 else f"{size:,}"
