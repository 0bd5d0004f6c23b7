"""The noise against its exact law: each check passes at the right scale and fails at 0.7 and 1.3 of it.

Samples are fresh in every run. A check alarms at a p-value of 1e-7, so a false alarm of the whole file, some
60 checks, has odds below 1e-5; a wrong scale must push the same p-value below 1e-12.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from benchmarks.peers.exact_noise import ExactNoise
from capedjica.securesum.noise import NoiseSource
from tests.securesum.grid_law import cdf, log_pmf

ALARM, CERTAIN = 1e-7, 1e-12
SIGMAS = [0.5, 1.0, 10.0, 1e3, 1e6, 1e9]
WRONG_SCALES = [0.7, 1.3]
COUNT = 500_000

PValue = Callable[[np.ndarray, float], float]


@functools.cache
def sample(sigma: float) -> np.ndarray:
    """One secure draw for each sigma, shared by the checks of this file."""
    return NoiseSource().discrete_gaussian(sigma, COUNT)


def cells(sigma: float, size: int, least: float = 50.0) -> tuple[np.ndarray, np.ndarray]:
    """Right edges of cells of similar probability, and the exact probabilities, none too rare."""
    edges = np.unique(np.floor(sigma * stats.norm.ppf(np.linspace(0, 1, 101)[1:-1])))
    edges = np.unique(np.concatenate([edges, np.arange(-6, 6)])) if sigma < 6 else edges
    while True:
        probabilities = np.diff(np.concatenate([[0.0], cdf(edges, sigma), [1.0]]))
        rare = size * probabilities < least
        if not rare.any():
            return edges, probabilities
        edges = np.delete(edges, min(int(np.argmax(rare)), edges.size - 1))


def chi_square(samples: np.ndarray, sigma: float) -> float:
    edges, probabilities = cells(sigma, samples.size)
    counts = np.bincount(np.searchsorted(edges, samples, side="left"), minlength=probabilities.size)
    return float(stats.chisquare(counts, samples.size * probabilities).pvalue)


def kolmogorov_smirnov(samples: np.ndarray, sigma: float) -> float:
    """Bound of Dvoretzky, Kiefer, Wolfowitz and Massart, 2 exp(-2 n D^2): valid for every law and every n."""
    values, counts = np.unique(samples, return_counts=True)
    exact = cdf(values, sigma)
    empirical = np.cumsum(counts) / samples.size
    before = np.abs(empirical - counts / samples.size - cdf(values - 1, sigma))
    distance = max(np.abs(empirical - exact).max(), before.max())
    return min(1.0, 2 * math.exp(-2 * samples.size * distance**2))


def moment(order: int) -> PValue:
    """Two-sided normal p-value of a mean of k^order, with its exact expectation and variance."""

    def p_value(samples: np.ndarray, sigma: float) -> float:
        expected, second = exact_moment(order, sigma), exact_moment(2 * order, sigma)
        mean = float(np.mean((samples / sigma) ** order))
        return float(
            2 * stats.norm.sf(abs(mean - expected) / math.sqrt((second - expected**2) / samples.size))
        )

    return p_value


def exact_moment(order: int, sigma: float) -> float:
    """E (K / sigma)^order: summed below sigma = 100, that of the normal law, equal to 1e-300, above."""
    if sigma >= 100:
        return float(stats.norm.moment(order))
    k = np.arange(-int(45 * sigma) - 1, int(45 * sigma) + 2)
    return float(np.sum((k / sigma) ** order * np.exp(log_pmf(k, sigma))))


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(
    "check", [chi_square, moment(2), moment(4)], ids=["chi-square", "variance", "fourth-moment"]
)
def test_law_and_its_scale(check: PValue, sigma: float) -> None:
    """False alarm 1e-7 for each case."""
    assert check(sample(sigma), sigma) > ALARM
    for wrong in WRONG_SCALES:
        assert check(sample(sigma), wrong * sigma) < CERTAIN
        assert check(NoiseSource().discrete_gaussian(wrong * sigma, COUNT), sigma) < CERTAIN


@pytest.mark.parametrize("sigma", [1e3, 1e6, 1e9])
def test_distribution_function_and_its_scale(sigma: float) -> None:
    """False alarm at most 1e-7 for each case, without an asymptotic."""
    assert kolmogorov_smirnov(sample(sigma), sigma) > ALARM
    for wrong in WRONG_SCALES:
        assert kolmogorov_smirnov(sample(sigma), wrong * sigma) < CERTAIN


@pytest.mark.parametrize("sigma", SIGMAS)
def test_mean_is_zero(sigma: float) -> None:
    """False alarm 1e-7; a bias of two hundredths of sigma is seen."""
    assert moment(1)(sample(sigma), sigma) > ALARM
    assert moment(1)(sample(sigma) + 0.02 * sigma, sigma) < CERTAIN


@pytest.mark.parametrize("sigma", [1e3, 1e6, 1e9, 2.0**40])
@pytest.mark.parametrize("modulus", [2, 3, 256])
def test_residues_are_uniform(sigma: float, modulus: int) -> None:
    """Residues of wide noise are uniform up to exp(-2 pi^2 (sigma / modulus)^2). False alarm 1e-7."""
    residues = sample(sigma) % modulus
    assert stats.chisquare(np.bincount(residues, minlength=modulus)).pvalue > ALARM
    rounded = np.rint(sample(sigma) / 2).astype(np.int64) * 2 % modulus  # noise on a coarser grid
    if modulus % 2 == 0:
        assert stats.chisquare(np.bincount(rounded, minlength=modulus)).pvalue < CERTAIN


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_successive_samples_are_independent(sigma: float, lag: int) -> None:
    """Chi-square of disjoint pairs over a product of cells with exact probabilities; false alarm 1e-7."""
    samples = sample(sigma)
    first = np.arange(samples.size - lag)
    first = first[first // lag % 2 == 0]
    pairs = np.stack([samples[first], samples[first + lag]])
    assert pair_chi_square(pairs, sigma) > ALARM
    dependent = pairs.copy()
    dependent[1, ::20] = dependent[0, ::20]
    assert pair_chi_square(dependent, sigma) < CERTAIN


def pair_chi_square(pairs: np.ndarray, sigma: float) -> float:
    edges = np.unique(np.floor(sigma * np.array([-1.2, -0.5, 0.0, 0.5, 1.2])))
    probabilities = np.diff(np.concatenate([[0.0], cdf(edges, sigma), [1.0]]))
    first, second = np.searchsorted(edges, pairs, side="left")
    counts = np.bincount(first * probabilities.size + second, minlength=probabilities.size**2)
    expected = pairs.shape[1] * np.outer(probabilities, probabilities).ravel()
    return float(stats.chisquare(counts, expected).pvalue)


@functools.cache
def oracle_sample(sigma: float) -> np.ndarray:
    oracle = ExactNoise()
    return np.array([oracle.discrete_gaussian(sigma) for _ in range(6000)])


def two_sample(first: np.ndarray, second: np.ndarray, sigma: float) -> float:
    edges, probabilities = cells(sigma, min(first.size, second.size))
    table = [
        np.bincount(np.searchsorted(edges, samples, side="left"), minlength=probabilities.size)
        for samples in (first, second)
    ]
    return float(stats.chi2_contingency(np.array(table)).pvalue)


@pytest.mark.parametrize("sigma", [0.5, 3.0, 1e3])
def test_fast_and_slow_samplers_agree(sigma: float) -> None:
    """Neither is compared with a formula here, only with the other; false alarm 1e-7 for each case."""
    slow = oracle_sample(sigma)
    assert two_sample(slow, NoiseSource().discrete_gaussian(sigma, 200_000), sigma) > ALARM
    assert chi_square(slow, sigma) > ALARM
    for wrong in WRONG_SCALES:
        wrongly_scaled = NoiseSource().discrete_gaussian(wrong * sigma, 200_000)
        assert two_sample(slow, wrongly_scaled, sigma) < CERTAIN
        assert chi_square(slow, wrong * sigma) < CERTAIN


@pytest.mark.full
@pytest.mark.parametrize("sigma", [0.25, 0.7, 1.0, 1.41421, 2.9, 1e3, 2.0**40])
def test_law_at_full_size(sigma: float) -> None:
    """Forty million samples see half a per cent of sigma; false alarm 1e-7 for each case."""
    source = NoiseSource()
    samples = np.concatenate([source.discrete_gaussian(sigma, 4_000_000) for _ in range(10)])
    assert chi_square(samples, sigma) > ALARM
    assert chi_square(samples, 1.005 * sigma) < CERTAIN
