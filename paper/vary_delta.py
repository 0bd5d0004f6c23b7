"""Gain index and overall epsilon against delta: ``python -m paper.vary_delta``.

The paper's figure at epsilon_i = 0.5, where delta enters both the noise of an iteration,
``tau = Delta/epsilon_i sqrt(2 ln(1.25/delta))``, and the overall (epsilon, delta). A second column has
epsilon_i = 10, where the tuned descent begins to work. With 256 subjects (the paper does not say how many).
``subject`` is shown at a total (epsilon, delta) with epsilon = 2 and 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.shared.common import Experiment, Finding, Options, Shared
from paper.shared.ica_runs import PAPER, TUNED, Analysis, Data, Descent, Djica, Quiet, Recipe, Subject
from paper.shared.runs import Kept
from paper.shared.scores import (
    CAPE,
    CAPE_TUNED,
    DJICA,
    INK,
    QUICK_RECIPES,
    QUIET,
    SMALL,
    STRICT,
    Score,
    abide_data,
    as_good,
    columns_figure,
    compare,
    holds,
    notes,
    number,
    repeated,
    score,
    strict_utility,
    times,
    where,
)

DELTAS: Final = (1e-5, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    name: str
    data: Data
    repeats: int = 3
    deltas: tuple[float, ...] = DELTAS
    epsilons: tuple[float, ...] = (0.5, 10.0)
    subject_epsilons: tuple[float, ...] = (2.0, 10.0)
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


FULL: Final = Setting("vary_delta", Data(256))
QUICK: Final = Setting("vary_delta", SMALL, 1, (1e-5, 1e-2), (1000.0,), (100.0,), QUICK_RECIPES)


def settings(options: Options) -> list[Setting]:
    """Return the synthetic setting, and the real one where there is data."""
    if options.quick:
        return [QUICK]
    if options.abide is None:
        return [FULL]
    return [FULL, Setting("vary_delta_abide", abide_data(options, 256, 20), 2)]


def cells(setting: Setting) -> list[tuple[Analysis, float]]:
    """Return what the figure shows, with the delta of each."""
    data = setting.data
    quiet: list[Analysis] = [Djica(data), Quiet(data, setting.recipes[0])]
    every = [(cell, setting.deltas[-1]) for cell in quiet]
    for delta in setting.deltas:
        every += [
            (Descent(data, epsilon, "cape", recipe, delta), delta)
            for recipe in setting.recipes
            for epsilon in setting.epsilons
        ]
        every += [(Subject(data, epsilon, delta), delta) for epsilon in setting.subject_epsilons]
    return every


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs, those of the same data one after the other."""
    every = [run for cell, _ in cells(setting) for run in repeated(cell, setting.repeats)]
    return sorted(every, key=lambda run: run.data.repeat)


def measure(setting: Setting, kept: Kept) -> list[Score]:
    """Average over the repeats."""
    return [score(cell, setting.repeats, kept, delta) for cell, delta in cells(setting)]


def _delta(row: Score) -> float:
    return row.delta


def draw(setting: Setting, rows: Sequence[Score]) -> Figure:
    """Draw everything over delta."""

    def scale(axis: Axes) -> None:
        axis.set(xscale="log", xlabel="δ", xlim=(None, 4 * max(setting.deltas)))

    figure = columns_figure(rows, setting.epsilons, setting.subject_epsilons, _delta, scale)
    for axis in figure.axes[len(setting.epsilons) :]:
        axis.set_ylabel("overall ε at the δ of the axis")
    figure.suptitle(f"{where(setting.data)}; {times(setting.repeats)}", fontsize=11, color=INK)
    return figure


def findings(setting: Setting, rows: Sequence[Score]) -> list[Finding]:
    """Answer the claims of the paper's appendix, at each epsilon_i."""
    head = "ABIDE" if setting.data.real else "synthetic"
    return [finding for epsilon in setting.epsilons for finding in _findings(rows, epsilon, head)] + [
        strict_utility(f"{head}:", rows, "delta")
    ]


def over_delta(rows: Sequence[Score], name: str, epsilon: float) -> list[Score]:
    """Return the rows of an algorithm by delta."""
    own = [row for row in rows if row.algorithm == name and epsilon in (row.epsilon_i, row.epsilon)]
    return sorted(own, key=_delta)


def _series(rows: Sequence[Score]) -> str:
    return ", ".join(f"{row.gain_index:.3f} ({row.delta:g})" for row in rows)


def _findings(rows: Sequence[Score], epsilon: float, head: str) -> list[Finding]:
    cape, tuned = (over_delta(rows, name, epsilon) for name in (CAPE, CAPE_TUNED))
    free = next(row for row in rows if row.algorithm == DJICA).gain_index
    place = f"{head}, ε_i = {epsilon:g}:"
    small, large = cape[0], cape[-1]
    quiet = next(row for row in rows if row.algorithm == QUIET).gain_index
    close, tuned_close = (any(as_good(row.gain_index, free) for row in own) for own in (cape, tuned))
    return [
        Finding(
            f"{place} a smaller δ costs utility",
            f"gain index (δ) {_series(cape)}; tuned {_series(tuned)}",
            holds(compare(large, small), compare(tuned[-1], tuned[0])),
        ),
        Finding(
            f"{place} capeDJICA is very close to the non-private djICA",
            f"djICA {free:.3f}; the paper's descent with its bounds and no noise {quiet:.3f}; capeDJICA "
            f"{min(row.gain_index for row in cape):.3f} at best, tuned "
            f"{min(row.gain_index for row in tuned):.3f}",
            "yes" if close else "in part" if tuned_close else "no",
        ),
        Finding(
            f"{place} the overall ε is also very small",
            f"of the descent, {number(small.paper_descent)} (δ = {small.delta:g}) to "
            f"{number(large.paper_descent)} (δ = {large.delta:g}) by the paper's account, "
            f"{number(small.exact_descent)} to {number(large.exact_descent)} exactly, after "
            f"{small.n_iter:.0f} and {large.n_iter:.0f} iterations; with the PCA and all iterations allowed "
            f"{number(small.guarantee)} to {number(large.guarantee)}",
            "yes" if large.guarantee <= STRICT else "in part" if large.exact_descent <= STRICT else "no",
        ),
    ]


def experiment(setting: Setting, kept: Kept) -> Experiment:
    """Put table, figure and findings together."""
    rows = measure(setting, kept)
    title = "Gain index and overall ε against δ" + (", real data" if setting.data.real else "")
    figure = draw(setting, rows)
    command = "vary_delta" + (" --abide FOLDER" if setting.data.real else "")
    claims = findings(setting, rows)
    words = notes(setting.data.real)
    return Experiment(setting.name, title, setting, rows, figure, claims, words, command)


VARY_DELTA: Final = Shared("Gain index and overall epsilon against delta.", settings, runs, experiment)
main = VARY_DELTA.main

if __name__ == "__main__":
    main()
