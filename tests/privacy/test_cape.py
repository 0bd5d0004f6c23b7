"""The exact view of the adversary, and the calibration built on it."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, calibrate, gaussian_epsilon, gaussian_mu
from capedjica.privacy.cape import _least_noise
from tests.privacy.oracles import brute_force_mu, joint_mu, linear_program


def random_configuration(rng, n_sites):
    weights = rng.dirichlet(np.full(n_sites, 2.0))
    mask_var, local_var = rng.lognormal(0, 1.5, (2, n_sites))
    return mask_var, local_var, weights


def test_mu_equals_inverse_of_joint_covariance_in_1000_random_cases():
    rng = np.random.default_rng(2020)
    for _ in range(1000):
        n_sites = int(rng.integers(2, 16))
        mask_var, local_var, weights = random_configuration(rng, n_sites)
        cape = Cape(mask_var, local_var, weights, int(rng.integers(0, n_sites)))
        sensitivities = rng.lognormal(0, 1, n_sites)
        mu = cape.mu(sensitivities)
        for site in range(n_sites):
            honest = [i for i in range(n_sites) if i not in cape.worst_colluders(site)]
            expected = joint_mu(mask_var, local_var, weights, honest, site, sensitivities[site])
            assert mu[site] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_sites", range(2, 10))
def test_worst_colluding_set_equals_brute_force(n_sites):
    rng = np.random.default_rng(n_sites)
    for n_colluding in range(n_sites):
        mask_var, local_var, weights = random_configuration(rng, n_sites)
        mu = Cape(mask_var, local_var, weights, n_colluding).mu(1.0)
        site = int(rng.integers(n_sites))
        expected = brute_force_mu(mask_var, local_var, weights, n_colluding, site, 1.0)
        assert mu[site] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_colluding", [0, 1, 3])
def test_infinite_masks_are_the_limit_of_wide_ones(n_colluding):
    rng = np.random.default_rng(7)
    _, local_var, weights = random_configuration(rng, 6)
    limit = Cape(math.inf, local_var, weights, n_colluding).mu(1.0)
    errors = [
        np.max(np.abs(Cape(v, local_var, weights, n_colluding).mu(1.0) / limit - 1)) for v in (1e4, 1e8, 1e12)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-8
    noise = weights**2 * local_var
    for site in range(6):
        others = sorted(np.delete(noise, site))[: 5 - n_colluding]
        assert limit[site] == pytest.approx(weights[site] / math.sqrt(noise[site] + sum(others)), rel=1e-14)


def test_one_site_with_an_infinite_mask_among_finite_ones():
    mixed = Cape([1.0, math.inf, 2.0], [0.3, 0.2, 0.1], [0.2, 0.3, 0.5], 1)
    wide = Cape([1.0, 1e14, 2.0], [0.3, 0.2, 0.1], [0.2, 0.3, 0.5], 1)
    assert mixed.mu(1.0) == pytest.approx(wide.mu(1.0), rel=1e-9)


@pytest.mark.parametrize(("n_sites", "n_colluding"), [(4, 1), (30, 9), (10, 3), (4, 0)])
def test_symmetric_closed_forms(n_sites, n_colluding):
    s, h, tau, shift = n_sites, n_sites - n_colluding, 1.7, 0.4
    weights = np.full(s, 1 / s)
    with_paper_masks = Cape(tau**2, tau**2 / s, weights, n_colluding).mu(shift)[0]
    assert with_paper_masks**2 == pytest.approx((shift / tau) ** 2 * s / (s + 1) * (1 + s / h), rel=1e-12)
    with_uniform_masks = Cape(math.inf, tau**2 / s, weights, n_colluding).mu(shift)[0]
    assert with_uniform_masks**2 == pytest.approx((shift / tau) ** 2 * s / h, rel=1e-12)


def test_no_masks_is_the_conventional_scheme_and_all_colluding_is_local():
    local_var = np.array([1.0, 4.0, 9.0])
    assert Cape(0.0, local_var, [0.2, 0.3, 0.5], 1).mu(1.0) == pytest.approx(1 / np.sqrt(local_var))
    assert Cape(math.inf, local_var, [0.2, 0.3, 0.5], 2).mu(1.0) == pytest.approx(1 / np.sqrt(local_var))


def test_nothing_hidden_is_infinite_and_nothing_said_is_zero():
    assert np.isinf(Cape(0.0, 0.0, [0.5, 0.5], 1).mu(1.0)).all()
    assert np.isinf(Cape(math.inf, 0.0, [0.5, 0.5], 0).mu(1.0)).all()
    assert (Cape(0.0, 0.0, [0.5, 0.5], 1).mu(0.0) == 0).all()
    # a site that hides nothing does not uncover, or cover, the others
    mixed = Cape([0.0, math.inf, math.inf], [0.0, 1.0, 2.0], [0.2, 0.4, 0.4], 0).mu(1.0)
    assert mixed == pytest.approx([math.inf, 1 / math.sqrt(3), 1 / math.sqrt(3)])
    # a site of weight 0 behind a mask that nobody sums gives nothing away
    assert Cape(math.inf, 1.0, [1.0, 0.0], 0).mu(1.0)[1] == 0


def test_mu_is_never_understated_where_variances_leave_the_range_of_a_double():
    """All others collude, so only a site's own noise counts, whatever its weight."""
    tiny = Cape(math.inf, [4.0, 1e-9], [1e-200, 1.0], 1)
    assert tiny.mu(1.0)[0] == pytest.approx(0.5, rel=1e-12)
    wide = Cape(1e308, 1e308, [0.5, 0.5], 1)
    assert wide.mu(1e154) == pytest.approx([1.0, 1.0], rel=1e-12)
    assert Cape(math.inf, 1.0, [1.0, 0.0], 0).mu([1.0, math.inf])[1] == 0


