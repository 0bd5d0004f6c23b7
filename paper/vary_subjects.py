"""Gain index and overall epsilon against the number of subjects: ``python -m paper.vary_subjects``.

The paper's figure for two values of epsilon_i: 0.5, which it uses elsewhere, and 3, where the tuned descent
begins to work. ``subject`` is shown at a total epsilon of 2 and of 10, everything accounted for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.utility.figures import USABLE
from paper._common import Experiment, Finding, Options, Shared
from paper._ica_runs import PAPER, TUNED, Analysis, Data, Descent, Djica, DpDjica, Recipe, Subject
from paper._runs import Kept
from paper._scores import (
    CAPE,
    CAPE_TUNED,
    DJICA,
    DP_DJICA,
    INK,
    LOCAL,
    QUICK_RECIPES,
    SEE_TUNING,
    Score,
    abide_data,
    as_good,
    clearly_below,
    columns_figure,
    number,
    repeated,
    score,
    strict_utility,
    times,
)


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    name: str
    data: tuple[Data, ...]
    repeats: int
    epsilons: tuple[float, ...] = (0.5, 3.0)
    dp_epsilons: tuple[float, ...] = (3.0,)
    dp_repeats: int = 2
    dp_iterations: int = 100
    subject_epsilons: tuple[float, ...] = (2.0, 10.0)
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


FULL: Final = Setting("vary_subjects", tuple(Data(m) for m in (64, 128, 256, 512, 1024)), 3)
QUICK: Final = Setting(
    "vary_subjects",
    tuple(Data(m, 4, 0, 4, 80, 12) for m in (24, 48)),
    1,
    (1000.0,),
    (1000.0,),
    1,
    10,
    (100.0,),
    QUICK_RECIPES,
)


def settings(options: Options) -> list[Setting]:
    """Return the synthetic setting, and the real one where there is data."""
    if options.quick:
        return [QUICK]
    if options.abide is None:
        return [FULL]
    real = tuple(abide_data(options, m, 20) for m in (128, 256, 512, 1016))
    return [FULL, Setting("vary_subjects_abide", real, 2, dp_repeats=1)]


def cells(setting: Setting) -> list[tuple[Analysis, int]]:
    """Return what the figure shows, with the repeats of each."""
    every: list[tuple[Analysis, int]] = []
    for data in setting.data:
        own: list[Analysis] = [Djica(data)]
        own += [
            Descent(data, epsilon, mechanism, recipe)
            for recipe in setting.recipes
            for mechanism in ("cape", "local")
            for epsilon in setting.epsilons
        ]
        own += [Subject(data, epsilon) for epsilon in setting.subject_epsilons]
        every += [(cell, setting.repeats) for cell in own]
        every += [(DpDjica(data, e, setting.dp_iterations), setting.dp_repeats) for e in setting.dp_epsilons]
    return every


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs, those of the same data one after the other."""
    every = [run for cell, repeats in cells(setting) for run in repeated(cell, repeats)]
    return sorted(every, key=lambda run: (-run.data.n_subjects, run.data.repeat))


def measure(setting: Setting, kept: Kept) -> list[Score]:
    """Average over the repeats."""
    return [score(cell, repeats, kept) for cell, repeats in cells(setting)]


def _subjects(row: Score) -> float:
    return row.n_subjects


def draw(setting: Setting, rows: Sequence[Score]) -> Figure:
    """Draw everything over M."""
    sizes = [data.n_subjects for data in setting.data]

    def scale(axis: Axes) -> None:
        axis.set(xscale="log", xlabel="subjects M", xlim=(None, 1.6 * max(sizes)))
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()

    figure = columns_figure(rows, setting.epsilons, setting.subject_epsilons, _subjects, scale)
    kind = "ABIDE" if setting.data[0].real else "Synthetic"
    figure.suptitle(f"{kind}, R = 20, 4 equal sites; {times(setting.repeats)}", fontsize=11, color=INK)
    return figure


def findings(setting: Setting, rows: Sequence[Score]) -> list[Finding]:
    """Answer the claims of the paper's section, at each epsilon_i."""
    head = "ABIDE" if setting.data[0].real else "synthetic"
    found = [finding for epsilon in setting.epsilons for finding in _findings(rows, epsilon, head)]
    return [*found, *_more_epsilon(setting, rows, head), strict_utility(f"{head}:", rows, "n_subjects")]


def over_subjects(rows: Sequence[Score], name: str, epsilon: float | None = None) -> list[Score]:
    """Return the rows of an algorithm by the number of subjects."""
    own = [row for row in rows if row.algorithm == name and epsilon in (None, row.epsilon_i)]
    return sorted(own, key=_subjects)


def _series(rows: Sequence[Score]) -> str:
    return ", ".join(f"{row.gain_index:.3f} ({row.n_subjects:,})" for row in rows)


