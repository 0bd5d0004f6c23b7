"""Gain index and overall epsilon against epsilon_i: ``python -m paper.vary_epsilon [--abide FOLDER]``.

The paper's figure for synthetic and real data: what each algorithm achieves, and what it spends, against the
privacy parameter of one iteration. One row of panels for each number of subjects:

- gain index against epsilon_i, as in the paper;
- overall epsilon against epsilon_i (the paper's second axis, here a panel of its own), by the paper's account
  and exactly, the descent alone and with the PCA;
- gain index against the exact epsilon, where algorithms can be compared. For capeDJICA and local DP-ICA it is
  that of the descent alone, of the iterations made, which flatters them; for ``subject`` it is the total of
  everything, at 1, 2, 5 and 10 and at one large value.

Repeats have data and noise of their own, the same data for every algorithm. In the first row of the synthetic
study the descent runs with conventional noise too, and without noise under several bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.utility.shared.figures import USABLE
from capedjica.algorithms.ica.infomax import B_G
from paper.shared.common import Experiment, Finding, Holds, Options, Shared
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
    CONVENTIONAL,
    CONVENTIONAL_TUNED,
    DJICA,
    DP_DJICA,
    EPSILON_I,
    INK,
    LOCAL,
    LOCAL_TUNED,
    QUICK_RECIPES,
    QUIET,
    QUIET_TUNED,
    SMALL,
    STYLES,
    SUBJECT,
    TUNING,
    Score,
    Verdict,
    abide_data,
    account_handles,
    as_good,
    at,
    compare,
    draw_accounts,
    draw_gains,
    handles,
    holds,
    letter,
    names_in,
    notes,
    number,
    repeated,
    score,
    strict_utility,
    times,
    where,
)

EPSILONS: Final = (0.5, 1.0, 3.0, 10.0, 30.0)
FEW_EPSILONS: Final = (0.5, 3.0, 30.0)
SUBJECT_EPSILONS: Final = (1.0, 2.0, 5.0, 10.0, 100.0)


@dataclass(frozen=True)
class Row:
    """One row of panels: which data, at which epsilon_i, how often.

    Parameters
    ----------
    conventional : tuple of float
        Where the descent runs with conventional noise too.
    bounds : tuple of float
        B_G, for which the tuned descent runs without noise.
    """

    data: Data
    epsilons: tuple[float, ...] = EPSILONS
    repeats: int = 3
    conventional: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    name: str
    rows: tuple[Row, ...]
    dp_iterations: int = 100
    subject_epsilons: tuple[float, ...] = SUBJECT_EPSILONS
    recipes: tuple[Recipe, ...] = (PAPER, TUNED)


ONE_RUN: Final = (
    "One run each: fifty components take five times as long as twenty. Without repeats nothing can be said "
    "of what chance does, so claims that compare are not decided."
)
UNBOUNDED: Final = 1e9  # a bound that no time point reaches
FULL: Final = Setting(
    "vary_epsilon",
    (Row(Data(256), EPSILONS, 5, (10.0, 30.0), (3.0, B_G, UNBOUNDED)), Row(Data(1024))),
)
QUICK: Final = Setting(
    "vary_epsilon",
    (Row(SMALL, (1.0, 1000.0), 2, (1000.0,), (3.0, B_G, UNBOUNDED)),),
    10,
    (1.0, 100.0),
    QUICK_RECIPES,
)


def settings(options: Options) -> list[Setting]:
    """Return the synthetic setting, and the real one where there is data."""
    if options.quick:
        return [QUICK]
    if options.abide is None:
        return [FULL]
    real = (
        Row(abide_data(options, 256, 20), FEW_EPSILONS, 2),
        Row(abide_data(options, 1016, 20), FEW_EPSILONS, 2),
        Row(abide_data(options, 1017, 20, 0), FEW_EPSILONS[1:], 2),
    )
    many = tuple(Row(abide_data(options, m, 50), FEW_EPSILONS, 1) for m in (256, 1016))
    return [
        FULL,
        Setting("vary_epsilon_abide", real),
        Setting("vary_epsilon_abide_50", many, subject_epsilons=(2.0, 5.0, 10.0)),
    ]


def cells(setting: Setting, row: Row) -> list[Analysis]:
    """Return what a row of panels shows."""
    data = row.data
    paper, tuned = setting.recipes
    every: list[Analysis] = [Djica(data), Quiet(data, paper)]
    every += [
        Descent(data, epsilon, mechanism, recipe)
        for recipe in setting.recipes
        for mechanism in ("cape", "local")
        for epsilon in row.epsilons
    ]
    every += [
        Descent(data, e, "conventional", recipe) for recipe in setting.recipes for e in row.conventional
    ]
    every += [Quiet(data, tuned, bound) for bound in row.bounds]
    every += [Subject(data, epsilon) for epsilon in setting.subject_epsilons]
    return every + [DpDjica(data, epsilon, setting.dp_iterations) for epsilon in row.epsilons]


def runs(setting: Setting) -> list[Analysis]:
    """Return all runs, those of the same data one after the other."""
    every = [
        run for row in setting.rows for cell in cells(setting, row) for run in repeated(cell, row.repeats)
    ]
    return sorted(every, key=lambda run: (run.data.n_components, -run.data.n_subjects, run.data.repeat))


def measure(setting: Setting, kept: Kept) -> list[Score]:
    """Average over the repeats."""
    return [score(cell, row.repeats, kept) for row in setting.rows for cell in cells(setting, row)]


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
    names = dict.fromkeys(row.algorithm for row in rows)
    by = {
        name: sorted(at(rows, own.data, name), key=lambda row: (row.epsilon_i, row.bound)) for name in names
    }
    chosen = [row for name in names for row in by[name]]
    head = f"{where(own.data)}:"
    found = [
        _smaller_with_epsilon(head, by, chosen),
        _against_dp_djica(head, by),
        _smallest_epsilon(head, by),
        _utility_of_djica(head, by),
        _against_local(head, by),
        _pca_is_small(head, by),
        strict_utility(head, chosen, "epsilon"),
    ]
    found += [_converges_faster(head, by)] if own.conventional else []
    return found + ([_clipping(head, by)] if own.bounds else [])


By = dict[str, list[Score]]


def _smaller_with_epsilon(head: str, by: By, rows: Sequence[Score]) -> Finding:
    first, last = by[CAPE][0], by[CAPE][-1]
    tuned = by[CAPE_TUNED]
    return Finding(
        f"{head} a higher ε_i gives capeDJICA a smaller gain index, but not a small overall ε",
        f"gain index (at ε_i) {series(rows, CAPE)}; tuned {series(rows, CAPE_TUNED)}. Overall ε rises from "
        f"{number(first.paper_descent)} to {number(last.paper_descent)} by the paper's account, from "
        f"{number(first.exact_descent)} to {number(last.exact_descent)} exactly",
        holds(compare(last, first), compare(tuned[-1], tuned[0])),
    )


def _against_dp_djica(head: str, by: By) -> Finding:
    usable = [row.epsilon_i for row in by[CAPE] if row.gain_index <= USABLE]
    tuned = [row.epsilon_i for row in by[CAPE_TUNED] if row.gain_index <= USABLE]
    own = "no ε_i brings capeDJICA to 0.1" if not usable else f"capeDJICA is at 0.1 from ε_i = {usable[0]:g}"
    also = "nor the tuned one" if not tuned else f"the tuned one from ε_i = {tuned[0]:g}"
    verdicts = _verdicts(by, CAPE, DP_DJICA)
    return Finding(
        f"{head} capeDJICA outperforms DP-djICA by far wherever its gain index is at most 0.1",
        f"{own}, {also}; DP-djICA ({times(by[DP_DJICA][0].n_runs)} of {by[DP_DJICA][0].n_iter:.0f} "
        f"iterations) has {series(by[DP_DJICA], DP_DJICA)}. Over all ε_i: capeDJICA is clearly better "
        f"at {_places(verdicts, 'better')}, DP-djICA at {_places(verdicts, 'worse')}",
        "yes" if usable else "in part" if tuned else "no",
    )


def _smallest_epsilon(head: str, by: By) -> Finding:
    triples = list(zip(by[CAPE], by[LOCAL], by[DP_DJICA], strict=True))
    printed = sum(cape.paper_descent <= local.paper_descent for cape, local, _ in triples)
    truly = sum(cape.exact_descent <= local.exact_descent for cape, local, _ in triples)
    below = sum(cape.paper_descent < dp.paper_descent for cape, _, dp in triples)
    n, dp = len(triples), triples[0][2]
    return Finding(
        f"{head} capeDJICA has the smallest overall ε of the private algorithms",
        f"by the paper's account not above local DP-ICA at {printed} of {n} ε_i and below DP-djICA at "
        f"{below} of {n} (J ε_i, which protects a time point and not a person, and J is cut off at "
        f"{dp.n_iter:.0f}); exactly, with what the aggregator sees, not above local at {truly} of {n}. They "
        "differ in how soon noise stops them, not in what an iteration costs",
        "yes" if truly == below == n else "in part" if printed or below else "no",
    )


def _utility_of_djica(head: str, by: By) -> Finding:
    free, quiet = by[DJICA][0].gain_index, by[QUIET][0]
    best, tuned = (min(by[name], key=lambda row: row.gain_index) for name in (CAPE, CAPE_TUNED))
    ok = [row for row in (best, tuned) if as_good(row.gain_index, free)]
    return Finding(
        f"{head} capeDJICA reaches the utility of the non-private djICA for some parameters",
        f"djICA {free:.3f}; the paper's own descent with its bounds and no noise at all "
        f"{quiet.gain_index:.3f} after {quiet.n_iter:.0f} iterations; capeDJICA at best "
        f"{best.gain_index:.3f} (ε_i = {best.epsilon_i:g}); tuned {tuned.gain_index:.3f} at "
        f"ε_i = {tuned.epsilon_i:g}, where the descent alone costs an exact ε of "
        f"{number(tuned.exact_descent)}",
        "yes" if best in ok else "in part" if ok else "no",
    )


Verdicts = Sequence[tuple[Score, Score, Verdict]]


def _verdicts(by: By, name: str, other: str) -> Verdicts:
    return [(own, theirs, compare(own, theirs)) for own, theirs in zip(by[name], by[other], strict=True)]


def _places(verdicts: Verdicts, wanted: Verdict) -> str:
    """Write the epsilon_i of a verdict, with gain indices and map correlations of both."""
    if all(verdict == "undecided" for _, _, verdict in verdicts):
        return "no ε_i (one run, not decided)"
    found = [(own, theirs) for own, theirs, verdict in verdicts if verdict == wanted]
    places = (f"{own.epsilon_i:g} ({_pair(own)} against {_pair(theirs)})" for own, theirs in found)
    return f"ε_i = {', '.join(places)}" if found else "no ε_i"


def _pair(row: Score) -> str:
    return f"{row.gain_index:.3f}, maps {row.map_correlation:.2f}"


def _against_local(head: str, by: By) -> Finding:
    own, tuned = _verdicts(by, CAPE, LOCAL), _verdicts(by, CAPE_TUNED, LOCAL_TUNED)
    wins, tuned_wins = ([v for _, _, v in each if v == "better"] for each in (own, tuned))
    undecided = any(v == "undecided" for _, _, v in own)
    part: Holds = "in part" if wins or tuned_wins else "no"
    return Finding(
        f"{head} capeDJICA outperforms local DP-ICA",
        "clearly better, with gain index and map correlation of both: capeDJICA at "
        f"{_places(own, 'better')}, local at {_places(own, 'worse')}; tuned against tuned local: "
        f"capeDJICA at {_places(tuned, 'better')}, local at {_places(tuned, 'worse')}",
        "not decided" if undecided else "yes" if len(wins) == len(own) else part,
    )


def _converges_faster(head: str, by: By) -> Finding:
    texts, verdicts = [], []
    for name, other in ((CAPE, CONVENTIONAL), (CAPE_TUNED, CONVENTIONAL_TUNED)):
        for theirs in by[other]:
            (own,) = [row for row in by[name] if row.epsilon_i == theirs.epsilon_i]
            verdicts.append(compare(own, theirs))
            texts.append(
                f"{name}, ε_i = {own.epsilon_i:g}: {own.gain_index:.3f} after {own.n_iter:.0f} iterations "
                f"against {theirs.gain_index:.3f} after {theirs.n_iter:.0f}"
            )
    better = verdicts.count("better")
    return Finding(
        f"{head} its noise being smaller by S, capeDJICA converges faster than a conventional descent",
        f"after the same PCA, {'; '.join(texts)}. Clearly better at {better} of {len(verdicts)}",
        "yes" if better == len(verdicts) else "in part" if better else "no",
    )


def _clipping(head: str, by: By) -> Finding:
    small, *_, free = by[QUIET_TUNED]
    texts = ", ".join(f"{row.gain_index:.4f} (B_G = {row.bound:g})" for row in by[QUIET_TUNED][:-1])
    return Finding(
        f"{head} clipping biases the gradient, and bounds that are too small may slow down convergence",
        f"tuned descent without noise, {small.n_iter:.0f} iterations, B_h = √B_G: gain index {texts}, "
        f"{free.gain_index:.4f} without bounds",
        {"worse": "yes", "undecided": "not decided"}.get(compare(small, free), "no"),  # type: ignore[arg-type]
    )


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


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"


def _more_people(setting: Setting, rows: Sequence[Score]) -> list[Finding]:
    alike = [own for own in setting.rows if own.data.n_sites]
    if len(alike) < 2:
        return []
    few, many = alike[0].data, alike[1].data
    texts, verdicts = [], []
    for name, value, words in (
        (CAPE, "epsilon_i", "ε_i"),
        (CAPE_TUNED, "epsilon_i", "ε_i"),
        (SUBJECT, "epsilon", "ε"),
    ):
        small, large = ({getattr(row, value): row for row in at(rows, data, name)} for data in (few, many))
        common = {e: compare(large[e], small[e]) for e in sorted(small) if e in large}
        gaining = [e for e, verdict in common.items() if verdict == "better"]
        verdicts.append(gaining)
        texts.append(f"{name} at {words} = {_list(gaining)} (of {_list(list(common))})")
    undecided = any(len(row.gains) < 2 for row in rows)
    return [
        Finding(
            f"for the same privacy more subjects do better (M = {few.n_subjects:,} and {many.n_subjects:,})",
            "one run each, not decided" if undecided else f"clearly, {'; '.join(texts)}",
            "not decided" if undecided else "yes" if all(verdicts) else "in part" if any(verdicts) else "no",
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
    words = [*([ONE_RUN] if setting.rows[0].repeats == 1 else []), *notes(first.real, TUNING)]
    return Experiment(setting.name, title, setting, rows, figure, claims, words, command)


VARY_EPSILON: Final = Shared("Gain index and overall epsilon against epsilon_i.", settings, runs, experiment)
main = VARY_EPSILON.main

if __name__ == "__main__":
    main()
