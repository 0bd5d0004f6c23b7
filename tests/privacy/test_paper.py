"""The paper's formulas as printed, and how far each is from the exact value."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, Release, accountant, calibrate, gaussian_delta, gaussian_mu, paper


def exact_mu(tau, n_samples, n_sites, n_colluding):
    return Cape(tau**2, tau**2 / n_sites, [1 / n_sites] * n_sites, n_colluding).mu(n_sites / n_samples)[0]


@pytest.mark.parametrize(
    ("n_sites", "n_colluding", "exact", "printed"),
    [(4, 1, 1.867, 1.475), (30, 9, 2.350, 1.109), (4, 0, 1.6, 1.2), (30, 0, 1.935, 1.032)],
)
def test_theorem_1_understates_the_shift(n_sites, n_colluding, exact, printed):
    """mu^2 in units of (S / (N tau))^2; golden values, to three digits."""
    tau, n = 0.8, 700
    unit = (n_sites / (n * tau)) ** 2
    assert exact_mu(tau, n, n_sites, n_colluding) ** 2 / unit == pytest.approx(exact, abs=5e-4)
    assert 2 * paper.cape_mu_z(tau, n, n_sites, n_colluding) / unit == pytest.approx(printed, abs=5e-4)
    assert paper.cape_sigma_z(tau, n, n_sites, n_colluding) ** 2 / unit == pytest.approx(printed, abs=5e-4)


def test_theorem_1_errs_both_ways():
    mu = exact_mu(0.15, 1000, 30, 9)
    assert paper.cape_delta(0.9, 0.15, 1000, 30, 9) == pytest.approx(3.2e-5, rel=0.02)
    assert gaussian_delta(mu, 0.9) == pytest.approx(2.3e-4, rel=0.02)
    assert paper.cape_delta(0.5, 0.15, 1000, 30, 9) == pytest.approx(2.7e-2, rel=0.02)
    assert gaussian_delta(mu, 0.5) == pytest.approx(8.4e-3, rel=0.02)


def test_theorem_1_promises_less_than_half_of_the_exact_delta():
    assert paper.cape_delta(0.95, 0.115, 1000, 30, 9) == pytest.approx(9.7e-4, rel=0.01)
    assert gaussian_delta(exact_mu(0.115, 1000, 30, 9), 0.95) == pytest.approx(1.9e-3, rel=0.03)


@pytest.mark.parametrize(("n_sites", "n_colluding", "n_lost", "ratio"), [(4, 1, 1, 1.286), (30, 9, 9, 1.441)])
def test_lost_sites_weaken_the_papers_guarantee(n_sites, n_colluding, n_lost, ratio):
    """Noise tau^2/S at each site, sized for all; the survivors share it, S_C of them colluding."""
    left = n_sites - n_lost
    survivors = Cape(1.0, 1 / n_sites, [1 / left] * left, n_colluding).mu(1.0)[0] ** 2
    everyone = Cape(1.0, 1 / n_sites, [1 / n_sites] * n_sites, n_colluding).mu(1.0)[0] ** 2
    assert survivors / everyone == pytest.approx(ratio, abs=5e-4)


def test_masks_on_both_triangles_of_a_symmetric_matrix_are_half_as_wide():
    """The mean of entries (i, j) and (j, i) keeps statistic and local noise, and halves the mask."""
    both, one = Cape(1 / 2, 1 / 4, [1 / 4] * 4, 1), Cape(1.0, 1 / 4, [1 / 4] * 4, 1)
    assert both.mu(1.0)[0] ** 2 == pytest.approx(2.222, abs=5e-4)
    assert (both.mu(1.0)[0] / one.mu(1.0)[0]) ** 2 == pytest.approx(1.19, abs=5e-3)


def test_theorem_1_says_nothing_below_mu_z():
    assert paper.cape_delta(1e-3, 0.01, 1000, 10, 3) == 1
    assert paper.cape_delta(0.02, 0.15, 1000, 30, 9) == 1


def test_theorem_1_is_refused_beyond_its_collusion_bound():
    with pytest.raises(
        InputError, match=r"n_colluding must be at most ceil\(S/3\) - 1 = 3 for Theorem 1; got 4"
    ):
        paper.cape_delta(0.5, 1.0, 1000, 10, 4)


def test_gaussian_mechanism_is_loose_and_then_wrong():
    assert paper.gaussian_mechanism_tau(2.0, 0.5, 1e-5) == pytest.approx(
        1.378 * 2 / gaussian_mu(0.5, 1e-5), rel=1e-3
    )
    for delta, last in ((1e-5, 8.42), (1e-2, 6.77)):
        valid, invalid = last - 0.01, last + 0.01
        assert paper.gaussian_mechanism_tau(1.0, valid, delta) > 1 / gaussian_mu(valid, delta)
        assert paper.gaussian_mechanism_tau(1.0, invalid, delta) < 1 / gaussian_mu(invalid, delta)


def test_delta_pooled_and_conventional():
    assert paper.delta_pooled(0.5, 0.02, 1000, 4) == pytest.approx(5.5e-2, rel=0.01)
    assert gaussian_delta(4 / (1000 * 0.02), 0.5) == pytest.approx(5.1e-4, rel=0.01)
    # the same noise at the aggregator costs sqrt(S) more per site without correlation
    assert paper.delta_conventional(0.5, 0.04, 1000, 4) == pytest.approx(
        paper.delta_pooled(0.5, 0.02, 1000, 4)
    )
    assert paper.delta_pooled(1e-3, 0.01, 1000, 10) == 1


@given(st.lists(st.integers(1, 300), min_size=2, max_size=9))
def test_sample_size_ratio_stays_within_its_bounds(sizes):
    low, high = paper.sample_size_ratio_bounds(sum(sizes), len(sizes))
    assert low * (1 - 1e-12) <= paper.sample_size_ratio(sizes) <= high * (1 + 1e-12)


def test_sample_size_ratio_bounds_are_attained():
    assert paper.sample_size_ratio([50] * 4) == pytest.approx(1)
    assert paper.sample_size_ratio([97, 1, 1, 1]) == pytest.approx(paper.sample_size_ratio_bounds(100, 4)[1])
    with pytest.raises(InputError, match="n_samples must be a whole number of at least 5, got 4"):
        paper.sample_size_ratio_bounds(4, 5)


def test_proposition_2():
    assert paper.low_sensitivity_conditions(lambda n: 1 / n, [50] * 4) == (True, True)
    assert paper.low_sensitivity_conditions(lambda n: 1 / n, [20, 80, 50, 50]) == (True, False)
    assert paper.low_sensitivity_conditions(lambda n: 1 / math.sqrt(n), [50] * 4) == (False, False)


def test_gain_at_equal_tau_and_at_equal_epsilon():
    assert paper.gain(4) == 4
    weights = [1 / 4] * 4
    cape, conventional = Cape(1.0, 1 / 4, weights, 1), Cape(0.0, 1.0, weights, 1)
    assert conventional.output_variance / cape.output_variance == pytest.approx(paper.gain(4))
    uniform, masked, none = (calibrate(1.0, 1.0, weights, 1, mask) for mask in ("uniform", "paper", "none"))
    assert none.output_variance / uniform.output_variance == pytest.approx(3)
    assert none.output_variance / masked.output_variance == pytest.approx(2.14, abs=5e-3)


def test_asymmetric_system_solves_the_printed_equations():
    tau, tau_pool, w = np.array([1.0, 1.2, 0.9, 1.1]), 0.22, np.array([0.25, 0.22, 0.28, 0.25])
    cape = paper.asymmetric_cape(tau, tau_pool, w, 1)
    s = len(w)
    printed = np.array(
        [[(1 - 1 / s) ** 2 if i == k else w[k] ** 2 / (w[i] ** 2 * s**2) for k in range(s)] for i in range(s)]
    )
    assert printed @ cape.mask_var == pytest.approx(tau**2 - tau_pool**2 / (w**2 * s))
    assert cape.output_variance == pytest.approx(tau_pool**2)


def test_asymmetric_system_contains_the_symmetric_scheme():
    cape = paper.asymmetric_cape([2.0] * 5, 2.0 / 5, [0.2] * 5, 1)
    assert cape.mask_var == pytest.approx(np.full(5, 4.0))
    assert cape.local_var == pytest.approx(np.full(5, 4.0 / 5))


def test_asymmetric_system_refuses_two_sites_and_negative_variances():
    with pytest.raises(InputError, match="singular for 2 sites"):
        paper.asymmetric_cape([1.0, 1.0], 0.5, [0.5, 0.5], 1)
    with pytest.raises(InputError, match="mask of site 2 would need the negative variance"):
        paper.asymmetric_cape([3.0, 3.0, 0.1], 0.05, [1 / 3] * 3, 1)


def test_asymmetric_covariance_as_printed_is_not_the_view():
    """For the symmetric scheme the printed matrix is not even positive definite."""
    cape = Cape(1.0, 1 / 4, [1 / 4] * 4, 1)
    assert 2 * paper.asymmetric_mu_z(cape, [0, 1, 2], 1.0) == pytest.approx(-1.548, abs=5e-4)
    assert cape.mu(1.0)[0] ** 2 == pytest.approx(1.867, abs=5e-4)


def test_rdp_expressions():
    sigma2 = paper.rdp_sigma_squared_corrected(0.5, 1.0)
    assert sigma2 == 0.25
    mus = Release(1 / math.sqrt(sigma2), count=200)
    ledger = accountant("rdp", 1e-5)
    ledger.compose(mus)
    assert paper.rdp_epsilon(100, sigma2, sigma2, 1e-5) == pytest.approx(ledger.epsilon)
    assert paper.rdp_epsilon(100, sigma2, sigma2, 1e-5) == pytest.approx(535.7, abs=0.05)
    exact = accountant("exact", 1e-5)
    exact.compose(mus)
    assert exact.epsilon == pytest.approx(519.7, abs=0.05)
    rate, shift = 0.015 / math.log(20), 0.06
    assert paper.rdp_sigma_squared(0.5, shift, rate) / paper.rdp_sigma_squared_corrected(
        0.5, shift
    ) == pytest.approx(rate**2 * shift)


def test_rdp_epsilon_with_next_to_no_noise():
    """alpha_opt - 1 far below the last bit of 1; the closed form is A/2 + sqrt(2 A log(1/delta))."""
    a = 2 * 10**9 / 1e-24
    assert paper.rdp_epsilon(10**9, 1e-24, 1e-24, 1e-5) == pytest.approx(
        a / 2 + math.sqrt(2 * a * math.log(1e5))
    )


def test_rdp_order_is_optimal():
    def at(order):
        return order * 100 / (2 * 0.125) + math.log(1e5) / (order - 1)

    best = paper.rdp_optimal_order(100, 0.25, 0.25, 1e-5)
    assert at(best) <= min(at(best * 0.999), at(best * 1.001))


@pytest.mark.parametrize(("a", "ratio"), [(800, 2.811), (100, 2.031), (1, 1.109)])
def test_moments_quadratic_as_printed_is_pessimistic(a, ratio):
    printed, corrected = (
        f(a, 1.0, 1.0, 1e-5) for f in (paper.moments_epsilon, paper.moments_epsilon_corrected)
    )
    assert printed / corrected == pytest.approx(ratio, abs=1e-3)
    assert printed**2 / (2 * a) - printed + a / 8 + math.log(1e-5) == pytest.approx(0, abs=1e-9)
    assert corrected**2 / (2 * a) - corrected / 2 + a / 8 + math.log(1e-5) == pytest.approx(0, abs=1e-9)
    assert corrected == pytest.approx(paper.rdp_epsilon(a, 2.0, 2.0, 1e-5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper.cape_mu_z(1.0, 0, 4, 1), "n_samples must be a whole number of at least 1, got 0"),
        (lambda: paper.cape_delta(0.5, 0.0, 100, 4, 1), "tau must be a finite number above 0, got 0"),
        (lambda: paper.cape_delta(math.nan, 1.0, 100, 4, 1), "epsilon must be a number, got nan"),
        (lambda: paper.delta_pooled(-1, 1.0, 100, 4), "epsilon must be a finite number above 0, got -1"),
        (lambda: paper.delta_conventional(1, 1.0, 100, 0), "n_sites must be a whole number of at least 1"),
        (lambda: paper.rdp_epsilon(0, 1.0, 1.0, 0.1), "n_iterations must be a whole number of at least 1"),
        (lambda: paper.rdp_epsilon(9, 0.0, 1.0, 0.1), "sigma_w2 must be a finite number above 0, got 0"),
        (lambda: paper.moments_epsilon(9, 1.0, 0.0, 0.1), "sigma must be a finite number above 0, got 0"),
        (lambda: paper.moments_epsilon(9, 1.0, 1.0, 1.0), "delta must lie strictly between 0 and 1"),
        (lambda: paper.gaussian_mechanism_tau(1.0, 0, 0.1), "epsilon must be a finite number above 0"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_theorem_2():
    assert paper.capedjica_naive(10, 0.5, 1e-6) == (10.0, pytest.approx(2e-5))
