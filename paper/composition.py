r"""Total epsilon against iterations: ``python -m paper.composition [--quick] [--out FOLDER]``.

The paper's figure of the total epsilon after J iterations of two releases each (the gradients of W and of
b), with sigma_W^2 = sigma_b^2 = 0.25 in units of the squared sensitivity and delta = 1e-5: mu = 1/sigma = 2
per release. To the curves it shows (strong composition, moments accountant, RDP) we add naive composition,
the exact epsilon, the moments accountant's quadratic as printed, and the exact epsilon of what the
*aggregator* sees, whose mu^2 is S/(S+1)(1 + S/S_H) times larger with the paper's masks
(:class:`capedjica.privacy.Cape`; S = 4, S_C = 1).

Two accounts that the paper states without a figure are answered at the noise of its experiments (epsilon_i,
delta_i = 0.01) after about as many iterations as it makes there: RDP with sigma_W^2 as printed, and
Theorem 2.

Beside the figure the same curves with the noise that brings the exact total of the last J to epsilon = 1.
There composition theorems differ in a range that protects somebody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq

from capedjica.algorithms.ica.infomax import B_G, B_H, default_learning_rate
from capedjica.privacy import Cape, gaussian_delta, gaussian_epsilon, gaussian_mu, paper
from capedjica.privacy.accountants import Release, accountant
from capedjica.report.pictures.figures import COLOURS
from paper.shared import common, formulas
from paper.shared.common import Experiment, Finding

RELEASES_PER_ITERATION = 2


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    variance: float = 0.25
    delta: float = 1e-5
    most_iterations: int = 1000
    n_points: int = 46
    n_sites: int = 4
    n_colluding: int = 1
    useful_epsilon: float = 1.0
    epsilon_i: float = 0.5
    noise_delta: float = 1e-2
    n_subjects: int = 1024
    n_components: int = 20
    iterations: int = 50


QUICK = Setting(n_points=7)


@dataclass(frozen=True)
class Total:
    """One line of the table: the total epsilon by every account."""

    variance: float
    iterations: int
    naive: float
    strong: float
    moments_as_printed: float
    moments: float
    rdp: float
    exact: float
    exact_aggregator: float


def useful_variance(setting: Setting) -> float:
    r"""Return the sigma^2 that brings the exact total of the last J to the useful epsilon: 2 J / mu^2."""
    mu = gaussian_mu(setting.useful_epsilon, setting.delta)
    return RELEASES_PER_ITERATION * setting.most_iterations / mu**2


def view_factor(setting: Setting) -> float:
    """Return mu^2 of the aggregator's view over that of the output, with the paper's masks."""
    s = setting.n_sites
    view = Cape(1.0, 1 / s, np.full(s, 1 / s), setting.n_colluding)
    return float(view.mu(1.0)[0]) ** 2


def total(setting: Setting, variance: float, iterations: int) -> Total:
    """Return the total epsilon after some iterations, by every account."""
    count = RELEASES_PER_ITERATION * iterations
    sigma = math.sqrt(variance)

    def by(name: str, mu: float = 1 / sigma) -> float:
        return accountant(name, setting.delta).epsilon_with(Release(mu, count))

    return Total(
        variance=variance,
        iterations=iterations,
        naive=by("naive"),
        strong=by("strong"),
        moments_as_printed=paper.moments_epsilon(count, 1.0, sigma, setting.delta),
        moments=by("moments"),
        rdp=by("rdp"),
        exact=by("exact"),
        exact_aggregator=by("exact", math.sqrt(view_factor(setting)) / sigma),
    )


def measure(setting: Setting) -> list[Total]:
    """Evaluate every account over J, for the paper's noise and for the useful one."""
    steps = np.unique(np.geomspace(1, setting.most_iterations, setting.n_points).round().astype(int)).tolist()
    return [total(setting, v, j) for v in (setting.variance, useful_variance(setting)) for j in steps]


