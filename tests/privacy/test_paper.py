"""The paper's formulas as printed, and how far each is from the exact value."""

import math

import pytest

from capedjica.errors import InputError
from capedjica.privacy import Cape, Release, accountant, gaussian_delta, gaussian_mu, paper


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


def test_rdp_expressions():
    mus = Release(2.0, count=200)
    ledger = accountant("rdp", 1e-5)
    ledger.compose(mus)
    assert paper.rdp_epsilon(100, 0.25, 0.25, 1e-5) == pytest.approx(ledger.epsilon)
    assert paper.rdp_epsilon(100, 0.25, 0.25, 1e-5) == pytest.approx(535.7, abs=0.05)
    exact = accountant("exact", 1e-5)
    exact.compose(mus)
    assert exact.epsilon == pytest.approx(519.7, abs=0.05)


def test_rdp_epsilon_with_next_to_no_noise():
    """alpha_opt - 1 far below the last bit of 1; the closed form is A/2 + sqrt(2 A log(1/delta))."""
    a = 2 * 10**9 / 1e-24
    assert paper.rdp_epsilon(10**9, 1e-24, 1e-24, 1e-5) == pytest.approx(
        a / 2 + math.sqrt(2 * a * math.log(1e5))
    )


@pytest.mark.parametrize("a", [800, 100, 1])
def test_moments_epsilon_solves_the_quadratic_as_printed(a):
    printed = paper.moments_epsilon(a, 1.0, 1.0, 1e-5)
    assert printed**2 / (2 * a) - printed + a / 8 + math.log(1e-5) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper.cape_mu_z(1.0, 0, 4, 1), "n_samples must be a whole number of at least 1, got 0"),
        (lambda: paper.cape_delta(0.5, 0.0, 100, 4, 1), "tau must be a finite number above 0, got 0"),
        (lambda: paper.cape_delta(math.nan, 1.0, 100, 4, 1), "epsilon must be a number, got nan"),
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
