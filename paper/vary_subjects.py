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

from benchmarks.utility.shared.figures import USABLE
from paper.shared.common import Experiment, Finding, Options, Shared
from paper.shared.ica_runs import (
    PAPER,
    TUNED,
    Analysis,
    Data,
    Descent,
    Djica,
    DpDjica,
    Quiet,
    Recipe,
    Subject,
)
from paper.shared.runs import Kept
from paper.shared.scores import (
    CAPE,
    CAPE_TUNED,
    DJICA,
    DP_DJICA,
    INK,
    LOCAL,
    QUICK_RECIPES,
    QUIET,
    Score,
    Verdict,
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
)


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    name: str
    data: tuple[Data, ...]
    repeats: int
    epsilons: tuple[float, ...] = (0.5, 3.0)
    dp_iterations: int = 100
    subject_epsilons: tuple[float, ...] = (2.0, 10.0)
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


FULL: Final = Setting("vary_subjects", tuple(Data(m) for m in (64, 128, 256, 512, 1024)), 3)
QUICK: Final = Setting(
    "vary_subjects",
    tuple(Data(m, 4, 0, 4, 80, 12) for m in (24, 48)),
    1,
    (1000.0,),
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
    return [FULL, Setting("vary_subjects_abide", real, 2)]


def cells(setting: Setting) -> list[Analysis]:
    """Return what the figure shows."""
    every: list[Analysis] = []
    for data in setting.data:
        every += [Djica(data), Quiet(data, setting.recipes[0])]
        every += [
            Descent(data, epsilon, mechanism, recipe)
            for recipe in setting.recipes
            for mechanism in ("cape", "local")
            for epsilon in setting.epsilons
        ]
        every += [Subject(data, epsilon) for epsilon in setting.subject_epsilons]
        every += [DpDjica(data, epsilon, setting.dp_iterations) for epsilon in setting.epsilons]
    return every


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs, those of the same data one after the other."""
    every = [run for cell in cells(setting) for run in repeated(cell, setting.repeats)]
    return sorted(every, key=lambda run: (-run.data.n_subjects, run.data.repeat))


def measure(setting: Setting, kept: Kept) -> list[Score]:
    """Average over the repeats."""
    return [score(cell, setting.repeats, kept) for cell in cells(setting)]


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
    by = {name: over_subjects(rows, name, epsilon) for name in (CAPE, CAPE_TUNED, LOCAL, DP_DJICA)}
    place = f"{head}, ε_i = {epsilon:g}:"
    free = over_subjects(rows, DJICA)
    cape, tuned = by[CAPE], by[CAPE_TUNED]
    close = [row for row in cape if as_good(row.gain_index, _same(row, free).gain_index)]
    return [
        _more_subjects(place, cape, tuned),
        _outperforms(place, cape, by[LOCAL], by[DP_DJICA]),
        Finding(
            f"{place} capeDJICA is very close to djICA even for moderate M",
            f"djICA {_series(free)}; the paper's descent with its bounds and no noise "
            f"{_series(over_subjects(rows, QUIET))}; capeDJICA nearly as good as djICA at {len(close)} of "
            f"{len(cape)} M, usable (0.1) at {sum(row.gain_index <= USABLE for row in cape)}, tuned at "
            f"{sum(row.gain_index <= USABLE for row in tuned)}",
            "yes" if len(close) == len(cape) else "in part" if close else "no",
        ),
    ]


def _more_subjects(place: str, cape: Sequence[Score], tuned: Sequence[Score]) -> Finding:
    verdicts = [compare(own[-1], own[0]) for own in (cape, tuned)]
    few, many = cape[0], cape[-1]
    cheaper = many.exact_descent < few.exact_descent
    both = verdicts[0] == "better" and cheaper and many.paper_descent < few.paper_descent
    return Finding(
        f"{place} more subjects give capeDJICA a smaller gain index and a smaller overall ε",
        f"gain index (M) {_series(cape)}, the last {_words(verdicts[0])} the first; tuned {_series(tuned)}, "
        f"the last {_words(verdicts[1])} the first. Exact ε of the descent {number(few.exact_descent)} to "
        f"{number(many.exact_descent)} (by the paper's account {number(few.paper_descent)} to "
        f"{number(many.paper_descent)}), because less noise stops it {'sooner' if cheaper else 'later'}; "
        "what an iteration costs does not depend on M",
        "yes" if both else "in part" if cheaper or "better" in verdicts else "no",
    )


def _words(verdict: Verdict) -> str:
    return {
        "better": "clearly better than",
        "worse": "clearly worse than",
        "alike": "not clearly better than",
        "undecided": "(one run, not decided) against",
    }[verdict]


def _outperforms(place: str, cape: Sequence[Score], local: Sequence[Score], dp: Sequence[Score]) -> Finding:
    n = len(cape)
    wins = {
        name: [compare(row, _same(row, other)) for row in cape].count("better")
        for name, other in (("local", local), ("DP-djICA", dp))
    }
    less = {
        (account, name): sum(getattr(row, account) < getattr(_same(row, other), account) for row in cape)
        for account, name, other in (
            ("paper_descent", "local", local),
            ("exact_descent", "local", local),
            ("paper_descent", "DP-djICA", dp),
        )
    }
    counts = [*wins.values(), *less.values()]
    return Finding(
        f"{place} capeDJICA outperforms DP-djICA and local DP-ICA in gain index and overall ε",
        f"local {_series(local)}; DP-djICA {_series(dp)}. CapeDJICA is clearly "
        f"better than local at {wins['local']} of {n} M and than DP-djICA at {wins['DP-djICA']}. Its overall "
        f"ε of the descent is smaller than local's at {less['paper_descent', 'local']} of {n} by the "
        f"paper's account and at {less['exact_descent', 'local']} exactly, and smaller than J ε_i of "
        f"DP-djICA (for a time point, J cut off at {dp[0].n_iter:.0f}) at "
        f"{less['paper_descent', 'DP-djICA']}; M = {cape[-1].n_subjects:,}: by the paper's account "
        f"{number(cape[-1].paper_descent)}, local {number(local[-1].paper_descent)}, DP-djICA "
        f"{number(dp[-1].paper_descent)}; exactly {number(cape[-1].exact_descent)} and "
        f"{number(local[-1].exact_descent)}",
        "yes" if min(counts) == n else "in part" if any(counts) else "no",
    )


def _same(row: Score, others: Sequence[Score]) -> Score:
    return next(other for other in others if other.n_subjects == row.n_subjects)


def _more_epsilon(setting: Setting, rows: Sequence[Score], head: str) -> list[Finding]:
    if len(setting.epsilons) < 2:
        return []
    low, high = (over_subjects(rows, CAPE, e)[-1] for e in (setting.epsilons[0], setting.epsilons[-1]))
    low_tuned, high_tuned = (
        over_subjects(rows, CAPE_TUNED, e)[-1] for e in (setting.epsilons[0], setting.epsilons[-1])
    )
    verdicts = compare(high, low, matters=False), compare(high_tuned, low_tuned, matters=False)
    return [
        Finding(
            f"{head}: for a fixed M a larger ε_i gives slightly better utility at a greater loss of privacy",
            f"M = {low.n_subjects:,}, ε_i from {low.epsilon_i:g} to {high.epsilon_i:g}: gain index "
            f"{low.gain_index:.3f} to {high.gain_index:.3f} (tuned {low_tuned.gain_index:.3f} to "
            f"{high_tuned.gain_index:.3f}), the larger one {_words(verdicts[0])} the smaller (tuned "
            f"{_words(verdicts[1])} it), whatever the size of the difference; exact ε of the descent "
            f"{number(low.exact_descent)} to {number(high.exact_descent)}",
            holds(*verdicts),
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
    words = notes(setting.data[0].real)
    return Experiment(setting.name, title, setting, rows, figure, claims, words, command)


VARY_SUBJECTS: Final = Shared("Gain index and overall epsilon against subjects.", settings, runs, experiment)
main = VARY_SUBJECTS.main

if __name__ == "__main__":
    main()
