"""Spatial maps, true and recovered: ``python -m paper.spatial_maps``.

The paper's two figures of maps, on one synthetic data set:

- every algorithm beside the truth, at M = 1024;
- capeDJICA over (epsilon_i, M), as the paper runs it and tuned, with ``subject`` at small totals below.

A tile shows all R maps of an estimate, matched with the true ones and given their signs, each scaled to its
own largest value. Above it stands the mean correlation with the true maps, and the epsilon that it cost: the
exact one of the descent alone for capeDJICA and local DP-ICA, J T epsilon_i for DP-djICA, of everything for
``subject``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from capedjica.algorithms.ica.maps.networks import mixing_of
from capedjica.metrics import match_components
from paper.shared.common import Experiment, Finding, Options, Shared
from paper.shared.ica_runs import PAPER, TUNED, Analysis, Data, Descent, Djica, DpDjica, Recipe, Subject
from paper.shared.runs import Kept
from paper.shared.scores import (
    CAPE,
    CAPE_TUNED,
    DJICA,
    DP_DJICA,
    EPSILON_I,
    INK,
    LOCAL,
    QUICK_RECIPES,
    SEE_TUNING,
    SMALL,
    STRICT,
    TARGET_DELTA,
    accounts,
    algorithm,
    number,
)

FloatArray = NDArray[np.float64]
# From this mean correlation on, maps are called recovered.
RECOVERED: Final = 0.9
_GAP: Final = 1  # pixels between maps
# Brighter is larger, in print without colours too; few shades, so that files stay small.
_SHADES: Final = colormaps["cividis"].resampled(11)


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment; the last epsilon_i is that of the comparison of algorithms."""

    data: tuple[Data, ...]
    epsilons: tuple[float, ...]
    compared_epsilon: float
    subject_epsilons: tuple[float, ...]
    dp_iterations: int = 100
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


FULL: Final = Setting((Data(64), Data(256), Data(1024)), (0.5, 3.0, 30.0), 3.0, (2.0, 10.0))
QUICK: Final = Setting((replace(SMALL, n_subjects=24), SMALL), (1000.0,), 1000.0, (100.0,), 10, QUICK_RECIPES)


@dataclass(frozen=True)
class Row:
    """One line of the table: one tile."""

    algorithm: str
    n_subjects: int
    epsilon_i: float
    epsilon: float
    gain_index: float
    map_correlation: float
    worst_map_correlation: float
    exact_descent: float
    guarantee: float


def settings(options: Options) -> list[Setting]:
    """Return the small or the full setting."""
    return [QUICK if options.quick else FULL]


def compared(setting: Setting) -> list[Analysis]:
    """Return one run of every algorithm, with the most subjects."""
    data, epsilon = setting.data[-1], setting.compared_epsilon
    paper, tuned = setting.recipes
    return [
        Djica(data),
        Descent(data, epsilon, "local", paper),
        DpDjica(data, epsilon, setting.dp_iterations),
        Descent(data, epsilon, "cape", paper),
        Descent(data, epsilon, "cape", tuned),
        *(Subject(data, total) for total in setting.subject_epsilons),
    ]


