"""Gain index and overall epsilon against epsilon_i: ``python -m paper.vary_epsilon [--abide FOLDER]``.

The paper's figure for synthetic and real data: what each algorithm achieves, and what it spends, against the
privacy parameter of one iteration. One row of panels for each number of subjects:

- gain index against epsilon_i, as in the paper;
- overall epsilon against epsilon_i (the paper's second axis, here a panel of its own), by the paper's account
  and exactly, the descent alone and with the PCA;
- gain index against the exact epsilon, where algorithms can be compared. For capeDJICA and local DP-ICA it is
  that of the descent alone, of the iterations made, which flatters them; for ``subject`` it is the total of
  everything, at 1, 2, 5 and 10 and at one large value.

Repeats have data and noise of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.utility.figures import USABLE
from paper._common import Experiment, Finding, Options, Shared
from paper._ica_runs import (
    PAPER,
    TUNED,
    Analysis,
    Data,
    Descent,
    Djica,
    DpDjica,
    Recipe,
    Subject,
)
from paper._runs import Kept
from paper._scores import (
    CAPE,
    CAPE_TUNED,
    DJICA,
    DP_DJICA,
    EPSILON_I,
    INK,
    LOCAL,
    LOCAL_TUNED,
    QUICK_RECIPES,
    SMALL,
    STYLES,
    SUBJECT,
    TUNING,
    Score,
    abide_data,
    account_handles,
    as_good,
    at,
    clearly_below,
    draw_accounts,
    draw_gains,
    handles,
    letter,
    names_in,
    number,
    repeated,
    score,
    strict_utility,
    times,
    where,
)

EPSILONS: Final = (0.5, 1.0, 3.0, 10.0, 30.0)
FEW_EPSILONS: Final = (0.5, 3.0, 30.0)
DP_EPSILONS: Final = (3.0, 30.0)
SUBJECT_EPSILONS: Final = (1.0, 2.0, 5.0, 10.0, 100.0)


@dataclass(frozen=True)
class Row:
    """One row of panels: which data, at which epsilon_i, how often."""

    data: Data
    epsilons: tuple[float, ...] = EPSILONS
    repeats: int = 2


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment; DP-djICA is slow, and runs at fewer places, less often."""

    name: str
    rows: tuple[Row, ...]
    dp_epsilons: tuple[float, ...] = DP_EPSILONS
    dp_repeats: int = 2
    dp_iterations: int = 100
    subject_epsilons: tuple[float, ...] = SUBJECT_EPSILONS
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


FULL: Final = Setting("vary_epsilon", (Row(Data(256), repeats=5), Row(Data(1024), repeats=3)))
QUICK: Final = Setting(
    "vary_epsilon", (Row(SMALL, (1.0, 1000.0), 2),), (1000.0,), 1, 10, (1.0, 100.0), QUICK_RECIPES
)


def settings(options: Options) -> list[Setting]:
    """Return the synthetic setting, and the real one where there is data."""
    if options.quick:
        return [QUICK]
    if options.abide is None:
        return [FULL]
    real = (
        Row(abide_data(options, 256, 20), FEW_EPSILONS),
        Row(abide_data(options, 1016, 20), FEW_EPSILONS),
        Row(abide_data(options, 1017, 20, 0), DP_EPSILONS),
    )
    many = tuple(Row(abide_data(options, m, 50), FEW_EPSILONS, 1) for m in (256, 1016))
    return [
        FULL,
        Setting("vary_epsilon_abide", real, (3.0,), 1),
        Setting("vary_epsilon_abide_50", many, (3.0,), 1, subject_epsilons=(2.0, 5.0, 10.0)),
    ]


