"""Energy captured by capePCA: ``python -m paper.pca_energy [--quick] [--out FOLDER]``.

Data with a known spectrum, as in the capePCA paper (Imtiaz and Sarwate 2018): D = 200 features, K = 50
components, S = 10 sites, N = 10,000 samples within the unit ball, delta = 0.01, one sample as the neighbour.
Four ways to make the mean private, against epsilon, against N and against S; against epsilon twice:

- *the paper's calibration*: every scheme uses the tau of the classical Gaussian mechanism, so cape has the
  variance of pooled, and conventional S times it. The same tau is not the same privacy;
- *equal exact epsilon*: every scheme spends exactly the epsilon on the axis, as in the other two panels. Cape
  has this package's uniform masks there, and once more the paper's own, for the table.

S_C = max(1, ceil(S/3) - 1). Repeats have data of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.utility.shared.runs import standard_error
from capedjica.mechanisms.contract import MechanismName
from capedjica.report.pictures.figures import COLOURS
from paper.shared.common import Experiment, Finding, Options, Shared
from paper.shared.pca_runs import Calibration, Energy, Spectrum, n_colluding
from paper.shared.runs import Kept

MECHANISMS: tuple[MechanismName, ...] = ("pooled", "cape", "conventional", "local")
CALIBRATIONS: tuple[Calibration, ...] = ("paper", "exact")
PAPER_MASKS: Calibration = "exact, the paper's masks"
SOURCE = "(Imtiaz and Sarwate 2018)"


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment; those of the spectrum where nothing else varies."""

    spectrum: Spectrum
    delta: float = 0.01
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
    samples: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    sites: tuple[int, ...] = (2, 5, 10, 20, 50)
    usual_epsilon: float = 1.0
    repetitions: int = 3


FULL = Setting(Spectrum())
QUICK = Setting(Spectrum(20, 4, 4, 400), 0.01, (0.5, 5.0), (200, 400), (4, 8), 5.0, 1)


@dataclass(frozen=True)
class Row:
    """One line of the table: a scheme, its exact epsilon, and the energy it captured (standard error)."""

    calibration: str
    mechanism: str
    n_samples: int
    n_sites: int
    epsilon: float
    exact_epsilon: float
    noise: float
    captured_energy: float
    error: float


def cells(setting: Setting) -> list[Energy]:
    """Return what is measured, its first repetition."""
    usual, epsilon = setting.spectrum, setting.usual_epsilon
    points = [(usual, c, e) for c in CALIBRATIONS for e in setting.epsilons]
    points += [(replace(usual, n_samples=n), "exact", epsilon) for n in setting.samples]
    points += [(replace(usual, n_sites=s), "exact", epsilon) for s in setting.sites]
    every = [Energy(s, m, c, e, setting.delta, 0) for s, c, e in points for m in MECHANISMS]
    every += [Energy(usual, "cape", PAPER_MASKS, e, setting.delta, 0) for e in setting.epsilons]
    return list(dict.fromkeys(every))


def repeated(cell: Energy, setting: Setting) -> list[Energy]:
    """Return all repetitions of a cell."""
    return [replace(cell, repeat=repeat) for repeat in range(setting.repetitions)]


def runs(setting: Setting) -> list[Energy]:
    """Return all runs."""
    every = [run for cell in cells(setting) for run in repeated(cell, setting)]
    return sorted(every, key=lambda run: (run.spectrum.n_samples, run.spectrum.n_sites, run.repeat))


def measure(setting: Setting, kept: Kept) -> list[Row]:
    """Average over the repetitions."""
    return [
        _row(cell, [kept.load(run).numbers for run in repeated(cell, setting)]) for cell in cells(setting)
    ]


def _row(cell: Energy, found: Sequence[Mapping[str, float]]) -> Row:
    energies = [numbers["captured_energy"] for numbers in found]
    return Row(
        calibration=cell.calibration,
        mechanism=cell.mechanism,
        n_samples=cell.spectrum.n_samples,
        n_sites=cell.spectrum.n_sites,
        epsilon=cell.epsilon,
        exact_epsilon=found[0]["exact_epsilon"],
        noise=found[0]["noise"],
        captured_energy=fmean(energies),
        error=standard_error(energies),
    )


