"""Curves over epsilon and bars of seconds; series differ in colour, marker and dashes, so in grey too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.typing import LineStyleType

from benchmarks.utility.shared.runs import Cell
from capedjica.report.pictures.figures import COLOURS

USABLE: Final = 0.1
INK: Final = "#333333"
_MARKERS: Final = "osD^vPX*"
_DASHES: Final[dict[str, LineStyleType]] = {
    "cape": "-",
    "pooled": "--",
    "conventional": "-.",
    "local": (0, (1, 1)),
    "none": ":",
}
_MEANING: Final = {
    "cape": "sites that trust nobody (cape)",
    "pooled": "a trusted curator",
    "conventional": "noise of each site",
    "local": "one site alone",
    "none": "no privacy",
}
PLAIN: Final = FuncFormatter(lambda number, _: f"{number:g}")


def epsilon_figure(
    cells: Sequence[Cell], title: str, label: Callable[[Cell], str], meaning: bool = True
) -> Figure:
    """Draw the gain index and the correlation of maps over epsilon, one colour and marker for each label.

    The dashes tell the mechanism, in a legend of their own if ``meaning``; what was found without privacy is
    a dotted line across.
    """
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK)
    left, right = figure.subplots(1, 2)
    draw_series(left, cells, label, lambda cell: (cell.gain_index, cell.gain_error))
    draw_series(right, cells, label, lambda cell: (cell.map_correlation, cell.map_error))
    mark_usable(left)
    right.set(ylabel="correlation of matched maps (1 is perfect)", ylim=(None, 1.005))
    handles = [*left.get_legend_handles_labels()[0], *(_mechanisms(cells) if meaning else [])]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def draw_series(
    axis: Axes,
    cells: Sequence[Cell],
    label: Callable[[Cell], str],
    value: Callable[[Cell], tuple[float, float]],
) -> None:
    """Draw one line for each label and mechanism, with standard errors."""
    labels = list(dict.fromkeys(label(cell) for cell in cells))
    for number, name in enumerate(labels):
        own = [cell for cell in cells if label(cell) == name]
        style = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
        for mechanism in dict.fromkeys(cell.mechanism for cell in own):
            _draw_line(axis, [cell for cell in own if cell.mechanism == mechanism], value, style)
        axis.plot([], [], label=name, linewidth=1.5, markersize=4.5, **style)  # type: ignore[arg-type]
    epsilons = sorted({cell.epsilon for cell in cells if cell.epsilon is not None})
    axis.set(xlabel="total ε of all stages (δ = 1e-5)", xscale="log", xticks=epsilons)
    axis.xaxis.set_major_formatter(PLAIN)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.spines[["top", "right"]].set_visible(False)


def _draw_line(
    axis: Axes, cells: Sequence[Cell], value: Callable[[Cell], tuple[float, float]], style: dict[str, str]
) -> None:
    dashes = _DASHES[cells[0].mechanism]
    if cells[0].epsilon is None:
        axis.axhline(value(cells[0])[0], color=style["color"], linestyle=dashes, linewidth=1.0)
        return
    heights, errors = zip(*map(value, cells), strict=True)
    axis.errorbar(
        [cell.epsilon or 0.0 for cell in cells],
        heights,
        yerr=[0.0 if math.isnan(error) else error for error in errors],
        linestyle=dashes,
        linewidth=1.5,
        markersize=4.5,
        capsize=2,
        color=style["color"],
        marker=style["marker"],
    )


def mark_usable(axis: Axes) -> None:
    """Scale an axis of gain indices and mark where the paper calls maps usable."""
    axis.axhline(USABLE, color="#888888", linewidth=0.8)
    axis.set(ylabel="normalized gain index (0 is perfect)", yscale="log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(PLAIN)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.text(
        0.995,
        USABLE * 1.04,
        "usable below",
        transform=axis.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=7,
        color="#666666",
    )


def _mechanisms(cells: Sequence[Cell]) -> list[Line2D]:
    """Return what explains the dashes, where there are several."""
    used = dict.fromkeys(cell.mechanism for cell in cells)
    return [Line2D([], [], color=INK, linestyle=_DASHES[name], label=_MEANING[name]) for name in used]


def seconds_figure(cells: Sequence[Cell], title: str, label: Callable[[Cell], str]) -> Figure:
    """Draw the median seconds as bars, one group for each setting."""
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    counts = [sum(cell.setting == setting for cell in cells) for setting in settings]
    figure = Figure(figsize=(7.5, 1.2 + 0.42 * len(cells)), layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK)
    axes = figure.subplots(len(settings), 1, squeeze=False, gridspec_kw={"height_ratios": counts})[:, 0]
    for axis, setting in zip(axes, settings, strict=True):
        own = sorted((cell for cell in cells if cell.setting == setting), key=lambda cell: cell.seconds)
        _draw_bars(axis, own, label)
        axis.set_title(setting, fontsize=9, color=INK, loc="left")
    axes[-1].set_xlabel("seconds (median)")
    return figure


def _draw_bars(axis: Axes, cells: Sequence[Cell], label: Callable[[Cell], str]) -> None:
    ours = [cell.method.startswith("capedjica") for cell in cells]
    bars = axis.barh(
        [label(cell) for cell in cells],
        [cell.seconds for cell in cells],
        color=[COLOURS[0] if own else "#bbbbbb" for own in ours],
        edgecolor=INK,
        linewidth=0.6,
    )
    for bar, own in zip(bars, ours, strict=True):
        bar.set_hatch("" if own else "///")
    axis.bar_label(bars, [f" {cell.seconds:.3g} s" for cell in cells], fontsize=8)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)