def test_epsilon_and_output_variance():
    cape = Cape(math.inf, [1.0, 4.0], [0.25, 0.75], 1)
    assert cape.output_variance == pytest.approx(0.0625 + 0.5625 * 4)
    assert cape.epsilon(0.1, 1e-5)[1] == pytest.approx(gaussian_epsilon(0.05, 1e-5))


needs = st.lists(st.floats(0.01, 100), min_size=2, max_size=8)


@settings(max_examples=200, deadline=None)
@given(needs, st.integers(0, 7))
def test_least_noise_solves_the_linear_program(need, n_colluding):
    need = np.array(need)
    n_colluding %= len(need)
    x = _least_noise(need, n_colluding)
    assert (x >= 0).all()
    for honest in combinations(range(len(need)), len(need) - n_colluding):
        assert x[list(honest)].sum() >= need[list(honest)].max() * (1 - 1e-12)
    assert x.sum() == pytest.approx(linear_program(need, n_colluding), rel=1e-7)


@settings(max_examples=200)
@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(5, 500), min_size=n, max_size=n),
            st.lists(st.floats(0.05, 3), min_size=n, max_size=n),
            st.integers(0, n - 1),
        )
    ),
    st.sampled_from(["uniform", "paper", "none"]),
)
def test_calibrated_noise_keeps_every_budget_and_wastes_none(setting, mask):
    sizes, budgets, n_colluding = setting
    sizes = np.array(sizes, dtype=float)
    cape = calibrate(budgets, 2 / sizes, sizes / sizes.sum(), n_colluding, mask)
    mu = cape.mu(2 / sizes)
    assert (mu <= np.array(budgets) * (1 + 1e-9)).all()
    assert np.max(mu / budgets) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    ("mask", "factor"),
    [
        ("uniform", lambda s, h: s / h),
        ("paper", lambda s, h: s / (s + 1) * (1 + s / h)),
        ("none", lambda s, h: s),
    ],
)
@pytest.mark.parametrize("sizes", [[256] * 4, [26, 175, 60, 31, 90]])
def test_noise_against_pooled_at_equal_epsilon(mask, factor, sizes):
    """Unequal sites weighted by their size pay what equal sites pay."""
    sizes = np.array(sizes, dtype=float)
    mu = gaussian_mu(1.0, 1e-5)
    cape = calibrate(mu, 2 / sizes, sizes / sizes.sum(), 1, mask)
    pooled = (2 / sizes.sum() / mu) ** 2
    assert cape.output_variance / pooled == pytest.approx(factor(len(sizes), len(sizes) - 1), rel=1e-12)


