"""The law of the grid noise against arbitrary precision, and its privacy against exact summation."""

from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from capedjica.errors import InputError
from capedjica.securesum.discrete_gaussian import _closeness, _total_and_least, grid_delta
from tests.securesum.grid_law import cdf, log_pmf

EPSILONS = np.linspace(0, 4, 41)


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def pmf(sigma: float, reach: int) -> np.ndarray:
    return np.exp(log_pmf(np.arange(-reach, reach + 1), sigma))


@functools.cache
def oracle_weights(sigma: float) -> dict[int, mpmath.mpf]:
    reach = int(45 * sigma) + 2
    with mpmath.workdps(50):
        return {
            j: mpmath.exp(-(mpmath.mpf(j) ** 2) / (2 * mpmath.mpf(sigma) ** 2))
            for j in range(-reach, reach + 1)
        }


def oracle_sums(sigma: float, k: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Probability of k and distribution function at k, by 50-digit summation."""
    with mpmath.workdps(50):
        weights = oracle_weights(sigma)
        total = mpmath.fsum(weights.values())
        below = mpmath.fsum(w for j, w in weights.items() if j <= k) / total
        return weights[k] / total, below


@pytest.mark.parametrize(("sigma", "k"), [(0.2, 0), (0.5, -1), (1.0, 2), (3.99, -9), (4.0, 3), (40.0, -120)])
def test_law_agrees_with_fifty_digits(sigma: float, k: int) -> None:
    probability, below = oracle_sums(sigma, k)
    assert math.exp(log_pmf(k, sigma)) == pytest.approx(float(probability), rel=1e-13)
    assert float(cdf(k, sigma)) == pytest.approx(float(below), rel=1e-12)


@pytest.mark.parametrize("k", [-2000, -300, -1, 0, 555])
def test_smooth_distribution_function_continues_the_summed_one(k: int) -> None:
    """At sigma = 300 the Euler-Maclaurin form takes over; without its correction the gap would be 1e-7."""
    _, below = oracle_sums(300.0, k)
    assert float(cdf(k, 300.0)) == pytest.approx(float(below), rel=1e-12)
    assert float(cdf(k, np.nextafter(300.0, 0))) == pytest.approx(float(below), rel=1e-12)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0, 50.0])
def test_grid_delta_bounds_the_exact_curve_and_is_needed(sigma: float) -> None:
    reach = int(45 * sigma)
    law = pmf(sigma, reach)
    used = []
    for shift in range(1, 8):
        bound = grid_delta(shift / sigma, [sigma], 1)
        gaps = [
            hockey_stick(law[shift:], law[:-shift], epsilon) - gaussian_delta(shift / sigma, epsilon)
            for epsilon in EPSILONS
        ]
        assert max(gaps) <= bound
        used.append(max(gaps) / bound)
    assert max(used) > 0.05  # a bound 20 times smaller would be false


@pytest.mark.parametrize("shift", [(1, 0), (1, 2), (3, 3)])
def test_grid_delta_holds_in_two_dimensions(shift: tuple[int, int]) -> None:
    sigma, reach = 2.0, 60
    law = pmf(sigma, reach)
    p = np.outer(law, law)[shift[0] :, shift[1] :]
    q = np.outer(law, law)[: p.shape[0], : p.shape[1]]
    mu = math.hypot(*shift) / sigma
    for epsilon in EPSILONS:
        assert hockey_stick(p, q, epsilon) <= gaussian_delta(mu, epsilon) + grid_delta(
            mu,
            [
                sigma,
            ],
            2,
        )


@pytest.mark.parametrize("sigmas", [[1.0, 1.0, 1.0], [0.8, 2.0], [1.5, 1.0, 3.0, 0.9]])
def test_grid_delta_holds_for_sums_of_discrete_gaussians(sigmas: list[float]) -> None:
    law = np.ones(1)
    for sigma in sigmas:
        law = np.convolve(law, pmf(sigma, 60))
    scale = math.hypot(*sigmas)
    for shift in range(1, 5):
        bound = grid_delta(shift / scale, sigmas, 1)
        assert bound < 0.2
        for epsilon in EPSILONS:
            delta = hockey_stick(law[shift:], law[:-shift], epsilon)
            assert delta <= gaussian_delta(shift / scale, epsilon) + bound


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
def test_grid_deltas_of_two_releases_add_up(epsilon: float) -> None:
    first, second = pmf(2.0, 90), pmf(3.0, 130)
    p, q = np.outer(first[1:], second[2:]), np.outer(first[:-1], second[:-2])
    mu = math.hypot(1 / 2.0, 2 / 3.0)
    added = grid_delta(1 / 2.0, [2.0], 1) + grid_delta(2 / 3.0, [3.0], 1)
    assert hockey_stick(p, q, epsilon) <= gaussian_delta(mu, epsilon) + added
    assert hockey_stick(p, q, epsilon) <= gaussian_delta(mu, epsilon) + grid_delta(mu, [2.0], 2)


def test_closeness_of_a_sum_is_what_equation_two_says() -> None:
    """At sigma = 0.6 the ratio of a sum of two to a discrete Gaussian is visible, and inside the bound."""
    sigma, reach = 0.6, 40
    law = np.convolve(pmf(sigma, reach), pmf(sigma, reach))
    single = pmf(sigma * math.sqrt(2), 2 * reach)
    seen = single > 1e-200
    gap = np.abs(np.log(law[seen] / single[seen])).max()
    assert 0.2 * _closeness(sigma**2 / 2) < gap <= _closeness(sigma**2 / 2)


@pytest.mark.parametrize("dimension", [1, 10_000, 2_000_000])
def test_a_fine_grid_is_within_1e_9_of_the_continuous_curve(dimension: int) -> None:
    """Noise of 2^16 steps and any mu up to 9; at mu = 1 it is ten times better."""
    assert grid_delta(9.0, [2.0**15] * 4, dimension) < 1e-9
    assert grid_delta(1.0, [2.0**16], dimension) < 1.3e-10
    assert grid_delta(1.0, [2.0**12], dimension) > 1e-9


def test_the_sites_of_a_release_share_one_sum() -> None:
    """Every site plans for all sites: a sum for each of them would be quadratic."""
    _total_and_least.cache_clear()
    noise = [2.0**20 + number for number in range(100)]
    together = [grid_delta(0.1 + number / 100, list(noise), 10) for number in range(100)]
    assert _total_and_least.cache_info().misses == 1
    assert len(set(together)) == 100


def test_too_little_noise_has_no_bound() -> None:
    assert grid_delta(1.0, [0.3], 1) == 1.0
    assert grid_delta(1.0, [0.3, 1e6], 1) == 1.0


@pytest.mark.parametrize(
    ("mu", "sigmas", "dimension"),
    [
        (0.0, [1.0], 1),
        (math.nan, [1.0], 1),
        (1.0, [], 1),
        (1.0, [1.0], 0),
        (1.0, [-1.0], 1),
        (1.0, [math.inf], 1),
    ],
)
def test_bad_input_is_refused(mu: float, sigmas: list[float], dimension: int) -> None:
    with pytest.raises(InputError):
        grid_delta(mu, sigmas, dimension)