def over_epsilon(setting: Setting, rows: Sequence[Row], calibration: Calibration) -> list[Row]:
    """Return the rows against epsilon."""
    usual = setting.spectrum
    chosen = [r for r in rows if (r.calibration, r.n_samples) == (calibration, usual.n_samples)]
    chosen = [r for r in chosen if r.n_sites == usual.n_sites and r.epsilon in setting.epsilons]
    return sorted(chosen, key=lambda row: row.epsilon)


def over_samples(setting: Setting, rows: Sequence[Row]) -> list[Row]:
    """Return the rows against N."""
    usual = ("exact", setting.spectrum.n_sites, setting.usual_epsilon)
    chosen = [r for r in rows if (r.calibration, r.n_sites, r.epsilon) == usual]
    return sorted((r for r in chosen if r.n_samples in setting.samples), key=lambda row: row.n_samples)


def over_sites(setting: Setting, rows: Sequence[Row]) -> list[Row]:
    """Return the rows against S."""
    usual = ("exact", setting.spectrum.n_samples, setting.usual_epsilon)
    chosen = [r for r in rows if (r.calibration, r.n_samples, r.epsilon) == usual]
    return sorted((r for r in chosen if r.n_sites in setting.sites), key=lambda row: row.n_sites)


# Scheme, colour, line, marker.
_SERIES = (
    ("pooled", "#333333", "--", "^"),
    ("cape", COLOURS[0], "-", "o"),
    ("conventional", COLOURS[5], "-.", "s"),
    ("local", COLOURS[1], ":", "v"),
)


def _panel(axis: Axes, rows: Sequence[Row], x: Callable[[Row], float]) -> None:
    for mechanism, colour, line, marker in _SERIES:
        chosen = [row for row in rows if row.mechanism == mechanism]
        axis.errorbar(
            [x(row) for row in chosen],
            [row.captured_energy for row in chosen],
            yerr=[0.0 if math.isnan(row.error) else row.error for row in chosen],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=4,
            capsize=2,
            label=mechanism,
        )
    axis.set(xscale="log", ylim=(0, 1.03))
    axis.grid(alpha=0.25)