def grid(setting: Setting) -> list[list[Analysis]]:
    """Return the lines of the second figure, one run for each number of subjects."""
    lines: list[list[Analysis]] = [
        [Descent(data, epsilon, "cape", recipe) for data in setting.data]
        for recipe in setting.recipes
        for epsilon in setting.epsilons
    ]
    lines += [[Subject(data, total) for data in setting.data] for total in setting.subject_epsilons]
    return lines


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs."""
    return list(dict.fromkeys([*compared(setting), *(run for line in grid(setting) for run in line)]))


def maps_of(run: Analysis, kept: Kept) -> tuple[FloatArray, FloatArray]:
    """Return the maps (R, side, side) in the order and with the signs of the true ones, and correlations."""
    true = run.mixing(kept).T
    estimated = mixing_of(kept.load(run).arrays["unmixing"].astype(np.float64)).T
    matching = match_components(estimated, true)
    ordered = matching.signs[:, np.newaxis] * estimated[matching.permutation]
    return _images(ordered), matching.correlations


def _images(maps: FloatArray) -> FloatArray:
    side = math.isqrt(maps.shape[1])
    return maps.reshape(len(maps), side, side)


def mosaic(maps: FloatArray) -> FloatArray:
    """Lay maps side by side, each scaled to its largest absolute value; NaN between them."""
    n_maps, side = maps.shape[:2]
    columns = math.ceil(math.sqrt(n_maps * 1.25))
    rows = math.ceil(n_maps / columns)
    step = side + _GAP
    canvas = np.full((rows * step - _GAP, columns * step - _GAP), np.nan)
    for place, image in enumerate(maps):
        top, left = (place // columns) * step, (place % columns) * step
        canvas[top : top + side, left : left + side] = image / (np.abs(image).max() or 1.0)
    return canvas


def measure(setting: Setting, kept: Kept) -> list[Row]:
    """Return one row for each tile."""
    return [_row(run, kept) for run in runs(setting)]


def _row(run: Analysis, kept: Kept) -> Row:
    numbers, correlations = kept.load(run).numbers, maps_of(run, kept)[1]
    spent = accounts(run, numbers, TARGET_DELTA)
    return Row(
        algorithm=algorithm(run),
        n_subjects=run.data.n_subjects,
        epsilon_i=getattr(run, "epsilon_i", math.nan),
        epsilon=getattr(run, "epsilon", math.nan),
        gain_index=numbers["gain_index"],
        map_correlation=float(correlations.mean()),
        worst_map_correlation=float(correlations.min()),
        exact_descent=spent.exact_descent,
        guarantee=spent.guarantee,
    )


def cost(row: Row) -> float:
    """Return the epsilon to show: of the descent where there is one, else of everything."""
    return row.guarantee if math.isnan(row.exact_descent) else row.exact_descent


def _tile(axis: Axes, maps: FloatArray, title: str) -> AxesImage:
    image = axis.imshow(mosaic(maps), cmap=_SHADES, vmin=-1, vmax=1, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=7, color=INK, pad=3)
    for spine in axis.spines.values():
        spine.set(linewidth=0.4, color="#aaaaaa")
    return image


def _words(row: Row) -> str:
    return f"correlation {row.map_correlation:.2f}, ε = {number(cost(row))} {_of_what(row)}".rstrip()


def _of_what(row: Row) -> str:
    """Say which epsilon :func:`cost` is."""
    if row.algorithm == DP_DJICA:
        return f"(J T {EPSILON_I})"
    if math.isfinite(row.exact_descent):
        return "(descent)"
    return "(all)" if math.isfinite(row.guarantee) else ""


def _draw_compared(part: SubFigure, setting: Setting, rows: dict[Analysis, Row], kept: Kept) -> None:
    chosen = compared(setting)
    axes = part.subplots(2, math.ceil((len(chosen) + 1) / 2)).ravel()
    for axis in axes:
        axis.set_axis_off()
    data, epsilon = setting.data[-1], setting.compared_epsilon
    part.suptitle(
        f"(a) M = {data.n_subjects:,}, {EPSILON_I} = {epsilon:g}; {_one_data_set(data)}; ε of a person, "
        f"exact for the descent alone or for all, J T {EPSILON_I} for DP-djICA",
        fontsize=9,
        color=INK,
    )
    truth = _images(chosen[0].mixing(kept).T)
    image = _tile(axes[0], truth, "true maps")
    axes[0].set_axis_on()
    bar = part.colorbar(image, ax=axes, shrink=0.6, aspect=30, ticks=(-1, 0, 1))
    bar.set_label("map, over its largest value", fontsize=8, color=INK)
    for axis, run in zip(axes[1:], chosen, strict=False):
        axis.set_axis_on()
        _tile(axis, maps_of(run, kept)[0], f"{rows[run].algorithm}\n{_words(rows[run])}")


def _draw_grid(part: SubFigure, setting: Setting, rows: dict[Analysis, Row], kept: Kept) -> None:
    lines = grid(setting)
    axes = part.subplots(len(setting.data), len(lines), squeeze=False)
    part.suptitle(
        f"(b) over {EPSILON_I} and M; {_one_data_set(setting.data[-1])}; correlation with the true maps, "
        "exact ε of the descent alone for capeDJICA, of all for subject",
        fontsize=9,
        color=INK,
    )
    for column, line in enumerate(lines):
        for axis, run in zip(axes[:, column], line, strict=True):
            row = rows[run]
            words = f"{row.map_correlation:.2f}, ε = {number(cost(row))}"
            if run is line[0]:
                words = f"{_head(row)}\n{words}"
            _tile(axis, maps_of(run, kept)[0], words)
    for axis, data in zip(axes[:, 0], setting.data, strict=True):
        axis.set_ylabel(f"M = {data.n_subjects:,}", fontsize=9, color=INK)


def _one_data_set(data: Data) -> str:
    return f"synthetic data set {data.repeat}, one run each"


def _head(row: Row) -> str:
    name = row.algorithm.partition(" (")[0]
    return name if math.isnan(row.epsilon_i) else f"{name}\n{EPSILON_I} = {row.epsilon_i:g}"


def draw(setting: Setting, kept: Kept) -> Figure:
    """Draw the comparison of algorithms above the grid."""
    rows = {run: _row(run, kept) for run in runs(setting)}
    figure = Figure(figsize=(11, 9.2), layout="constrained")
    parts = figure.subfigures(2, 1, height_ratios=(1, 1.05), squeeze=False)[:, 0]
    _draw_compared(parts[0], setting, rows, kept)
    _draw_grid(parts[1], setting, rows, kept)
    return figure


def findings(setting: Setting, rows: Sequence[Row]) -> list[Finding]:
    """Answer the paper's claims on maps."""
    most, epsilon = setting.data[-1].n_subjects, setting.compared_epsilon
    by = {row.algorithm: row for row in rows if row.n_subjects == most and row.epsilon_i in (epsilon,)}
    free = next(row for row in rows if row.algorithm == DJICA)
    cape, tuned, local, dp = by[CAPE], by[CAPE_TUNED], by[LOCAL], by[DP_DJICA]
    strict = [row for row in rows if cost(row) <= STRICT and row.map_correlation >= RECOVERED]
    cheap = [row for row in strict if row.algorithm in (CAPE, CAPE_TUNED)]
    return [
        Finding(
            "the maps recovered by capeDJICA are very close to the truth, almost those of djICA",
            f"mean correlation with the true maps at ε_i = {epsilon:g}, M = {most:,}: djICA "
            f"{free.map_correlation:.3f}, capeDJICA {cape.map_correlation:.3f}, tuned "
            f"{tuned.map_correlation:.3f}",
            _holds(cape.map_correlation, tuned.map_correlation),
        ),
        Finding(
            "the overall ε is also very small",
            f"exact ε of the descent {number(cape.exact_descent)}, tuned {number(tuned.exact_descent)}; with "
            f"the PCA and all iterations allowed {number(cape.guarantee)} and {number(tuned.guarantee)}",
            "yes" if cape.guarantee <= STRICT else "no",
        ),
        Finding(
            "local DP-ICA, although it can achieve a small ε, cannot recover the maps well enough",
            f"correlation {local.map_correlation:.3f} at an exact ε of {number(local.exact_descent)} for the "
            "descent alone",
            "no"
            if local.map_correlation >= RECOVERED
            else "yes"
            if local.exact_descent <= STRICT
            else "in part",
        ),
        Finding(
            "DP-djICA does not converge to anything meaningful",
            f"correlation {dp.map_correlation:.3f} after {setting.dp_iterations} iterations, one data set",
            "yes" if dp.map_correlation < RECOVERED else "no",
        ),
        _improves(setting, rows),
        Finding(
            "with enough subjects the maps resemble the true ones even for a strict guarantee",
            f"correlation of {RECOVERED:g} or more at an exact ε of at most {STRICT:g}: capeDJICA "
            f"{_list(cheap)}; what does is {_list([row for row in strict if row not in cheap])}",
            "yes" if cheap else "no",
        ),
    ]