def cells(setting: Setting, row: Row) -> list[tuple[Analysis, int]]:
    """Return what a row of panels shows, with the repeats of each."""
    data = row.data
    every: list[Analysis] = [Djica(data)]
    every += [
        Descent(data, epsilon, mechanism, recipe)
        for recipe in setting.recipes
        for mechanism in ("cape", "local")
        for epsilon in row.epsilons
    ]
    every += [Subject(data, epsilon) for epsilon in setting.subject_epsilons]
    slow = [DpDjica(data, epsilon, setting.dp_iterations) for epsilon in setting.dp_epsilons]
    return [(cell, row.repeats) for cell in every] + [
        (cell, min(setting.dp_repeats, row.repeats)) for cell in slow
    ]


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs, those of the same data one after the other."""
    every = [
        run
        for row in setting.rows
        for cell, repeats in cells(setting, row)
        for run in repeated(cell, repeats)
    ]
    return sorted(every, key=lambda run: (run.data.n_components, -run.data.n_subjects, run.data.repeat))


def measure(setting: Setting, kept: Kept) -> list[Score]:
    """Average over the repeats."""
    return [score(cell, repeats, kept) for row in setting.rows for cell, repeats in cells(setting, row)]


def exact_epsilon(row: Score) -> float:
    """Return the epsilon of the last column: of the descent, or of everything for ``subject``."""
    return row.guarantee if row.algorithm == SUBJECT else row.exact_descent


def draw(setting: Setting, rows: Sequence[Score]) -> Figure:
    """Draw three panels for each row."""
    figure = Figure(figsize=(11, 1.3 + 3.0 * len(setting.rows)), layout="constrained")
    parts = figure.subfigures(len(setting.rows), 1, squeeze=False)[:, 0]
    for place, (part, own) in enumerate(zip(parts, setting.rows, strict=True)):
        chosen = [row for name in STYLES for row in at(rows, own.data, name)]
        part.suptitle(f"{where(own.data)}; {times(own.repeats)}", fontsize=10, color=INK)
        left, middle, right = part.subplots(1, 3)
        draw_gains(left, [row for row in chosen if row.algorithm != SUBJECT], lambda row: row.epsilon_i)
        draw_accounts(middle, chosen, lambda row: row.epsilon_i)
        draw_gains(right, [row for row in chosen if row.algorithm != DP_DJICA], exact_epsilon)
        right.set_ylabel("")
        letter((left, middle, right), 3 * place)
        for axis in (left, middle):
            axis.set(xscale="log", xlabel=f"{EPSILON_I} of one iteration")
            axis.set_xticks(own.epsilons, [f"{epsilon:g}" for epsilon in own.epsilons])
            axis.xaxis.set_minor_locator(NullLocator())
        right.set(xscale="log", xlabel="exact ε: descent alone; subject: everything")
    lines = [*handles(names_in(rows)), *account_handles(rows)]
    figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


# Findings -------------------------------------------------------------------------------------------------


def findings(setting: Setting, rows: Sequence[Score]) -> list[Finding]:
    """Answer the claims of the paper's section, on the data of each row."""
    found = [finding for own in setting.rows for finding in _findings(rows, own)]
    return [*found, *_more_people(setting, rows)]


def series(rows: Sequence[Score], name: str) -> str:
    """Write the gain indices of an algorithm over epsilon_i."""
    own = sorted((row for row in rows if row.algorithm == name), key=lambda row: row.epsilon_i)
    return ", ".join(f"{row.gain_index:.3f} ({row.epsilon_i:g})" for row in own)


def _findings(rows: Sequence[Score], own: Row) -> list[Finding]:
    by = {name: sorted(at(rows, own.data, name), key=lambda row: row.epsilon_i) for name in STYLES}
    chosen = [row for name in STYLES for row in by[name]]
    head = f"{where(own.data)}:"
    return [
        _smaller_with_epsilon(head, by, chosen),
        _against_dp_djica(head, by),
        _smallest_epsilon(head, by),
        _utility_of_djica(head, by),
        _against_local(head, by),
        _pca_is_small(head, by),
        strict_utility(head, chosen, "epsilon"),
    ]


By = dict[str, list[Score]]


def _smaller_with_epsilon(head: str, by: By, rows: Sequence[Score]) -> Finding:
    first, last = by[CAPE][0], by[CAPE][-1]
    tuned = by[CAPE_TUNED]
    falls = first.gain_index - last.gain_index > 0.05
    helps = tuned[0].gain_index - tuned[-1].gain_index > 0.05
    return Finding(
        f"{head} a higher ε_i gives capeDJICA a smaller gain index, but not a small overall ε",
        f"gain index (at ε_i) {series(rows, CAPE)}; tuned {series(rows, CAPE_TUNED)}. Overall ε rises from "
        f"{number(first.paper_descent)} to {number(last.paper_descent)} by the paper's account, from "
        f"{number(first.exact_descent)} to {number(last.exact_descent)} exactly",
        "yes" if falls else "in part" if helps else "no",
    )


def _against_dp_djica(head: str, by: By) -> Finding:
    usable = [row.epsilon_i for row in by[CAPE] if row.gain_index <= USABLE]
    tuned = [row.epsilon_i for row in by[CAPE_TUNED] if row.gain_index <= USABLE]
    dp = min(row.gain_index for row in by[DP_DJICA])
    own = "no ε_i brings capeDJICA to 0.1" if not usable else f"capeDJICA is at 0.1 from ε_i = {usable[0]:g}"
    also = "nor the tuned one" if not tuned else f"the tuned one from ε_i = {tuned[0]:g}"
    return Finding(
        f"{head} capeDJICA outperforms DP-djICA by far wherever its gain index is at most 0.1",
        f"{own}, {also}; DP-djICA has {dp:.3f} at best, however large ε_i",
        "yes" if usable else "in part" if tuned else "no",
    )