# Name in the table, label, colour, line, marker.
_SERIES = (
    ("strong", "strong composition", COLOURS[5], "-.", "s"),
    ("naive", "naive", COLOURS[1], "-.", "v"),
    ("moments_as_printed", "moments accountant, as printed", COLOURS[3], "--", "D"),
    ("moments", "moments accountant, corrected", COLOURS[2], "--", "o"),
    ("rdp", "RDP (coincides)", COLOURS[4], ":", "x"),
    ("exact_aggregator", "exact, the aggregator's view", COLOURS[0], "-", "^"),
    ("exact", "exact, the output alone", "#333333", "-", ""),
)


def _panel(axis: Axes, rows: Sequence[Total]) -> None:
    every = max(1, len(rows) // 9)
    for place, (name, label, colour, line, marker) in enumerate(_SERIES):
        axis.plot(
            [row.iterations for row in rows],
            [getattr(row, name) for row in rows],
            linestyle=line,
            linewidth=1.5,
            color=colour,
            marker=marker,
            markersize=4,
            markevery=(place % every, every),
            label=label,
        )
    axis.set(xscale="log", yscale="log", xlabel="iterations J*")
    axis.grid(alpha=0.25)


def draw(setting: Setting, rows: Sequence[Total]) -> Figure:
    """Draw the paper's noise on the left and the useful one on the right."""
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, [row for row in rows if row.variance == setting.variance])
    _panel(right, [row for row in rows if row.variance != setting.variance])
    left.set(ylabel=f"total ε at δ = {setting.delta:g}", title=f"(a) the paper's σ² = {setting.variance:g}")
    goal = f"exact ε = {setting.useful_epsilon:g} at J* = {setting.most_iterations}"
    right.set_title(f"(b) σ² = {useful_variance(setting):,.0f}: {goal}")
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def findings(setting: Setting, rows: Sequence[Total]) -> list[Finding]:
    """Answer the paper's claims at the last J."""
    theirs, useful = (
        _at(rows, variance, setting.most_iterations)
        for variance in (setting.variance, useful_variance(setting))
    )
    j = setting.most_iterations
    return [
        Finding(
            "moments accountant and RDP give a much smaller overall ε than strong composition",
            f"J*={j}, σ²={setting.variance:g}: strong {theirs.strong:.3g}, moments and RDP "
            f"{theirs.rdp:,.0f}, exact {theirs.exact:,.0f}; σ²={useful.variance:,.0f}: strong "
            f"{useful.strong:.3g}, moments and RDP {useful.rdp:.3g}, exact {useful.exact:.3g}",
            "yes" if theirs.rdp < theirs.strong and useful.rdp < useful.strong else "no",
        ),
        Finding(
            "the moments accountant's ε is the root of its quadratic as printed",
            f"{theirs.moments_as_printed:,.0f} at J*={j}; with the linear term corrected "
            f"{theirs.moments:,.0f}, which is RDP's",
            "no",
        ),
        Finding(
            "these accounts state the overall privacy of the algorithm",
            "they cover what it publishes; what the aggregator sees "
            f"(S={setting.n_sites}, S_C={setting.n_colluding}, the paper's masks) costs "
            f"{theirs.exact_aggregator:,.0f} in place of {theirs.exact:,.0f}, and "
            f"{useful.exact_aggregator:.3g} in place of {useful.exact:.3g} at σ²={useful.variance:,.0f}",
            "no",
        ),
        rdp_as_printed(setting),
        theorem_2(setting),
    ]


