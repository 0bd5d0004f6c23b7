"""Figures of maps and of convergence, in colours safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capedjica.algorithms.reliability import Reliability
from capedjica.report.pictures.slices import FADED, SLICES, axial, over_brain, square
from capedjica.tools.arrays import FloatArray
from capedjica.tools.atomic_files import whole_file

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

# Okabe and Ito 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_INK = "#333333"


def maps_figure(
    rows: Mapping[str, FloatArray],
    title: str,
    reliability: Reliability | None = None,
    names: Sequence[str] = (),
) -> Figure:
    """Show maps (R, height, width) as images, with one row of images per key of ``rows``.

    The name and reliability of each map, if known, are shown above it. Unreliable maps are faded.
    """
    n_maps = len(next(iter(rows.values())))
    figure = Figure(figsize=(1.0 + 0.95 * n_maps, 0.9 + 1.05 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=12, color=_INK)
    axes = figure.subplots(len(rows), n_maps, squeeze=False)
    for line, (label, images) in zip(axes, rows.items(), strict=True):
        for number, (axis, image) in enumerate(zip(line, images, strict=True)):
            faded = reliability is not None and reliability.poor(number)
            axis.imshow(square(image, faded), interpolation="nearest")
            words = [f"{number + 1}: {one}" for one in names[number : number + 1]]
            if reliability is not None and (said := reliability.mark(number).removeprefix("stability ")):
                words.append(said if words else f"{number + 1}: {said}")
            if words:
                shown = "\n".join(words)
                axis.set_title(shown, fontsize=6, color="#999999" if faded else _INK, pad=3)
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set(linewidth=0.4, color="#aaaaaa")
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9, color=_INK)
    return figure


def slices_figure(
    image: Nifti1Image,
    title: str,
    reliability: Reliability | None = None,
    names: Sequence[str] = (),
    approximate: bool = False,
) -> Figure:
    """Show axial slices of every map of a 4-D image over the brain template, one row per map.

    The left of the brain is on the left. Unreliable maps are faded. A line below states whether the borders
    of regions are approximate.
    """
    rows = axial(image)
    figure = Figure(figsize=(1.05 * len(SLICES), 0.9 + 1.22 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=12, color=_INK)
    for number, (axis, values) in enumerate(
        zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True)
    ):
        faded = reliability is not None and reliability.poor(number)
        caption = ": ".join([f"{number + 1}", *names[number : number + 1]])
        if reliability is not None and (said := reliability.mark(number)):
            caption += f"{',' if names else ':'} {said}"
        axis.imshow(over_brain(values, faded))
        axis.set(xticks=[], yticks=[], frame_on=False)
        axis.set_title(caption, fontsize=8, color=_INK, loc="left", pad=2)
    middles = (np.arange(len(SLICES)) + 0.5) * rows[0].shape[1] / len(SLICES)
    axis.set_xticks(middles, [f"L    z = {height}    R" for height in SLICES], fontsize=7, color=_INK)
    axis.tick_params(length=0)
    axis.set_xlabel(
        "MNI space, mm above the anterior commissure; neurological convention: L is left, R is right"
        + "\nborders of regions are approximate" * approximate,
        fontsize=7,
        color=_INK,
    )
    return figure


def profiles_figure(
    maps: FloatArray, title: str, reliability: Reliability | None = None, names: Sequence[str] = ()
) -> Figure:
    """Show maps (R, D) as feature profiles, one row per map; unreliable maps are faded."""
    figure = Figure(figsize=(7.5, 0.9 + 1.0 * len(maps)), layout="constrained")
    figure.suptitle(title, fontsize=12, color=_INK)
    axes = figure.subplots(len(maps), squeeze=False, sharex=True)[:, 0]
    for number, (axis, values) in enumerate(zip(axes, maps, strict=True)):
        faded = reliability is not None and reliability.poor(number)
        places = np.arange(1, len(values) + 1)
        axis.fill_between(
            places, values, step="mid", color=COLOURS[0], alpha=FADED if faded else 1, linewidth=0
        )
        axis.axhline(0, color=_INK, linewidth=0.6)
        said = "" if reliability is None else reliability.mark(number)
        caption = ", ".join(part for part in (*names[number : number + 1], said) if part)
        axis.set_title(
            f"{number + 1}{': ' * bool(caption)}{caption}", fontsize=8, color=_INK, loc="left", pad=2
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("feature", fontsize=8, color=_INK)
    return figure


def convergence_figure(
    curves: Mapping[str, Sequence[float]], spent: Sequence[float], usable: float = 0.1
) -> Figure:
    """Show the gain index of several runs by iteration, and the epsilon spent by the first run."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axis = figure.subplots()
    for colour, (label, values) in zip(COLOURS, curves.items(), strict=False):
        axis.plot(np.arange(1, len(values) + 1), values, color=colour, label=label, linewidth=1.8)
    axis.axhline(usable, color="#888888", linewidth=0.8, linestyle="--")
    longest = max(map(len, curves.values()))
    axis.annotate(
        "usable below this line",
        (longest, usable),
        textcoords="offset points",
        xytext=(0, -10),
        ha="right",
        fontsize=8,
        color="#666666",
    )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="iteration", ylabel="gain index (0 is perfect)", yscale="log")
    second = axis.twinx()
    second.plot(np.arange(1, len(spent) + 1), spent, color=_INK, linestyle=":", linewidth=1.2)
    second.set_ylabel("cumulative epsilon spent (dotted)", color=_INK)
    second.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9)
    axis.spines["top"].set_visible(False)
    second.spines["top"].set_visible(False)
    return figure


def draw(figure: Figure, file: IO[bytes]) -> None:
    """Write a figure as PNG to an open file."""
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", dpi=150)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, atomically."""
    with whole_file(path) as file:
        draw(figure, file)
