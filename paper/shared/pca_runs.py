"""Runs of capePCA on data with a known spectrum, as in the capePCA paper (Imtiaz and Sarwate 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from capedjica import CapePCA
from capedjica.algorithms.pca import PSD_SPREAD
from capedjica.mechanisms.contract import MechanismName
from capedjica.metrics import captured_energy
from capedjica.privacy import Cape, gaussian_epsilon, gaussian_mu
from capedjica.privacy.paper import gaussian_mechanism_tau
from paper.shared.runs import Kept, Outcome, Run

Calibration = Literal["paper", "exact", "exact, the paper's masks"]
SMALL_DELTA: Final = 1e-9
_SECONDS: Final = 1e-8  # of a number in the vector of a sample


@dataclass(frozen=True)
class Spectrum:
    """Samples of D features with K strong components, in equal parts at S sites."""

    n_features: int = 200
    n_components: int = 50
    n_sites: int = 10
    n_samples: int = 10_000


def n_colluding(n_sites: int) -> int:
    """Return S_C: at least one, since any curious site knows its own noise."""
    return max(1, math.ceil(n_sites / 3) - 1)


@lru_cache(maxsize=1)
def make_data(spectrum: Spectrum, seed: int) -> tuple[list[list[NDArray[np.float64]]], NDArray[np.float64]]:
    """Return the sites, each of one list of samples, and the second moment of all samples."""
    rng = np.random.default_rng(seed)
    d, k = spectrum.n_features, spectrum.n_components
    strengths = np.concatenate([np.linspace(1.0, 0.3, k), np.full(d - k, 0.02)])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    samples = rng.standard_normal((spectrum.n_samples, d)) * np.sqrt(strengths) @ basis.T
    samples /= np.linalg.norm(samples, axis=1).max()
    sites = [[part] for part in np.array_split(samples, spectrum.n_sites)]
    return sites, samples.T @ samples / spectrum.n_samples


@dataclass(frozen=True)
class Energy(Run):
    """The energy that a private PCA captures, relative to the best, one sample as the neighbour.

    Calibrated as the paper does, or to spend exactly ``epsilon`` with uniform masks or with the paper's.
    Masks make a difference to cape alone.

    Gives ``captured_energy``, the ``noise`` on each number and the ``exact_epsilon``.
    """

    spectrum: Spectrum
    mechanism: MechanismName
    calibration: Calibration
    epsilon: float
    delta: float
    repeat: int

    @property
    def cost(self) -> float:
        """Seconds."""
        share = 1 / self.spectrum.n_sites if self.mechanism == "local" else 1.0
        return 0.3 + share * self.spectrum.n_samples * self.spectrum.n_features**2 / 2 * _SECONDS

    def make(self, kept: Kept) -> Outcome:
        """Make the one release."""
        sites, moments = make_data(self.spectrum, self.repeat)
        mu = self.shift()
        pca = CapePCA(
            self.spectrum.n_components,
            # The same mu at a delta so small that epsilon is above 0 however small mu is.
            gaussian_epsilon(mu, SMALL_DELTA),
            SMALL_DELTA,
            neighbour="sample",
            mechanism=self.mechanism,
            masking="uniform" if self.calibration == "exact" else "paper",
        ).fit(sites)
        numbers = {
            "captured_energy": captured_energy(pca.components_.T, moments, relative=True),
            "noise": pca.privacy_.releases[0].noise,
            "exact_epsilon": gaussian_epsilon(mu, self.delta),
        }
        return Outcome(numbers)

    def shift(self) -> float:
        """Return the exact mu that the scheme spends when calibrated as asked for its epsilon."""
        if self.calibration != "paper":
            return gaussian_mu(self.epsilon, self.delta)
        s = self.spectrum.n_sites
        sensitivity = PSD_SPREAD * s / self.spectrum.n_samples
        tau = gaussian_mechanism_tau(sensitivity, self.epsilon, self.delta)
        if self.mechanism == "cape":
            return float(Cape(tau**2, tau**2 / s, np.full(s, 1 / s), n_colluding(s)).mu(sensitivity)[0])
        # pooled adds tau/S to a mean of sensitivity Delta/S; conventional and local add tau to a site's own
        return sensitivity / tau
