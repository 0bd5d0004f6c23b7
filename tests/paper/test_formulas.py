"""The paper's formulas that only its figures need, as printed, and how far each is from the exact value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, calibrate, gaussian_delta, paper
from paper.shared import formulas


def test_spread_of_the_privacy_loss():
    """In units of S / (N tau); 1.475 is what Theorem 1 has for its square."""
    assert (formulas.cape_sigma_z(0.8, 700, 4, 1) * 700 * 0.8 / 4) ** 2 == pytest.approx(1.475, abs=5e-4)


def test_delta_pooled_and_conventional():
    assert formulas.delta_pooled(0.5, 0.02, 1000, 4) == pytest.approx(5.5e-2, rel=0.01)
    assert gaussian_delta(4 / (1000 * 0.02), 0.5) == pytest.approx(5.1e-4, rel=0.01)
    # the same noise at the aggregator costs sqrt(S) more per site without correlation
    assert formulas.delta_conventional(0.5, 0.04, 1000, 4) == pytest.approx(
        formulas.delta_pooled(0.5, 0.02, 1000, 4)
    )
    assert formulas.delta_pooled(1e-3, 0.01, 1000, 10) == 1


@given(st.lists(st.integers(1, 300), min_size=2, max_size=9))
def test_sample_size_ratio_stays_within_its_bounds(sizes):
    low, high = formulas.sample_size_ratio_bounds(sum(sizes), len(sizes))
    assert low * (1 - 1e-12) <= formulas.sample_size_ratio(sizes) <= high * (1 + 1e-12)


def test_sample_size_ratio_bounds_are_attained():
    assert formulas.sample_size_ratio([50] * 4) == pytest.approx(1)
    assert formulas.sample_size_ratio([97, 1, 1, 1]) == pytest.approx(
        formulas.sample_size_ratio_bounds(100, 4)[1]
    )
    with pytest.raises(InputError, match="n_samples must be a whole number of at least 5, got 4"):
        formulas.sample_size_ratio_bounds(4, 5)


def test_proposition_2():
    assert formulas.low_sensitivity_conditions(lambda n: 1 / n, [50] * 4) == (True, True)
    assert formulas.low_sensitivity_conditions(lambda n: 1 / n, [20, 80, 50, 50]) == (True, False)
    assert formulas.low_sensitivity_conditions(lambda n: 1 / math.sqrt(n), [50] * 4) == (False, False)


def test_gain_at_equal_tau_and_at_equal_epsilon():
    assert formulas.gain(4) == 4
    weights = [1 / 4] * 4
    cape, conventional = Cape(1.0, 1 / 4, weights, 1), Cape(0.0, 1.0, weights, 1)
    assert conventional.output_variance / cape.output_variance == pytest.approx(formulas.gain(4))
    uniform, masked, none = (calibrate(1.0, 1.0, weights, 1, mask) for mask in ("uniform", "paper", "none"))
    assert none.output_variance / uniform.output_variance == pytest.approx(3)
    assert none.output_variance / masked.output_variance == pytest.approx(2.14, abs=5e-3)


def test_asymmetric_system_solves_the_printed_equations():
    tau, tau_pool, w = np.array([1.0, 1.2, 0.9, 1.1]), 0.22, np.array([0.25, 0.22, 0.28, 0.25])
    cape = formulas.asymmetric_cape(tau, tau_pool, w, 1)
    s = len(w)
    printed = np.array(
        [[(1 - 1 / s) ** 2 if i == k else w[k] ** 2 / (w[i] ** 2 * s**2) for k in range(s)] for i in range(s)]
    )
    assert printed @ cape.mask_var == pytest.approx(tau**2 - tau_pool**2 / (w**2 * s))
    assert cape.output_variance == pytest.approx(tau_pool**2)


def test_asymmetric_system_contains_the_symmetric_scheme():
    cape = formulas.asymmetric_cape([2.0] * 5, 2.0 / 5, [0.2] * 5, 1)
    assert cape.mask_var == pytest.approx(np.full(5, 4.0))
    assert cape.local_var == pytest.approx(np.full(5, 4.0 / 5))


def test_asymmetric_system_refuses_two_sites_and_negative_variances():
    with pytest.raises(InputError, match="singular for 2 sites"):
        formulas.asymmetric_cape([1.0, 1.0], 0.5, [0.5, 0.5], 1)
    with pytest.raises(InputError, match="mask of site 2 would need the negative variance"):
        formulas.asymmetric_cape([3.0, 3.0, 0.1], 0.05, [1 / 3] * 3, 1)


def test_asymmetric_covariance_as_printed_is_not_the_view():
    """For the symmetric scheme the printed matrix is not even positive definite."""
    cape = Cape(1.0, 1 / 4, [1 / 4] * 4, 1)
    assert 2 * formulas.asymmetric_mu_z(cape, [0, 1, 2], 1.0) == pytest.approx(-1.548, abs=5e-4)
    assert cape.mu(1.0)[0] ** 2 == pytest.approx(1.867, abs=5e-4)


def test_sigma_of_rdp_as_printed_and_corrected():
    assert formulas.rdp_sigma_squared_corrected(0.5, 1.0) == 0.25
    rate, shift = 0.015 / math.log(20), 0.06
    assert paper.rdp_sigma_squared(0.5, shift, rate) / formulas.rdp_sigma_squared_corrected(
        0.5, shift
    ) == pytest.approx(rate**2 * shift)


def test_rdp_order_is_optimal():
    def at(order):
        return order * 100 / (2 * 0.125) + math.log(1e5) / (order - 1)

    best = formulas.rdp_optimal_order(100, 0.25, 0.25, 1e-5)
    assert at(best) <= min(at(best * 0.999), at(best * 1.001))


@pytest.mark.parametrize(("a", "ratio"), [(800, 2.811), (100, 2.031), (1, 1.109)])
def test_moments_quadratic_as_printed_is_pessimistic(a, ratio):
    printed, corrected = (
        f(a, 1.0, 1.0, 1e-5) for f in (paper.moments_epsilon, formulas.moments_epsilon_corrected)
    )
    assert printed / corrected == pytest.approx(ratio, abs=1e-3)
    assert corrected**2 / (2 * a) - corrected / 2 + a / 8 + math.log(1e-5) == pytest.approx(0, abs=1e-9)
    assert corrected == pytest.approx(paper.rdp_epsilon(a, 2.0, 2.0, 1e-5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: formulas.delta_pooled(-1, 1.0, 100, 4), "epsilon must be a finite number above 0, got -1"),
        (
            lambda: formulas.delta_conventional(1, 1.0, 100, 0),
            "n_sites must be a whole number of at least 1",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