def _holds(own: float, tuned: float) -> Literal["yes", "no", "in part"]:
    return "yes" if own >= RECOVERED else "in part" if tuned >= RECOVERED else "no"


def _improves(setting: Setting, rows: Sequence[Row]) -> Finding:
    texts, rises, good = [], [], []
    for name in (CAPE, CAPE_TUNED):
        own = [row for row in rows if row.algorithm == name and row.epsilon_i in setting.epsilons]
        least = min(own, key=lambda row: (row.n_subjects, row.epsilon_i))
        most = max(own, key=lambda row: (row.n_subjects, row.epsilon_i))
        rises.append(most.map_correlation - least.map_correlation > 0.05)
        good.append(most.map_correlation >= RECOVERED)
        texts.append(
            f"{name} {least.map_correlation:.2f} (M = {least.n_subjects:,}, ε_i = {least.epsilon_i:g}) to "
            f"{most.map_correlation:.2f} (M = {most.n_subjects:,}, ε_i = {most.epsilon_i:g}, exact ε of the "
            f"descent {number(most.exact_descent)})"
        )
    return Finding(
        "more subjects or a larger ε_i improve the maps",
        f"{'; '.join(texts)}. Recovered maps correlate by {RECOVERED:g} or more",
        "yes" if rises[0] and good[0] else "in part" if any(rises) else "no",
    )


def _list(rows: Sequence[Row]) -> str:
    return (
        ", ".join(
            f"{row.algorithm.partition(' (')[0]} {row.map_correlation:.2f} "
            f"(M = {row.n_subjects:,}, ε = {number(cost(row))})"
            for row in rows
        )
        or "none"
    )


def experiment(setting: Setting, kept: Kept) -> Experiment:
    """Put table, figure and findings together."""
    rows = measure(setting, kept)
    title = "Spatial maps, true and recovered"
    figure = draw(setting, kept)
    return Experiment("spatial_maps", title, setting, rows, figure, findings(setting, rows), [SEE_TUNING])


SPATIAL_MAPS: Final = Shared("Spatial maps, true and recovered.", settings, runs, experiment)
main = SPATIAL_MAPS.main

if __name__ == "__main__":
    main()
