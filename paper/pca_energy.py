"""Energy captured by capePCA against epsilon: ``python -m paper.pca_energy [--quick] [--out FOLDER]``.

Data with a known spectrum, as in the capePCA paper (Imtiaz and Sarwate 2018): D = 200 features, K = 50
components, S = 10 sites, N = 10,000 samples within the unit ball, delta = 0.01, one sample as the neighbour.
Four ways to make the mean private, compared twice:

- *the paper's calibration*: every scheme uses the tau of the classical Gaussian mechanism, so cape has the
  variance of pooled, and conventional S times it. The same tau is not the same privacy;
- *equal exact epsilon*: every scheme spends exactly the epsilon on the axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track

from capedjica import CapePCA
from capedjica.algorithms.pca import PSD_SPREAD
from capedjica.mechanisms.contract import MechanismName
from capedjica.metrics import captured_energy
from capedjica.privacy import Cape, gaussian_epsilon, gaussian_mu
from capedjica.privacy.paper import gaussian_mechanism_tau
from capedjica.report.figures import COLOURS
from paper import _common
from paper._common import Experiment, Finding

MECHANISMS: tuple[MechanismName, ...] = ("pooled", "cape", "conventional", "local")
CALIBRATIONS = ("paper", "exact")
SMALL_DELTA = 1e-9


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    n_features: int = 200
    n_components: int = 50
    n_sites: int = 10
    n_samples: int = 10_000
    delta: float = 0.01
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    repetitions: int = 3


QUICK = Setting(20, 4, 4, 400, 0.01, (0.5, 5.0), 1)


@dataclass(frozen=True)
class Energy:
    """One line of the table: a scheme at one epsilon, its exact epsilon, and the energy it captured."""

    calibration: str
    mechanism: str
    epsilon: float
    exact_epsilon: float
    noise: float
    captured_energy: float
    spread: float


def make_data(setting: Setting, seed: int = 0) -> tuple[list[list[NDArray[np.float64]]], NDArray[np.float64]]:
    """Return the sites, each of one list of samples, and the second moment of all samples."""
    rng = np.random.default_rng(seed)
    d, k = setting.n_features, setting.n_components
    spectrum = np.concatenate([np.linspace(1.0, 0.3, k), np.full(d - k, 0.02)])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    samples = rng.standard_normal((setting.n_samples, d)) * np.sqrt(spectrum) @ basis.T
    samples /= np.linalg.norm(samples, axis=1).max()
    sites = [[part] for part in np.array_split(samples, setting.n_sites)]
    return sites, samples.T @ samples / setting.n_samples


def shift(setting: Setting, mechanism: MechanismName, calibration: str, epsilon: float) -> float:
    """Return the exact mu that a scheme spends when calibrated as asked for the epsilon on the axis."""
    if calibration == "exact":
        return gaussian_mu(epsilon, setting.delta)
    s = setting.n_sites
    sensitivity = PSD_SPREAD * s / setting.n_samples
    tau = gaussian_mechanism_tau(sensitivity, epsilon, setting.delta)
    if mechanism == "cape":
        colluding = max(1, math.ceil(s / 3) - 1)
        return float(Cape(tau**2, tau**2 / s, np.full(s, 1 / s), colluding).mu(sensitivity)[0])
    # pooled adds tau/S to a mean of sensitivity Delta/S; conventional and local add tau to a site's own
    return sensitivity / tau


def measure(setting: Setting) -> list[Energy]:
    """Run every scheme at every epsilon."""
    sites, moments = make_data(setting)
    jobs = [(c, m, e) for c in CALIBRATIONS for m in MECHANISMS for e in setting.epsilons]
    rows: list[Energy] = []
    for calibration, mechanism, epsilon in track(jobs, description="capePCA"):
        mu = shift(setting, mechanism, calibration, epsilon)
        values = []
        for _ in range(setting.repetitions):
            pca = CapePCA(
                setting.n_components,
                # The same mu at a delta so small that epsilon is above 0 however small mu is.
                gaussian_epsilon(mu, SMALL_DELTA),
                SMALL_DELTA,
                neighbour="sample",
                mechanism=mechanism,
                mask="paper" if calibration == "paper" else "uniform",
            ).fit(sites)
            values.append(captured_energy(pca.components_.T, moments, relative=True))
        rows.append(
            Energy(
                calibration=calibration,
                mechanism=mechanism,
                epsilon=epsilon,
                exact_epsilon=gaussian_epsilon(mu, setting.delta),
                noise=pca.privacy_.releases[0].noise,
                captured_energy=float(np.mean(values)),
                spread=float(np.std(values)),
            )
        )
    return rows


def draw(rows: Sequence[Energy]) -> Figure:
    """Draw energy against epsilon, the two calibrations side by side."""
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    titles = {"paper": "the paper's calibration (equal tau)", "exact": "equal exact epsilon"}
    for axis, calibration in zip(figure.subplots(1, 2, sharey=True), CALIBRATIONS, strict=True):
        for colour, marker, mechanism in zip(COLOURS, "^osv", MECHANISMS, strict=False):
            chosen = [r for r in rows if (r.calibration, r.mechanism) == (calibration, mechanism)]
            axis.plot(
                [r.epsilon for r in chosen],
                [r.captured_energy for r in chosen],
                marker=marker,
                markersize=4,
                color=colour,
                linestyle="--" if mechanism == "pooled" else "-",
                label=mechanism,
            )
        axis.set(xscale="log", xlabel="epsilon", title=titles[calibration])
        axis.grid(alpha=0.25)
    figure.axes[0].set_ylabel("energy captured, relative to no noise")
    figure.axes[0].legend(frameon=False)
    return figure


def findings(setting: Setting, rows: Sequence[Energy]) -> list[Finding]:
    """Answer the claims at the middle epsilon of the axis."""
    epsilon = setting.epsilons[len(setting.epsilons) // 2]
    paper, exact = (
        {row.mechanism: row for row in rows if (row.calibration, row.epsilon) == (calibration, epsilon)}
        for calibration in CALIBRATIONS
    )
    same = math.isclose(paper["cape"].noise, paper["pooled"].noise, rel_tol=1e-3)
    better = all(of["cape"].captured_energy > of["conventional"].captured_energy for of in (paper, exact))
    return [
        Finding(
            "capePCA has the noise of pooled (Lemma 1)",
            f"noise {paper['cape'].noise / paper['pooled'].noise:.3f} times pooled's at the same τ, where "
            f"the exact ε is {paper['cape'].exact_epsilon:.2g} against {paper['pooled'].exact_epsilon:.2g}; "
            f"{exact['cape'].noise / exact['pooled'].noise:.3f} times at the same exact ε",
            "in part" if same else "no",
        ),
        Finding(
            "capePCA captures more energy than conventional",
            f"at ε={epsilon:g}: {_energies(paper)} by the paper's calibration; "
            f"{_energies(exact)} at equal exact ε",
            "yes" if better else "no",
        ),
    ]


def _energies(by_mechanism: Mapping[str, Energy]) -> str:
    return ", ".join(f"{name} {by_mechanism[name].captured_energy:.2f}" for name in MECHANISMS)


def experiment(setting: Setting) -> Experiment:
    """Measure the energy captured by capePCA."""
    rows = measure(setting)
    title = "Energy captured by capePCA"
    return Experiment("pca_energy", title, setting, rows, draw(rows), findings(setting, rows))


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and write its results."""
    _common.run(experiment, Setting(), QUICK, arguments)


if __name__ == "__main__":
    main()
