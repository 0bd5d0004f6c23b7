"""The law of the grid noise in double precision: probabilities and distribution function.

Equation (1) is that of :mod:`capedjica.securesum.discrete_gaussian`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

# From here on theta_sigma / (sqrt(2 pi) sigma) - 1 < 2e-137.
POISSON_SIGMA = 4.0
# From here on three terms of the Euler-Maclaurin sum give the distribution function to double precision.
SMOOTH_SIGMA = 300.0
TAIL = 40.0  # exp(-40^2 / 2) is below the smallest double


def log_normaliser(sigma: float) -> float:
    """Return log of theta_sigma(0), the sum of exp(-k^2 / (2 sigma^2)) over the integers (equation 1)."""
    if sigma >= POISSON_SIGMA:
        return math.log(math.sqrt(2 * math.pi) * sigma)
    return math.log(float(np.sum(np.exp(-0.5 * (support(sigma) / sigma) ** 2))))


def support(sigma: float) -> NDArray[np.float64]:
    """Return all k whose probability is not zero in double precision, ascending."""
    reach = math.ceil(TAIL * sigma) + 1
    return np.arange(-reach, reach + 1, dtype=np.float64)


def log_pmf(k: ArrayLike, sigma: float) -> NDArray[np.float64]:
    """Return log P(k) of the discrete Gaussian N_Z(0, sigma^2)."""
    return np.asarray(-0.5 * (np.asarray(k, dtype=np.float64) / sigma) ** 2 - log_normaliser(sigma))


def cdf(k: ArrayLike, sigma: float) -> NDArray[np.float64]:
    r"""Return P(K <= k) of the discrete Gaussian, precise relative to the smaller tail for negative k.

    Sums the probabilities for small sigma. For large sigma, the Euler-Maclaurin formula at midpoints, with
    :math:`z = (k + 1/2) / \sigma`:

    .. math:: P(K \le k) = \Phi(z) + \varphi(z) \Bigl[\frac{z}{24 \sigma^2}
              - \frac{7 (z^3 - 3 z)}{5760 \sigma^4} + O(\sigma^{-6})\Bigr] .
    """
    k = np.floor(np.asarray(k, dtype=np.float64))
    if sigma < SMOOTH_SIGMA:
        return summed_cdf(k, sigma)
    z = (k + 0.5) / sigma
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    correction = z / (24 * sigma**2) - 7 * (z**3 - 3 * z) / (5760 * sigma**4)
    return np.asarray(ndtr(z) + density * correction)


def summed_cdf(k: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    values = support(sigma)
    cumulative = np.concatenate([[0.0], np.cumsum(np.exp(log_pmf(values, sigma)))])
    return np.asarray(cumulative[np.searchsorted(values, k, side="right")])
