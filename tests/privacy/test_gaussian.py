"""The exact trade-off against arbitrary precision, dp-accounting and itself."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import gaussian_delta, gaussian_epsilon, gaussian_mu
from tests.privacy.oracles import mp_delta

MUS = np.geomspace(1e-4, 100, 19)
DELTAS = [1e-300, 1e-200, 1e-100, 1e-50, 1e-20, 1e-10, 1e-5, 1e-3, 0.1, 0.5]


@pytest.mark.parametrize("mu", MUS)
def test_delta_agrees_with_arbitrary_precision(mu):
    for a in np.linspace(-mu / 2, 37, 12):
        epsilon = max(0.0, mu * (a + mu / 2))
        expected = mp_delta(mu, epsilon)
        if expected >= mpmath.mpf("1e-300"):
            assert abs(gaussian_delta(mu, epsilon) / expected - 1) < 1e-11


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_agrees_with_arbitrary_precision(mu, delta):
    """The oracle's root is bracketed by a sign change 1e-9 (relative) around the returned epsilon."""
    epsilon = gaussian_epsilon(mu, delta)
    if delta >= mp_delta(mu, 0):
        assert epsilon == 0
    else:
        assert mp_delta(mu, epsilon * (1 - 1e-9)) > delta > mp_delta(mu, epsilon * (1 + 1e-9))


@pytest.mark.parametrize("epsilon", np.geomspace(1e-6, 5000, 12))
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_agrees_with_arbitrary_precision(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert mp_delta(mu * (1 - 1e-9), epsilon) < delta < mp_delta(mu * (1 + 1e-9), epsilon)


@given(log_mu=st.floats(math.log(1e-4), math.log(100)), log_delta=st.floats(math.log(1e-300), math.log(0.5)))
def test_round_trips_close(log_mu, log_delta):
    mu, delta = math.exp(log_mu), math.exp(log_delta)
    # at delta(0) epsilon vanishes and mu is no longer a function of it
    assume(delta < gaussian_delta(mu, 0) * (1 - 1e-3))
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1, 3, 10])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_agrees_with_dp_accounting(epsilon, delta):
    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert 1 / gaussian_mu(epsilon, delta) == pytest.approx(sigma, rel=1e-9)
    assert gaussian_epsilon(1 / sigma, delta) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(sigma, delta), rel=1e-9
    )


@settings(max_examples=300)
@given(mu=st.floats(1e-4, 100), low=st.floats(0, 100), step=st.floats(1e-3, 100))
def test_delta_falls_with_epsilon_and_grows_with_mu(mu, low, step):
    assert gaussian_delta(mu, low + step) <= gaussian_delta(mu, low)
    assert gaussian_delta(mu, low) <= gaussian_delta(mu * 1.01, low)


def test_limits():
    assert gaussian_delta(0, 1) == 0
    assert gaussian_delta(math.inf, 1) == 1
    assert gaussian_delta(1, math.inf) == 0
    assert gaussian_delta(1e-4, 1e4) == 0
    assert gaussian_epsilon(0, 1e-5) == 0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_delta(1, 0) == pytest.approx(math.erf(1 / (2 * math.sqrt(2))), rel=1e-14)


@pytest.mark.parametrize("mu", [5e-324, 1e-200, 1e5, 1e17, 1e150, 1e300])
@pytest.mark.parametrize("delta", [5e-324, 1e-5, 0.5])
def test_absurd_mu_has_an_epsilon(mu, delta):
    """epsilon = mu a + mu^2/2 with |a| <= 40, infinite where that overflows."""
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon <= mu * (40 + mu / 2)
    assert epsilon >= mu * (mu / 2 - 40)
    assert 0 <= gaussian_delta(mu, 1.0) <= 1


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e16, 1e160, 1.7e308])
@pytest.mark.parametrize("delta", [5e-324, 1e-5, 0.5])
def test_absurd_epsilon_has_a_mu(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert math.isclose(gaussian_epsilon(mu, delta), epsilon, rel_tol=1e-9) or epsilon < 1e-200
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9) or epsilon > 1e10


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_simulated_likelihood_ratio_reaches_delta(mu):
    """P[L > eps | shifted] - e^eps P[L > eps | not] over a million draws; false alarm below 1e-6."""
    n, epsilon = 1_000_000, 0.7
    x = np.random.default_rng(1).standard_normal(n)
    threshold = epsilon / mu + mu / 2
    hit, miss = np.mean(x + mu > threshold), np.mean(x > threshold)
    spread = math.sqrt(hit / n) + math.exp(epsilon) * math.sqrt(miss / n)
    assert abs(hit - math.exp(epsilon) * miss - gaussian_delta(mu, epsilon)) < 5 * spread


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_bad_epsilon_is_named(value):
    with pytest.raises(InputError, match=r"^epsilon must be .* got"):
        gaussian_mu(value, 1e-5)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, "x"])
def test_bad_delta_is_named(value):
    with pytest.raises(InputError, match=r"^delta must .* got"):
        gaussian_epsilon(1.0, value)


@pytest.mark.parametrize("value", [-1e-9, math.nan, None, 10**400])
def test_bad_mu_is_named(value):
    with pytest.raises(InputError, match=r"^mu must .* got"):
        gaussian_delta(value, 1.0)