def test_two_sites_gain_nothing_over_independent_noise():
    uniform, none = (calibrate(0.5, 0.1, [0.5, 0.5], "third", mask) for mask in ("uniform", "none"))
    assert uniform.output_variance == pytest.approx(none.output_variance)


def test_third_is_never_less_than_one():
    for n_sites in range(2, 40):
        cape = Cape(1.0, 1.0, np.full(n_sites, 1 / n_sites))
        assert cape.n_colluding == max(1, math.ceil(n_sites / 3) - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0, [0.5, 0.5], 1), r"mask_var must be at least 0, got -1.0 for site 0"),
        ((1.0, [1.0, -2.0], [0.5, 0.5], 1), r"local_var must be at least 0, got -2.0 for site 1"),
        ((1.0, math.nan, [0.5, 0.5], 1), r"local_var must be at least 0, got nan"),
        ((1.0, math.inf, [0.5, 0.5], 1), r"local_var must be finite"),
        ((1.0, 1.0, [0.5, 0.6], 1), r"weights must add up to 1, got a sum of 1.1"),
        ((1.0, 1.0, [0.5, 0.50001], 1), r"weights must add up to 1, got a sum of 1.00001"),
        ((1.0, 1.0, [1.5, -0.5], 1), r"weights must be at least 0, got -0.5 for site 1"),
        ((1.0, 1.0, [], 1), r"weights must contain one value per site"),
        ((1.0, 1.0, [0.5, 0.5], 2), r"n_colluding must be less than the number of sites, 2; got 2"),
        ((1.0, 1.0, [1.0], "third"), r"n_colluding must be less than the number of sites, 1"),
        ((1.0, 1.0, [0.5, 0.5], -1), r"n_colluding must be a whole number of at least 0, got -1"),
        ((1.0, 1.0, [0.5, 0.5], 0.5), r"n_colluding must be a whole number"),
        ((1.0, 1.0, [0.5, 0.5], "half"), r"n_colluding must be a whole number or 'third', got 'half'"),
        (
            ([1.0, 2.0, 3.0], 1.0, [0.5, 0.5], 1),
            r"mask_var must contain one value, or one for each of the 2 sites; got 3",
        ),
        (("wide", 1.0, [0.5, 0.5], 1), r"mask_var must be a number or an array of numbers, got 'wide'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        Cape(*arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": 0}, "mu must be finite and above 0, got 0.0 for site 0"),
        ({"mu": [1, math.nan]}, "mu must be at least 0, got nan for site 1"),
        ({"sensitivities": [1, 0]}, "sensitivities must be finite and above 0, got 0.0 for site 1"),
        ({"weights": [1, 0]}, "got 0 for site 1; exclude that site"),
        ({"mask": "wide"}, "mask must be 'uniform', 'paper' or 'none', got 'wide'"),
    ],
)
def test_calibration_refuses_bad_input(changes, message):
    arguments = {"mu": 1.0, "sensitivities": 1.0, "weights": [0.5, 0.5], "n_colluding": 1, **changes}
    with pytest.raises(InputError, match=message):
        calibrate(**arguments)


def test_sensitivities_are_checked():
    with pytest.raises(InputError, match="sensitivities must be at least 0, got nan"):
        Cape(1.0, 1.0, [0.5, 0.5], 1).mu(math.nan)