def rdp_as_printed(setting: Setting) -> Finding:
    """Compare RDP with sigma_W^2 = rho^2 tau^2/Delta, as printed, and with (tau/Delta)^2."""
    rate = default_learning_rate(setting.n_components)
    shifts = [2 * bound / setting.n_subjects for bound in (B_G, B_H)]
    taus = [paper.gaussian_mechanism_tau(each, setting.epsilon_i, setting.noise_delta) for each in shifts]
    pairs = list(zip(taus, shifts, strict=True))
    printed = [paper.rdp_sigma_squared(tau, shift, rate) for tau, shift in pairs]
    corrected = [formulas.rdp_sigma_squared_corrected(tau, shift) for tau, shift in pairs]
    totals = [paper.rdp_epsilon(setting.iterations, w, b, setting.delta) for w, b in (printed, corrected)]
    return Finding(
        "RDP gives the overall ε with σ_W² = ρ² τ²/Δ_G and σ_b² = ρ² τ²/Δ_h",
        f"ε_i = {setting.epsilon_i:g}, M = {setting.n_subjects:,}, R = {setting.n_components}, "
        f"{setting.iterations} iterations: {totals[0]:.3g} as printed, {totals[1]:.3g} with (τ/Δ)², which "
        "scaling by ρ does not change (departure 11). Only the latter can be small, as the paper reports ε",
        "no",
    )


def theorem_2(setting: Setting) -> Finding:
    """Compare (2J epsilon, 2J delta) of Theorem 2 with the exact epsilon of what the aggregator sees."""
    count = RELEASES_PER_ITERATION * setting.iterations
    s, n = setting.n_sites, setting.n_subjects
    tau = paper.gaussian_mechanism_tau(s / n, setting.epsilon_i, setting.noise_delta)

    def excess(epsilon: float) -> float:
        delta = paper.cape_delta(epsilon, tau, n, s, setting.n_colluding)
        return delta * count - setting.delta

    each = float(brentq(excess, 1e-3, 1e3))
    total, delta = paper.capedjica_naive(setting.iterations, each, setting.delta / count)
    mu = math.sqrt(count * view_factor(setting)) * s / n / tau
    holds = gaussian_delta(mu, total) <= delta
    return Finding(
        "Theorem 2: J* iterations are (2J*ε, 2J*δ)-differentially private",
        f"ε_i = {setting.epsilon_i:g}, {setting.iterations} iterations, S={s}, S_C={setting.n_colluding}: "
        f"({total:.3g}, {delta:.0e}), from ε = {each:.3g} a release, where Theorem 1 is stated for ε < 1; "
        f"exactly {gaussian_epsilon(mu, delta):.3g} at that δ. Adding up is so wasteful that it covers "
        "Theorem 1's understatement (departure 1)",
        "in part" if holds and each >= 1 else "yes" if holds else "no",
    )


def notes(setting: Setting, rows: Sequence[Total]) -> list[str]:
    """Say what the noise of the figure means."""
    first, last = (_at(rows, setting.variance, j) for j in (1, setting.most_iterations))
    each = last.naive / (RELEASES_PER_ITERATION * setting.most_iterations)
    return [
        f"With the figure's σ² = {setting.variance:g} one iteration alone costs an exact ε of "
        f"{first.exact:.3g}, which protects nobody, and strong composition ({last.strong:.3g} at "
        f"J* = {setting.most_iterations}) is worse than adding up ({last.naive:,.0f}), since each release "
        f"costs {each:.1f}. Panel (b) has the noise at which {setting.most_iterations} iterations cost "
        f"ε = {setting.useful_epsilon:g}: σ² = {useful_variance(setting):,.0f}."
    ]


def _at(rows: Sequence[Total], variance: float, iterations: int) -> Total:
    return next(row for row in rows if (row.variance, row.iterations) == (variance, iterations))


def experiment(setting: Setting) -> Experiment:
    """Add up epsilon over iterations by every account."""
    rows = measure(setting)
    return Experiment(
        "composition",
        "Total ε against the number of iterations",
        setting,
        rows,
        draw(setting, rows),
        findings(setting, rows),
        notes(setting, rows),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and write its results."""
    common.run(experiment, Setting(), QUICK, arguments)


if __name__ == "__main__":
    main()
