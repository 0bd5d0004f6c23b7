"""A pure guarantee as mu-GDP: the curve stays below that of every epsilon-DP release, and touches it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from capedjica.errors import InputError
from capedjica.privacy import pure_mu


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_the_gaussian_curve_lies_below_and_touches(epsilon):
    mu = pure_mu(epsilon)
    rates = np.linspace(0, 1, 20_001)
    pure = np.maximum.reduce(
        [np.zeros_like(rates), 1 - math.exp(epsilon) * rates, math.exp(-epsilon) * (1 - rates)]
    )
    gaussian = norm.cdf(norm.isf(rates) - mu)
    assert (gaussian <= pure + 1e-12).all()
    corner = 1 / (1 + math.exp(epsilon))
    assert norm.cdf(norm.isf(corner) - mu) == pytest.approx(corner, rel=1e-9)
    assert (norm.cdf(norm.isf(rates) - 0.9 * mu) > pure + 1e-12).any()


def test_large_epsilon_and_bad_input():
    assert 60 < pure_mu(800.0) < 90
    with pytest.raises(InputError, match="epsilon must be a finite number above 0, got 0"):
        pure_mu(0)


@given(st.floats(1e-4, 200), st.floats(1e-4, 200))
def test_a_whole_costs_no_less_than_its_steps(first, second):
    """So a call may be charged for its total epsilon, and its steps may come in between those of others."""
    assert pure_mu(first) ** 2 + pure_mu(second) ** 2 <= pure_mu(first + second) ** 2 * (1 + 1e-9)