def draw(setting: Setting, rows: Sequence[Row]) -> Figure:
    """Draw energy against epsilon for both calibrations, against N and against S."""
    figure = Figure(figsize=(9.5, 7), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    usual, epsilon = setting.spectrum, setting.usual_epsilon
    fixed = f"N = {usual.n_samples:,}, S = {usual.n_sites}"
    _panel(axes[0, 0], over_epsilon(setting, rows, "paper"), lambda row: row.epsilon)
    axes[0, 0].set(title=f"(a) the paper's calibration, equal τ; {fixed}", xlabel="ε")
    _panel(axes[0, 1], over_epsilon(setting, rows, "exact"), lambda row: row.epsilon)
    axes[0, 1].set(title=f"(b) equal exact ε; {fixed}", xlabel="ε")
    _panel(axes[1, 0], over_samples(setting, rows), lambda row: row.n_samples)
    axes[1, 0].set(title=f"(c) equal exact ε = {epsilon:g}; S = {usual.n_sites}", xlabel="samples N")
    _panel(axes[1, 1], over_sites(setting, rows), lambda row: row.n_sites)
    axes[1, 1].set(title=f"(d) equal exact ε = {epsilon:g}; N = {usual.n_samples:,}", xlabel="sites S")
    axes[1, 1].set_xticks(setting.sites, [str(s) for s in setting.sites])
    axes[1, 1].minorticks_off()
    for line in axes:
        line[0].set_ylabel("energy captured, relative to no noise")
        for axis in line:
            axis.title.set_fontsize(10)
    figure.suptitle(
        f"D = {usual.n_features}, K = {usual.n_components}, δ = {setting.delta:g}; {setting.repetitions} "
        "repeats; at equal exact ε cape has uniform masks",
        fontsize=11,
    )
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def findings(setting: Setting, rows: Sequence[Row]) -> list[Finding]:
    """Answer the claims at the usual epsilon."""
    epsilon = setting.usual_epsilon
    paper, exact = (
        {row.mechanism: row for row in over_epsilon(setting, rows, c) if row.epsilon == epsilon}
        for c in CALIBRATIONS
    )
    (masked,) = [row for row in over_epsilon(setting, rows, PAPER_MASKS) if row.epsilon == epsilon]
    same = math.isclose(paper["cape"].noise, paper["pooled"].noise, rel_tol=1e-3)
    better = all(of["cape"].captured_energy > of["conventional"].captured_energy for of in (paper, exact))
    gains = [(of["conventional"].noise / of["cape"].noise) ** 2 for of in (paper, exact)]
    masked_gain = (exact["conventional"].noise / masked.noise) ** 2
    s = setting.spectrum.n_sites
    promised = math.isclose(gains[0], s, rel_tol=2e-3)
    return [
        Finding(
            "capePCA has the noise of pooled (Lemma 1)",
            f"noise {paper['cape'].noise / paper['pooled'].noise:.3f} times pooled's at the same τ, where "
            f"the exact ε is {paper['cape'].exact_epsilon:.2g} against {paper['pooled'].exact_epsilon:.2g}; "
            f"at the same exact ε {exact['cape'].noise / exact['pooled'].noise:.3f} times with uniform "
            f"masks, {masked.noise / exact['pooled'].noise:.3f} with the paper's (S_C = {n_colluding(s)})",
            "in part" if same else "no",
        ),
        Finding(
            "its noise variance is 1/S of conventional's (Proposition 1)",
            f"S={s}: 1/{gains[0]:.2f} at the same τ; at the same exact ε 1/{gains[1]:.2f} with uniform "
            f"masks, 1/{masked_gain:.2f} with the paper's",
            "in part" if promised else "no",
        ),
        Finding(
            f"capePCA captures more energy than conventional {SOURCE}",
            f"at ε={epsilon:g}: {_energies(paper)} by the paper's calibration; at equal exact ε "
            f"{_energies(exact)}, cape with the paper's masks {masked.captured_energy:.2f}",
            "yes" if better else "no",
        ),
        _more_samples(setting, rows),
        _more_sites(setting, rows),
    ]


def _more_samples(setting: Setting, rows: Sequence[Row]) -> Finding:
    cape = [row for row in over_samples(setting, rows) if row.mechanism == "cape"]
    values = [row.captured_energy for row in cape]
    steps = ", ".join(f"{row.captured_energy:.2f} (N={row.n_samples:,})" for row in cape)
    return Finding(
        f"more samples capture more energy at the same ε {SOURCE}",
        f"cape, uniform masks, at ε={setting.usual_epsilon:g}: {steps}",
        "yes" if values == sorted(values) else "no",
    )


def _more_sites(setting: Setting, rows: Sequence[Row]) -> Finding:
    chosen = over_sites(setting, rows)
    cape, conventional = (
        {row.n_sites: row.captured_energy for row in chosen if row.mechanism == m}
        for m in ("cape", "conventional")
    )
    few, many = min(cape), max(cape)
    gap = {s: cape[s] - conventional[s] for s in (few, many)}
    return Finding(
        f"the gain over conventional grows with the number of sites {SOURCE}",
        f"uniform masks, S_C = max(1, ⌈S/3⌉ - 1): cape minus conventional {gap[few]:+.2f} at S={few}, "
        f"{gap[many]:+.2f} at S={many}; cape alone {cape[few]:.2f} and {cape[many]:.2f}",
        "yes" if gap[many] > gap[few] else "no",
    )


def _energies(by_mechanism: Mapping[str, Row]) -> str:
    return ", ".join(f"{name} {by_mechanism[name].captured_energy:.2f}" for name in MECHANISMS)


def experiment(setting: Setting, kept: Kept) -> Experiment:
    """Put table, figure and findings together."""
    rows = measure(setting, kept)
    title = "Energy captured by capePCA"
    figure = draw(setting, rows)
    note = (
        f"Rows marked {SOURCE} answer the paper that introduced capePCA, on data made like its synthetic "
        "ones; this paper takes the algorithm from there and shows no figure of it."
    )
    return Experiment("pca_energy", title, setting, rows, figure, findings(setting, rows), [note])


def settings(options: Options) -> list[Setting]:
    """Return the small or the full setting."""
    return [QUICK if options.quick else FULL]


PCA_ENERGY = Shared("Energy captured by capePCA.", settings, runs, experiment)
main = PCA_ENERGY.main

if __name__ == "__main__":
    main()
