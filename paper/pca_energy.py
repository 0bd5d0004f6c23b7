"""Energy captured by capePCA against epsilon: ``python -m paper.pca_energy [--quick] [--out FOLDER]``.

Data with a known spectrum, as in the capePCA paper (Imtiaz and Sarwate 2018): D = 200 features, K = 50
components, S = 10 sites, N = 10,000 samples within the unit ball, delta = 0.01, one sample as the neighbour.
Four ways to make the mean private, compared twice:

- *the paper's calibration*: every scheme uses the tau of the classical Gaussian mechanism, so cape has the
  variance of pooled, and conventional S times it. The same tau is not the same privacy;
- *equal exact epsilon*: every scheme spends exactly the epsilon on the axis.
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
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


def measure(setting: Setting) -> list[dict[str, object]]:
    """Run every scheme at every epsilon."""
    sites, moments = make_data(setting)
    jobs = [(c, m, e) for c in CALIBRATIONS for m in MECHANISMS for e in setting.epsilons]
    rows: list[dict[str, object]] = []
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
            {
                "calibration": calibration,
                "mechanism": mechanism,
                "epsilon": epsilon,
                "exact_epsilon": gaussian_epsilon(mu, setting.delta),
                "noise": pca.privacy_.releases[0].noise,
                "captured_energy": float(np.mean(values)),
                "spread": float(np.std(values)),
            }
        )
    return rows


def draw(rows: list[dict[str, object]]) -> Figure:
    """Draw energy against epsilon, the two calibrations side by side."""
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    titles = {"paper": "the paper's calibration (equal tau)", "exact": "equal exact epsilon"}
    for axis, calibration in zip(figure.subplots(1, 2, sharey=True), CALIBRATIONS, strict=True):
        for colour, mechanism in zip(COLOURS, MECHANISMS, strict=False):
            chosen = [r for r in rows if r["calibration"] == calibration and r["mechanism"] == mechanism]
            axis.plot(
                [r["epsilon"] for r in chosen],
                [r["captured_energy"] for r in chosen],
                marker="o",
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


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and write pca_energy.csv, .png and .svg."""
    parser = argparse.ArgumentParser(description="Energy captured by capePCA against epsilon.")
    parser.add_argument("--quick", action="store_true", help="a small version")
    parser.add_argument("--out", type=Path, default=Path("paper/results"), help="where to write")
    options = parser.parse_args(arguments)
    rows = measure(QUICK if options.quick else Setting())
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "pca_energy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    figure = draw(rows)
    FigureCanvasAgg(figure)
    for kind in ("png", "svg"):
        figure.savefig(options.out / f"pca_energy.{kind}", dpi=150)
    print(f"wrote {options.out / 'pca_energy.csv'} and the figure beside it")


if __name__ == "__main__":
    main()
