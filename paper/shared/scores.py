r"""Rows of the figures on capeDJICA: averages over repeats, with every account of what was spent.

For :math:`J^*` iterations made of J allowed, :math:`\mu` the exact shift of one iteration (what the
aggregator sees with its colluding sites, one person as the neighbour) and :math:`\mu_p` that of the PCA:

- ``paper_descent``: RDP at the optimal order, :math:`J^*` iterations, the output alone, as the paper reports
  it (with :math:`\sigma^2 = (\tau/\Delta)^2`; as printed it is not scale free). J epsilon_i for DP-djICA.
- ``paper_with_pca``: the same and one release more, the PCA with a time point as the neighbour; infinite on
  real data, whose PCA has no noise.
- ``exact_descent``: exact epsilon of :math:`\sqrt{J^*} \mu`.
- ``exact_with_pca``: of :math:`\sqrt{J^* \mu^2 + \mu_p^2}`; infinite on real data too.
- ``guarantee``: the same with the J allowed. To stop early depends on data and earns nothing.

DP-djICA protects a time point; a person of T points (of real data: the longest scan) loses T times as much,
which is its ``guarantee``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, stdev
from typing import Final, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy.stats import t as student

from benchmarks.utility.shared.figures import USABLE
from benchmarks.utility.shared.runs import standard_error
from capedjica.algorithms.ica.infomax import B_G
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.accountants import RdpAccountant, Release
from capedjica.privacy.paper import gaussian_mechanism_tau
from capedjica.report.pictures.figures import COLOURS
from paper.shared.common import Finding, Holds, Options
from paper.shared.ica_runs import (
    PAPER,
    TUNED,
    Analysis,
    Data,
    Descent,
    DpDjica,
    Quiet,
    Subject,
    fingerprint,
    longest_scan,
)
from paper.shared.runs import Kept

TARGET_DELTA: Final = 1e-5
INK: Final = "#333333"
EPSILON_I: Final = r"$\varepsilon_i$"  # in figures
# A difference of gain indices that matters: so much, or so many times as large.
MATTERS: Final = 0.02
TIMES: Final = 1.5
CONFIDENCE: Final = 0.95
STRICT: Final = 10.0  # the largest epsilon that might be called strict
TRUE_SITES: Final = 20
DJICA, CAPE, CAPE_TUNED = "djICA, no privacy", "capeDJICA", "capeDJICA, tuned"
LOCAL, LOCAL_TUNED, DP_DJICA = "local DP-ICA", "local DP-ICA, tuned", "DP-djICA"
CONVENTIONAL, CONVENTIONAL_TUNED = "conventional noise", "conventional noise, tuned"
QUIET, QUIET_TUNED = "the paper's descent, no noise", "the paper's descent, no noise, tuned"
SUBJECT: Final = "subject (this package)"
Verdict = Literal["better", "worse", "alike", "undecided"]


@dataclass(frozen=True)
class Accounts:
    """What was spent, by every account; NaN where an account does not apply."""

    paper_descent: float = math.nan
    paper_with_pca: float = math.nan
    exact_descent: float = math.nan
    exact_with_pca: float = math.nan
    guarantee: float = math.nan


@dataclass(frozen=True)
class Score:
    """One line of the table: an algorithm at one place, averaged over its repeats.

    ``gain_error`` is the standard error of the mean gain index; ``epsilon`` the total asked for; ``bound`` is
    B_G. ``gains`` are the gain indices of the repeats, of the data 0, 1, ...
    """

    data: str
    n_subjects: int
    n_components: int
    n_sites: int
    algorithm: str
    epsilon_i: float
    delta: float
    epsilon: float
    n_runs: int
    gain_index: float
    gain_error: float
    map_correlation: float
    n_iter: float
    paper_descent: float
    paper_with_pca: float
    exact_descent: float
    exact_with_pca: float
    guarantee: float
    bound: float
    gains: tuple[float, ...]


# Names by scheme, as the paper runs them and tuned.
_DESCENTS: Final = {
    "cape": (CAPE, CAPE_TUNED),
    "conventional": (CONVENTIONAL, CONVENTIONAL_TUNED),
    "local": (LOCAL, LOCAL_TUNED),
}


def algorithm(run: Analysis) -> str:
    """Name an algorithm."""
    match run:
        case Descent():
            return _DESCENTS[run.mechanism][run.recipe.steady]
        case Quiet():
            return (QUIET, QUIET_TUNED)[run.recipe.steady]
        case DpDjica():
            return DP_DJICA
        case Subject():
            return SUBJECT
        case _:
            return DJICA


def accounts(run: Analysis, numbers: Mapping[str, float], delta: float) -> Accounts:
    """Return what a run spent at a delta."""
    match run:
        case Descent():
            return _descent_accounts(run, numbers, delta)
        case DpDjica():
            total = run.epsilon_i * numbers["n_iter"]
            return Accounts(
                paper_descent=total, guarantee=run.epsilon_i * run.max_iter * run.data.n_timepoints
            )
        case Subject():
            return Accounts(guarantee=run.epsilon, exact_with_pca=run.epsilon)
        case _:
            return Accounts(guarantee=math.inf)


def _descent_accounts(run: Descent, numbers: Mapping[str, float], delta: float) -> Accounts:
    made, allowed = round(numbers["n_iter"]), run.recipe.max_iter
    each = 1 / gaussian_mechanism_tau(1.0, run.epsilon_i, run.noise_delta)
    rdp = RdpAccountant(delta)
    spent = numbers["mu"] ** 2 * made
    promised = numbers["mu"] ** 2 * allowed
    pca = numbers["pca_mu"] ** 2
    both = rdp.epsilon_with(Release(each, 2 * made + 1))
    return Accounts(
        paper_descent=rdp.epsilon_with(Release(each, 2 * made)),
        paper_with_pca=math.inf if math.isinf(pca) else both,
        exact_descent=gaussian_epsilon(math.sqrt(spent), delta),
        exact_with_pca=gaussian_epsilon(math.sqrt(spent + pca), delta),
        guarantee=gaussian_epsilon(math.sqrt(promised + pca), delta),
    )


# Data of the figures --------------------------------------------------------------------------------

SMALL: Final = Data(48, 4, 0, 4, 80, 12)
QUICK_RECIPES: Final = (replace(PAPER, max_iter=60), replace(TUNED, max_iter=150))


def abide_data(options: Options, n_subjects: int, n_components: int, n_sites: int = 4) -> Data:
    """Return data of real people."""
    assert options.abide is not None
    return Data(
        n_subjects,
        n_components,
        0,
        n_sites,
        longest_scan(options.abide),
        fingerprint=fingerprint(options.abide),
        folder=str(options.abide),
    )


# Runs and rows --------------------------------------------------------------------------------------------


def repeated(cell: Analysis, repeats: int) -> list[Analysis]:
    """Return a run with data and noise of every repeat."""
    return [replace(cell, data=replace(cell.data, repeat=repeat)) for repeat in range(repeats)]


def score(cell: Analysis, repeats: int, kept: Kept, delta: float = TARGET_DELTA) -> Score:
    """Average over the repeats of a run."""
    runs = repeated(cell, repeats)
    found = [kept.load(run).numbers for run in runs]
    gains = [numbers["gain_index"] for numbers in found]
    spent = [accounts(run, numbers, delta) for run, numbers in zip(runs, found, strict=True)]
    data = cell.data
    return Score(
        data="ABIDE" if data.real else "synthetic",
        n_subjects=data.n_subjects,
        n_components=data.n_components,
        n_sites=data.n_sites or TRUE_SITES,
        algorithm=algorithm(cell),
        epsilon_i=getattr(cell, "epsilon_i", math.nan),
        delta=delta,
        epsilon=getattr(cell, "epsilon", math.nan),
        n_runs=len(runs),
        gain_index=fmean(gains),
        gain_error=standard_error(gains),
        map_correlation=fmean(numbers["map_correlation"] for numbers in found),
        n_iter=fmean(numbers["n_iter"] for numbers in found),
        **{name: fmean(getattr(one, name) for one in spent) for name in Accounts.__dataclass_fields__},
        bound=_bound(cell),
        gains=tuple(gains),
    )


def _bound(cell: Analysis) -> float:
    match cell:
        case Quiet():
            return cell.bound
        case Descent():
            return B_G
        case _:
            return math.nan


def at(rows: Iterable[Score], data: Data, name: str) -> list[Score]:
    """Return the rows of an algorithm on some data, whatever their repeats."""
    wanted = ("ABIDE" if data.real else "synthetic", data.n_subjects, data.n_components, name)
    sites = data.n_sites or TRUE_SITES
    return [
        row
        for row in rows
        if (row.data, row.n_subjects, row.n_components, row.algorithm) == wanted and row.n_sites == sites
    ]


def where(data: Data) -> str:
    """Name some data in a title."""
    sites = f"{data.n_sites} equal sites" if data.n_sites else "the 20 true sites"
    kind = "ABIDE" if data.real else "synthetic"
    return f"{kind}, M = {data.n_subjects:,}, R = {data.n_components}, {sites}"


def times(repeats: int) -> str:
    """Say how often."""
    return "one run" if repeats == 1 else f"{repeats} repeats"


# Curves ---------------------------------------------------------------------------------------------------

# Colour, dashes, marker, filled.
Dashes = Literal["-", "--", "-.", ":"]
STYLES: Final[dict[str, tuple[str, Dashes, str, bool]]] = {
    CAPE: (COLOURS[0], "-", "o", True),
    CAPE_TUNED: (COLOURS[0], "--", "s", False),
    LOCAL: (COLOURS[1], "-", "^", True),
    LOCAL_TUNED: (COLOURS[1], "--", "v", False),
    DP_DJICA: (COLOURS[5], "-.", "X", True),
    SUBJECT: (COLOURS[2], "-", "D", True),
    DJICA: (INK, "-", "", True),
    QUIET: (COLOURS[0], ":", "", True),
}
WITHOUT_NOISE: Final = (DJICA, QUIET)
_PLAIN: Final = FuncFormatter(lambda number, _: f"{number:g}")


def draw_curve(
    axis: Axes,
    rows: Sequence[Score],
    x: Callable[[Score], float],
    y: Callable[[Score], float],
    error: Callable[[Score], float] | None = None,
    **changes: object,
) -> None:
    """Draw the rows of one algorithm, with standard errors where there are any."""
    if not rows:
        return
    colour, dashes, marker, filled = STYLES[rows[0].algorithm]
    ordered = sorted(rows, key=x)
    style: dict[str, object] = {
        "color": colour,
        "linestyle": dashes,
        "marker": marker,
        "markersize": 4.5,
        "markerfacecolor": colour if filled else "white",
        "linewidth": 1.3,
        "capsize": 2,
        **changes,
    }
    errors = [0.0 if error is None or math.isnan(error(row)) else error(row) for row in ordered]
    axis.errorbar([x(row) for row in ordered], [y(row) for row in ordered], yerr=errors, **style)  # type: ignore[arg-type]


def draw_gains(axis: Axes, rows: Sequence[Score], x: Callable[[Score], float]) -> None:
    """Draw gain indices over x, a curve for each algorithm.

    What has no noise is a line across where x means nothing to it.
    """
    for name, (colour, dashes, _, _) in STYLES.items():
        own = [row for row in rows if row.algorithm == name]
        if name in WITHOUT_NOISE and own and len({x(row) for row in own if math.isfinite(x(row))}) <= 1:
            axis.axhline(own[0].gain_index, color=colour, linestyle=dashes, linewidth=1.3)
            continue
        draw_curve(axis, own, x, lambda row: row.gain_index, lambda row: row.gain_error)
    scale_gains(axis)


def scale_gains(axis: Axes) -> None:
    """Scale an axis of gain indices and mark where the paper calls maps usable."""
    axis.axhline(USABLE, color="#999999", linewidth=0.8)
    axis.set(ylabel="gain index (0 is perfect)", yscale="log", ylim=(_least_gain(axis), 0.6))
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(_PLAIN)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.grid(alpha=0.25)


def _least_gain(axis: Axes) -> float:
    """Return where an axis of gain indices begins: two choices, so that figures can be compared."""
    return 0.01 if axis.dataLim.y0 > 0.01 else 0.002


def letter(axes: Iterable[Axes], start: int = 0) -> None:
    """Name panels (a), (b), ... in the order given."""
    for place, axis in enumerate(axes, start):
        axis.set_title(f"({chr(ord('a') + place)})", loc="left", fontsize=9, color=INK)


def handles(names: Iterable[str]) -> list[Line2D]:
    """Return what explains the curves of some algorithms."""
    lines = []
    for name in names:
        colour, dashes, marker, filled = STYLES[name]
        face = colour if filled else "white"
        line = Line2D([], [], color=colour, linestyle=dashes, marker=marker, markerfacecolor=face, label=name)
        lines.append(line)
    return lines


# Account, label, label for DP-djICA, dashes.
ACCOUNTS: Final[tuple[tuple[str, str, str, Dashes], ...]] = (
    (
        "paper_descent",
        "overall ε, the paper's: descent",
        f"DP-djICA: J {EPSILON_I}, of a time point",
        "--",
    ),
    ("exact_descent", "overall ε, exact: descent", "", "-"),
    (
        "guarantee",
        "overall ε, exact: PCA, all iterations allowed",
        f"DP-djICA: J T {EPSILON_I}, of a person",
        ":",
    ),
)
_SPENDING: Final = (CAPE, LOCAL, DP_DJICA)


def draw_accounts(axis: Axes, rows: Sequence[Score], x: Callable[[Score], float]) -> None:
    """Draw the overall epsilon by every account."""
    for account, _, _, dashes in ACCOUNTS:
        for name in _SPENDING:
            own = [row for row in _finite(rows, account) if row.algorithm == name]
            draw_curve(axis, own, x, attrgetter(account), linestyle=dashes)
    axis.set(yscale="log", ylabel="overall ε (δ = 1e-5)")
    low, high = map(math.log10, axis.get_ylim())
    axis.set_ylim(10 ** math.floor(low), 10 ** math.ceil(high))
    axis.grid(alpha=0.25)


def _finite(rows: Iterable[Score], account: str) -> list[Score]:
    """Return the rows that have a curve of an account."""
    return [row for row in rows if row.algorithm in _SPENDING and math.isfinite(getattr(row, account))]


def account_handles(rows: Sequence[Score]) -> list[Line2D]:
    """Return what explains the dashes of the accounts that are drawn, and the line of usable maps."""
    lines = []
    for account, label, dp_label, dashes in ACCOUNTS:
        drawn = {row.algorithm for row in _finite(rows, account)}
        if drawn - {DP_DJICA}:
            lines.append(Line2D([], [], color="#888888", linestyle=dashes, label=label))
        if DP_DJICA in drawn:
            lines.append(Line2D([], [], color=STYLES[DP_DJICA][0], linestyle=dashes, label=dp_label))
    if any(row.algorithm == CAPE and math.isinf(row.guarantee) for row in rows):
        words = "descent with its PCA, which has no noise: ε = ∞"
        lines.append(Line2D([], [], linestyle="", label=words))
    usable = Line2D([], [], color="#999999", linewidth=0.8, label=f"gain index usable below {USABLE:g}")
    return [*lines, usable]


def columns_figure(
    rows: Sequence[Score],
    epsilons: Sequence[float],
    totals: Sequence[float],
    x: Callable[[Score], float],
    scale: Callable[[Axes], None],
) -> Figure:
    """Draw gain indices above and overall epsilons below, one column for each epsilon_i.

    ``subject`` has a curve for each total epsilon, the same in every column. ``scale`` finishes an axis of x.
    """
    figure = Figure(figsize=(9.5, 7.6), layout="constrained")
    axes = figure.subplots(2, len(epsilons), squeeze=False)
    for (above, below), epsilon in zip(axes.T, epsilons, strict=True):
        own = [row for row in rows if row.epsilon_i == epsilon or row.algorithm in WITHOUT_NOISE]
        draw_gains(above, own, x)
        for total in totals:
            _draw_total(above, [row for row in rows if row.epsilon == total], x)
        draw_accounts(below, own, x)
        above.set_title(f"{EPSILON_I} = {epsilon:g}", fontsize=10, color=INK)
        scale(above)
        scale(below)
    letter(axes.ravel())
    lines = [*handles(names_in(rows)), *account_handles(rows)]
    figure.legend(handles=lines, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _draw_total(axis: Axes, rows: Sequence[Score], x: Callable[[Score], float]) -> None:
    """Draw ``subject`` at one total epsilon, which stands at the end of the curve."""
    draw_curve(axis, rows, x, attrgetter("gain_index"), attrgetter("gain_error"))
    last = max(rows, key=x)
    axis.annotate(
        f"ε = {last.epsilon:g}",
        (x(last), last.gain_index),
        (6, 0),
        textcoords="offset points",
        fontsize=7,
        va="center",
    )


# Words ----------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Write an epsilon for people."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def names_in(rows: Iterable[Score]) -> list[str]:
    """Return the algorithms of some rows in the order of the legend."""
    present = {row.algorithm for row in rows}
    return [name for name in STYLES if name in present]


def strict_utility(head: str, rows: Sequence[Score], axis: str) -> Finding:
    """Answer whether there is meaningful utility with a strict guarantee, and say what has it.

    ``rows`` are those at one place but for ``axis``, the attribute that is shown with each gain index.
    """
    usable = [r for r in rows if r.algorithm in (CAPE, CAPE_TUNED) and r.gain_index <= USABLE]
    own, tuned = (_cheapest([r for r in usable if r.algorithm == name]) for name in (CAPE, CAPE_TUNED))
    ours = sorted((row for row in rows if row.algorithm == SUBJECT), key=attrgetter("epsilon", axis))
    what = "ε" if axis == "epsilon" else f"ε, {'M' if axis == 'n_subjects' else 'δ'}"
    values = ", ".join(
        f"{row.gain_index:.3f} ({row.epsilon:g}{'' if axis == 'epsilon' else f', {getattr(row, axis):g}'})"
        for row in ours
    )
    has = any(surely_usable(row) and row.epsilon <= STRICT for row in ours)
    return Finding(
        f"{head} very meaningful utility even with a strict guarantee",
        f"usable (0.1): capeDJICA {own}, tuned {tuned}. "
        f"{'What has it is' if has else 'Nor, up to ε = 10, has'} `subject`, everything accounted for "
        f"({times(ours[0].n_runs)}, usable if the mean and a standard error are): gain index ({what}) "
        f"{values}",
        "yes" if any(row.guarantee <= STRICT for row in usable) else "no",
    )


def as_good(gain_index: float, free: float) -> bool:
    """Say whether a gain index is nearly that without privacy: at most half as much again, or 0.01 more."""
    return gain_index <= max(1.5 * free, free + 0.01)


def surely_usable(row: Score) -> bool:
    """Say whether maps are usable by more than luck: one run never says so."""
    return row.gain_index + row.gain_error <= USABLE


def compare(row: Score, other: Score, matters: bool = True) -> Verdict:
    """Say whether a row is better than another, by more than chance does and by enough to matter.

    Repeats share data, which vary more than noise does, so differences are taken repeat by repeat: their mean
    must exceed the ``CONFIDENCE`` quantile of Student's t times its standard error (6.3 times with two
    repeats, 2.9 with three, 2.1 with five). One repeat decides nothing. Nor is better what has a smaller gain
    index but maps that are less like the true ones.
    """
    differences = [theirs - own for own, theirs in zip(row.gains, other.gains, strict=False)]
    if len(differences) < 2:
        return "undecided"
    mean = fmean(differences)
    enough = not matters or _matters(row.gain_index, other.gain_index)
    chance = student.ppf(CONFIDENCE, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    if not enough or abs(mean) <= chance:
        return "alike"
    if mean * (row.map_correlation - other.map_correlation) <= 0:
        return "alike"
    return "better" if mean > 0 else "worse"


def _matters(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high - low > MATTERS or high >= TIMES * low


def holds(verdict: Verdict, in_part: Verdict = "alike") -> Holds:
    """Answer a claim that something is better, which may be so for a second thing only."""
    if "undecided" in (verdict, in_part):
        return "not decided"
    return "yes" if verdict == "better" else "in part" if in_part == "better" else "no"


CLEARLY: Final = (
    f"*Clearly* better is a gain index that is smaller by more than {MATTERS:g} or a factor of {TIMES:g}, by "
    f"more than chance gives in {1 - CONFIDENCE:.0%} of cases (Student's t test of the differences between "
    "runs on the same data), and with maps that are closer to the true ones too."
)


def _cheapest(usable: Sequence[Score]) -> str:
    if not usable:
        return "nowhere"
    least = min(usable, key=attrgetter("exact_descent"))
    return f"from an exact ε of {number(least.exact_descent)} for the descent alone"


TUNING: Final = (
    f"*Tuned* is the paper's descent with a constant learning rate of {TUNED.learning_rate:g} in place of "
    f"0.015/ln R, without slowing down in turns and without stopping early, {TUNED.max_iter} iterations. It "
    "was chosen by looking at the scores (rates 0.03 to 3, 100 to 1000 iterations, B_G 5 to 30, with and "
    "without the slowing down; 256 and 1,024 synthetic subjects, one data set), which flatters it and is not "
    'accounted for. The paper says only "learning rate adjustment (if needed)"; the rule here is that of '
    "Baker et al. 2018 and of EEGLAB, which it builds on: 0.9 times the rate when a step turns by more than "
    "60 degrees. Noise makes nearly every step turn so, and the descent stops near its start; with little "
    "noise its 1000 iterations are too few (0.03 in place of 0.005 as a steady rate still left 0.28, "
    f"M = 256, ε_i = 10). *{QUIET.capitalize()}*, is this rule with the bounds B_G and B_h."
)
SEE_TUNING: Final = "What *tuned* means is said under the gain index against ε_i."
REAL: Final = (
    "ABIDE (1,017 people enrolled, 200 regions, scans of 78 to 316 time points) stands in for the paper's "
    "1,548 people, who are not public. Twenty components, as in the synthetic study, so that both can be "
    "compared; fifty, the paper's number, are in a part of their own, a quarter of what 200 regions could "
    "give. The truth is the pooled ICA without privacy, as in the paper. Its PCA has no noise, so with it "
    "ε = ∞ for capeDJICA and local DP-ICA."
)


def notes(real: bool, about_tuning: str = SEE_TUNING) -> list[str]:
    """Return what the reader of a part should know."""
    return [*([REAL] if real else []), CLEARLY, about_tuning]