def _smallest_epsilon(head: str, by: By) -> Finding:
    pairs = list(zip(by[CAPE], by[LOCAL], strict=True))
    printed = sum(cape.paper_descent <= local.paper_descent for cape, local in pairs)
    truly = sum(cape.exact_descent <= local.exact_descent for cape, local in pairs)
    dp = {row.epsilon_i: row.paper_descent for row in by[DP_DJICA]}
    below = sum(row.paper_descent < dp[row.epsilon_i] for row in by[CAPE] if row.epsilon_i in dp)
    return Finding(
        f"{head} capeDJICA has the smallest overall ε of the private algorithms",
        f"by the paper's account not above local DP-ICA at {printed} of {len(pairs)} ε_i and below DP-djICA "
        f"at {below} of {len(dp)}; exactly, with what the aggregator sees, not above local at {truly} of "
        f"{len(pairs)}. They differ in how soon noise stops them, not in what an iteration costs",
        "yes" if truly == len(pairs) else "in part" if printed else "no",
    )


def _utility_of_djica(head: str, by: By) -> Finding:
    free = by[DJICA][0].gain_index
    best, tuned = (min(by[name], key=lambda row: row.gain_index) for name in (CAPE, CAPE_TUNED))
    ok = [row for row in (best, tuned) if as_good(row.gain_index, free)]
    return Finding(
        f"{head} capeDJICA reaches the utility of the non-private djICA for some parameters",
        f"djICA {free:.3f}; capeDJICA at best {best.gain_index:.3f} (ε_i = {best.epsilon_i:g}); tuned "
        f"{tuned.gain_index:.3f} at ε_i = {tuned.epsilon_i:g}, where the descent alone costs an exact ε of "
        f"{number(tuned.exact_descent)}",
        "yes" if best in ok else "in part" if ok else "no",
    )


def _against_local(head: str, by: By) -> Finding:
    def wins(name: str, other: str) -> list[float]:
        pairs = zip(by[name], by[other], strict=True)
        return [cape.epsilon_i for cape, local in pairs if clearly_below(cape, local)]

    own, tuned = wins(CAPE, LOCAL), wins(CAPE_TUNED, LOCAL_TUNED)
    return Finding(
        f"{head} capeDJICA outperforms local DP-ICA",
        f"by more than 0.02 and two standard errors at ε_i: {_list(own)}; tuned against tuned local: "
        f"{_list(tuned)}. Elsewhere neither is better than its start",
        "yes" if len(own) == len(by[CAPE]) else "in part" if own or tuned else "no",
    )


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


def _pca_is_small(head: str, by: By) -> Finding:
    row = by[CAPE][len(by[CAPE]) // 2]
    claim = f"{head} the privacy spent including the PCA is only slightly higher"
    if math.isinf(row.exact_with_pca):
        return Finding(claim, "the PCA of the pooled data has no noise: ε = ∞ with it", "no")
    return Finding(
        claim,
        f"at ε_i = {row.epsilon_i:g}: {number(row.paper_descent)} without PCA, {number(row.paper_with_pca)} "
        "with it by the paper's account, whose PCA protects a time point while the descent protects a "
        f"person; for a person exactly {number(row.exact_descent)} without, {number(row.exact_with_pca)} "
        f"with it, {number(row.guarantee)} for all iterations allowed",
        "no",
    )


def _more_people(setting: Setting, rows: Sequence[Score]) -> list[Finding]:
    alike = [own for own in setting.rows if own.data.n_sites]
    if len(alike) < 2:
        return []
    few, many = alike[0].data, alike[1].data
    texts, better = [], []
    for name, value in ((CAPE, "epsilon_i"), (CAPE_TUNED, "epsilon_i"), (SUBJECT, "epsilon")):
        small, large = ({getattr(row, value): row for row in at(rows, data, name)} for data in (few, many))
        gaining = [e for e in small if e in large and clearly_below(large[e], small[e])]
        better.append(bool(gaining))
        texts.append(f"{name} at ε: {_list(sorted(gaining))} (of {_list(sorted(small))})")
    return [
        Finding(
            f"for the same privacy more subjects do better (M = {few.n_subjects:,} and {many.n_subjects:,})",
            "by more than 0.02 and two standard errors, " + "; ".join(texts),
            "yes" if all(better) else "in part" if any(better) else "no",
        )
    ]


def experiment(setting: Setting, kept: Kept) -> Experiment:
    """Put table, figure and findings together."""
    rows = measure(setting, kept)
    title = "Gain index and overall ε against ε_i"
    first = setting.rows[0].data
    if first.real:
        title += f", real data, {first.n_components} components"
    figure = draw(setting, rows)
    command = "vary_epsilon" + (" --abide FOLDER" if first.real else "")
    claims = findings(setting, rows)
    return Experiment(setting.name, title, setting, rows, figure, claims, [TUNING], command)


VARY_EPSILON: Final = Shared("Gain index and overall epsilon against epsilon_i.", settings, runs, experiment)
main = VARY_EPSILON.main

if __name__ == "__main__":
    main()
