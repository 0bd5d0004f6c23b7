"""SVG charts in the colours of the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from capedjica.report.pictures.figures import COLOURS
from capedjica.report.pictures.slices import SIGNED
from capedjica.tools.arrays import FloatArray

# Placeholders for colours defined by the page.
_INK: Final = "#010203"
_ACCENT: Final = "#010204"
_FAINT: Final = "#010205"
_THEME: Final = {_INK: "currentColor", _ACCENT: "var(--accent)", _FAINT: "var(--faint)"}
_DASHES: Final = ("-", "--", ":", "-.")
# Longer names of rows and columns are truncated; the downloadable numbers have the full names.
_LONGEST_NAME: Final = 24


def bars(
    labels: Sequence[str], values: Sequence[float], axis_label: str, threshold: float | None = None
) -> str:
    """Draw values from 0 to 1 as bars; those below the threshold are hollow."""

    def plot(axis: Axes) -> None:
        low = [threshold is not None and value < threshold for value in values]
        faces = ["none" if hollow else _ACCENT for hollow in low]
        axis.bar(range(len(values)), values, color=faces, edgecolor=_ACCENT, width=0.7)
        axis.set_xticks(range(len(values)), labels)
        if threshold is not None:
            axis.axhline(threshold, color=_INK, linewidth=0.8, linestyle="--")
        axis.set(ylabel=axis_label, ylim=(0, 1))

    return _draw(plot, (7.2, 2.6))


def signed_bars(labels: Sequence[str], values: Sequence[float], axis_label: str) -> str:
    """Draw values of either sign as bars; labels are vertical if they are long or numerous."""
    longest = max(map(len, labels))
    upright = len(labels) * longest > 80

    def plot(axis: Axes) -> None:
        axis.bar(range(len(values)), values, color=_ACCENT, width=0.7)
        axis.set_xticks(range(len(values)), labels, rotation=90 if upright else 0)
        axis.axhline(0, color=_INK, linewidth=0.8)
        axis.set(ylabel=axis_label)

    return _draw(plot, (7.2, 2.6 + 0.07 * longest if upright else 2.6))


def lines(x: Sequence[int], curves: Mapping[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Draw curves that differ in colour and line style, on a logarithmic axis if values vary widely."""
    values = [value for curve in curves.values() for value in curve]
    steep = min(values) > 0 and max(values) > 30 * min(values)

    def plot(axis: Axes) -> None:
        for number, (label, curve) in enumerate(curves.items()):
            colour = _ACCENT if number == 0 else COLOURS[number % len(COLOURS)]
            axis.plot(x, curve, _DASHES[number % len(_DASHES)], color=colour, label=label, linewidth=1.6)
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if steep:
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, 1.05 * max(values))
        axis.legend(frameon=False, fontsize=9, labelcolor=_INK)

    return _draw(plot, (7.2, 2.9))


def forest(
    labels: Sequence[str],
    effects: Sequence[float],
    intervals: FloatArray,
    found: Sequence[bool],
    x_label: str,
) -> str:
    """Draw a forest plot of effects with their intervals (d, 2); points of ``found`` effects are filled."""

    def plot(axis: Axes) -> None:
        for place, (effect, (low, high), is_found) in enumerate(zip(effects, intervals, found, strict=True)):
            axis.plot([low, high], [place, place], color=_ACCENT if is_found else _INK, linewidth=1.2)
            face = _ACCENT if is_found else "none"
            axis.plot(effect, place, "o", markerfacecolor=face, markeredgecolor=_ACCENT, markersize=6)
        axis.axvline(0, color=_INK, linewidth=0.8, linestyle="--")
        axis.set_yticks(range(len(labels)), labels)
        axis.set(xlabel=x_label, ylim=(len(labels) - 0.5, -0.5))

    return _draw(plot, (7.2, 0.9 + 0.24 * len(labels)))


def profile(values: FloatArray, x_label: str, y_label: str, faded: bool = False) -> str:
    """Draw one value per feature as a step plot."""

    def plot(axis: Axes) -> None:
        places = np.arange(1, len(values) + 1)
        axis.fill_between(places, values, step="mid", color=_FAINT if faded else _ACCENT, linewidth=0)
        axis.axhline(0, color=_INK, linewidth=0.6)
        axis.set(xlabel=x_label, ylabel=y_label, ylim=(-1.05, 1.05), xlim=(0.5, len(values) + 0.5))

    return _draw(plot, (7.2, 1.5))


def spread(
    x: FloatArray, low: FloatArray, middle: FloatArray, high: FloatArray, labels: tuple[str, str]
) -> str:
    """Draw a curve with a band from ``low`` to ``high``."""

    def plot(axis: Axes) -> None:
        axis.fill_between(x, low, high, color=_FAINT, linewidth=0)
        axis.plot(x, middle, color=_ACCENT, linewidth=1.6)
        axis.set(xlabel=labels[0], ylabel=labels[1], yscale="log")

    return _draw(plot, (3.4, 2.2))


def matrix(
    values: FloatArray,
    names: Sequence[str],
    label: str,
    limit: float | None = None,
    found: NDArray[np.bool_] | None = None,
) -> str:
    """Draw a matrix with the names of its rows and columns, and a colour bar from -limit to limit.

    The default limit is the largest absolute value. NaN entries are empty; ``found`` entries have a dot.
    """
    written = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    limit = limit or float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    words = 0.06 * max(map(len, written))
    side = min(6.0, max(2.4, 0.16 * len(values)))
    size = min(9.0, max(3.5, 110 * side / (2.2 * len(values))))

    def plot(axis: Axes) -> None:
        edges, places = np.arange(len(values) + 1) - 0.5, range(len(values))
        # A mesh is a vector drawing; an embedded raster image would be blurred in print.
        mesh = axis.pcolormesh(edges, edges, values, cmap=SIGNED, vmin=-limit, vmax=limit)
        if found is not None:
            rows, columns = np.nonzero(found)
            axis.plot(columns, rows, "o", color="black", markeredgecolor="white", markersize=size / 2)
        # Names come from other parties: a dollar sign must not start a formula.
        axis.set_xticks(places, written, rotation=90, fontsize=size, parse_math=False)
        axis.set_yticks(places, written, fontsize=size, parse_math=False)
        axis.tick_params(length=0)
        axis.set(ylim=(len(values) - 0.5, -0.5), aspect="equal")
        bar = axis.figure.colorbar(mesh, ax=axis, shrink=0.8, ticks=[-limit, 0, limit])
        bar.solids.set_rasterized(False)  # type: ignore[union-attr]
        bar.set_label(label)
        bar.outline.set_visible(False)

    return _draw(plot, (side + words + 1.0, side + words))


def _draw(plot: Callable[[Axes], None], size: tuple[float, float]) -> str:
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "capedjica",
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
        ),
        **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 9),
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axis = figure.subplots()
        plot(axis)
        axis.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue())


def _inline(svg: str) -> str:
    """Return an SVG for embedding in a page: without header and group ids, in the colours of the page."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    # The page determines the size; the view box preserves the aspect ratio.
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    drawing = drawing.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    for stand_in, colour in _THEME.items():
        drawing = drawing.replace(stand_in, colour)
    return drawing