def _findings(rows: Sequence[Score], epsilon: float, head: str) -> list[Finding]:
    cape, tuned, local = (over_subjects(rows, name, epsilon) for name in (CAPE, CAPE_TUNED, LOCAL))
    free, dp = over_subjects(rows, DJICA), over_subjects(rows, DP_DJICA)
    place = f"{head}, ε_i = {epsilon:g}:"
    falls, tuned_falls = (own[0].gain_index - own[-1].gain_index > 0.05 for own in (cape, tuned))
    cheaper = cape[-1].exact_descent < cape[0].exact_descent
    close = [row for row in cape if as_good(row.gain_index, _same(row, free).gain_index)]
    beats = [row for row in cape if clearly_below(row, _same(row, local))]
    spends_less = [row for row in cape if row.exact_descent < _same(row, local).exact_descent]
    return [
        Finding(
            f"{place} more subjects give capeDJICA a smaller gain index and a smaller overall ε",
            f"gain index (M) {_series(cape)}; tuned {_series(tuned)}. Exact ε of the descent "
            f"{number(cape[0].exact_descent)} to {number(cape[-1].exact_descent)}, because less noise "
            f"{'stops it sooner' if cheaper else 'stops it later'}; what an iteration costs does not depend "
            "on M",
            "yes" if falls and cheaper else "in part" if cheaper or tuned_falls else "no",
        ),
        Finding(
            f"{place} capeDJICA outperforms DP-djICA and local DP-ICA in gain index and overall ε",
            f"local {_series(local)}; DP-djICA at ε_i = {dp[0].epsilon_i:g} {_series(dp)}; capeDJICA is "
            f"clearly better than local at {len(beats)} of {len(cape)} M. Exact ε of the descent "
            f"{number(cape[-1].exact_descent)} against local's {number(local[-1].exact_descent)} at "
            f"M = {cape[-1].n_subjects:,} (by the paper's account {number(cape[-1].paper_descent)} and "
            f"{number(local[-1].paper_descent)}), smaller at {len(spends_less)} of {len(cape)} M",
            "yes"
            if len(beats) == len(spends_less) == len(cape)
            else "in part"
            if beats or spends_less
            else "no",
        ),
        Finding(
            f"{place} capeDJICA is very close to djICA even for moderate M",
            f"djICA {_series(free)}; capeDJICA nearly as good at {len(close)} of {len(cape)} M, "
            f"usable (0.1) at {sum(row.gain_index <= USABLE for row in cape)}, tuned at "
            f"{sum(row.gain_index <= USABLE for row in tuned)}",
            "yes" if len(close) == len(cape) else "in part" if close else "no",
        ),
    ]


def _same(row: Score, others: Sequence[Score]) -> Score:
    return next(other for other in others if other.n_subjects == row.n_subjects)


def _more_epsilon(setting: Setting, rows: Sequence[Score], head: str) -> list[Finding]:
    if len(setting.epsilons) < 2:
        return []
    low, high = (over_subjects(rows, CAPE, e)[-1] for e in (setting.epsilons[0], setting.epsilons[-1]))
    low_tuned, high_tuned = (
        over_subjects(rows, CAPE_TUNED, e)[-1] for e in (setting.epsilons[0], setting.epsilons[-1])
    )
    gains = low.gain_index - high.gain_index > 0.01
    tuned = low_tuned.gain_index - high_tuned.gain_index > 0.01
    return [
        Finding(
            f"{head}: for a fixed M a larger ε_i gives slightly better utility at a greater loss of privacy",
            f"M = {low.n_subjects:,}, ε_i from {low.epsilon_i:g} to {high.epsilon_i:g}: gain index "
            f"{low.gain_index:.3f} to {high.gain_index:.3f} (tuned {low_tuned.gain_index:.3f} to "
            f"{high_tuned.gain_index:.3f}), exact ε of the descent {number(low.exact_descent)} to "
            f"{number(high.exact_descent)}",
            "yes" if gains else "in part" if tuned else "no",
        )
    ]


def experiment(setting: Setting, kept: Kept) -> Experiment:
    """Put table, figure and findings together."""
    rows = measure(setting, kept)
    kind = ", real data" if setting.data[0].real else ""
    title = f"Gain index and overall ε against the number of subjects{kind}"
    figure = draw(setting, rows)
    command = "vary_subjects" + (" --abide FOLDER" if setting.data[0].real else "")
    claims = findings(setting, rows)
    return Experiment(setting.name, title, setting, rows, figure, claims, [SEE_TUNING], command)


VARY_SUBJECTS: Final = Shared("Gain index and overall epsilon against subjects.", settings, runs, experiment)
main = VARY_SUBJECTS.main

if __name__ == "__main__":
    main()
