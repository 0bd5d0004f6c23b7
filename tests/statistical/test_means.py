"""The noise on a mean is what was promised: it passes at the right scale and fails at 0.7 and 1.3 times it.

Each release has d = 20,000 coordinates, all with independent noise, so the sum of squares over the promised
variance is chi-square with d degrees of freedom. A two-sided test at 1e-7 accepts scales within about 3%.
"""

import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from capedjica.privacy import gaussian_mu
from tests.mechanisms.world import clipped_mean, make_data, make_study

D = 20_000
EQUAL, UNEQUAL = (40, 40, 40, 40), (26, 175, 60, 31, 90)


def fits(errors, scale):
    """Whether errors look like N(0, scale^2): variance and shape, false alarm below 1e-6 in all."""
    statistic = float(np.sum((errors / scale) ** 2))
    tail = min(chi2.cdf(statistic, len(errors)), chi2.sf(statistic, len(errors)))
    return tail > 5e-8 and kstest(errors / scale, "norm").pvalue > 1e-7


def release(sizes, mechanism="cape", epsilon=1.0, seed=0, **options):
    """Errors of one release, and the noise that was promised for it."""
    data = make_data(sizes, D, seed)
    study = make_study(data, mechanism=mechanism, epsilon=epsilon, **options)
    weights = options.get("weights")
    if mechanism == "local":
        data = {study.contract.alone: data[study.contract.alone]}
    errors = study.mean(0) - clipped_mean(data, weights=None if weights is None else list(weights.values()))
    return errors, study.aggregator.releases[-1].noise


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("mechanism", "mask"),
    [
        ("cape", "uniform"),
        ("cape", "paper"),
        ("conventional", "uniform"),
        ("pooled", "uniform"),
        ("local", "uniform"),
    ],
)
def test_errors_are_noise_of_the_promised_variance(sizes, mechanism, mask):
    errors, noise = release(sizes, mechanism, masking=mask)
    assert fits(errors, noise)
    assert not fits(errors, 0.7 * noise)
    assert not fits(errors, 1.3 * noise)


def test_unequal_weights():
    weights = {"s0": 0.3, "s1": 0.2, "s2": 0.3, "s3": 0.1, "s4": 0.1}
    errors, noise = release(UNEQUAL, weights=weights)
    assert fits(errors, noise)
    assert not fits(errors, 0.7 * noise)
    assert not fits(errors, 1.3 * noise)


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_budgets_of_their_own(mask):
    epsilon = {"s0": 0.5, "s1": 3.0, "s2": 1.0, "s3": 2.0, "s4": 2.0}
    errors, noise = release(UNEQUAL, epsilon=epsilon, masking=mask)
    assert fits(errors, noise)
    assert not fits(errors, 0.7 * noise)
    assert not fits(errors, 1.3 * noise)


def test_without_noise_the_mean_is_exact_to_the_grid():
    errors, noise = release(UNEQUAL, "none")
    assert noise == 0
    assert np.abs(errors).max() < 2.0**-36


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_variance_against_pooled_at_equal_epsilon(sizes):
    """cape S/S_H with uniform masks, S/(S+1)(1+S/S_H) with the paper's, S_H times less than conventional."""
    s, h = len(sizes), len(sizes) - 1
    noise = {
        (mechanism, mask): release(sizes, mechanism, masking=mask)[1]
        for mechanism, mask in [
            ("pooled", "uniform"),
            ("cape", "uniform"),
            ("cape", "paper"),
            ("conventional", "uniform"),
        ]
    }
    pooled = noise["pooled", "uniform"] ** 2
    # 1e-4: the sqrt(d) of rounding, and headroom
    assert noise["cape", "uniform"] ** 2 / pooled == pytest.approx(s / h, rel=1e-4)
    assert noise["cape", "paper"] ** 2 / pooled == pytest.approx(s / (s + 1) * (1 + s / h), rel=1e-4)
    assert noise["conventional", "uniform"] ** 2 / noise["cape", "uniform"] ** 2 == pytest.approx(h, rel=1e-4)
    assert math.sqrt(pooled) == pytest.approx(2 / sum(sizes) / gaussian_mu(1.0, 1e-5), rel=1e-4)


def test_variance_at_the_papers_calibration():
    """Labelled as the paper's: the same tau at every site, which is not the same privacy.

    cape's mean then has the variance of pooled, and conventional S times that; their exact mu differ.
    """
    from capedjica.privacy import Cape

    s, tau = 4, 0.3
    weights = np.full(s, 1 / s)
    cape = Cape(tau**2, tau**2 / s, weights, 1)
    conventional = Cape(0.0, tau**2, weights, 1)
    pooled = (tau / s) ** 2
    assert cape.output_variance == pytest.approx(pooled)
    assert conventional.output_variance == pytest.approx(s * pooled)
    assert cape.mu(1.0)[0] > conventional.mu(1.0)[0]
    # and a real release whose budget is the exact mu of that calibration has just that noise
    sensitivity = 2 / 40
    mu = cape.mu(sensitivity)[0]
    from capedjica.privacy import gaussian_epsilon
    from capedjica.privacy.reserved_delta import RESERVED_DELTA

    epsilon = gaussian_epsilon(mu, 1e-5 * (1 - RESERVED_DELTA))
    errors, noise = release(EQUAL, masking="paper", epsilon=epsilon)
    assert noise == pytest.approx(math.sqrt(pooled), rel=1e-4)
    assert fits(errors, math.sqrt(pooled))
    errors, noise = release(
        EQUAL, mechanism="conventional", epsilon=gaussian_epsilon(sensitivity / tau, 1e-5)
    )
    assert noise**2 == pytest.approx(s * pooled, rel=1e-3)
