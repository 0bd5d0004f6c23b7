"""One interface, five ways of adding; the exact one against dp-accounting and arbitrary precision."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as ReferenceRdp
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import BudgetExceededError, InputError
from capedjica.privacy import ACCOUNTANTS, ExactAccountant, Release, accountant, gaussian_epsilon, gaussian_mu

MIXED = [Release(0.3, label="subspace"), Release(0.2), Release(0.05, count=60, label="gradient")]
releases = st.lists(
    st.builds(Release, mu=st.floats(1e-3, 2), count=st.integers(1, 50)),
    min_size=1,
    max_size=6,
)


def total(name, items, delta=1e-5):
    ledger = accountant(name, delta)
    ledger.compose(*items)
    return ledger.epsilon


def test_exact_equals_the_numerical_convolution_of_dp_accounting():
    reference = PLDAccountant(value_discretization_interval=1e-4)
    for item in MIXED:
        reference.compose(dp_accounting.GaussianDpEvent(1 / item.mu), item.count)
    assert total("exact", MIXED) == pytest.approx(reference.get_epsilon(1e-5), rel=2e-3)
    assert total("exact", MIXED) <= reference.get_epsilon(1e-5)


def test_rdp_is_between_exact_and_twice_it_and_above_the_improved_conversion():
    reference = ReferenceRdp()
    for item in MIXED:
        reference.compose(dp_accounting.GaussianDpEvent(1 / item.mu), item.count)
    assert total("exact", MIXED) <= reference.get_epsilon(1e-5) <= total("rdp", MIXED)


@given(releases, st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_every_accountant_is_an_upper_bound(items, delta):
    exact = total("exact", items, delta)
    mu = math.sqrt(math.fsum(r.count * r.mu**2 for r in items))
    assert exact == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-12)
    for name in ("rdp", "moments", "strong", "naive"):
        assert total(name, items, delta) >= exact * (1 - 1e-12)


@given(releases, st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_rdp_is_the_best_order_and_moments_the_best_exponent(items, delta):
    """Both definitions, minimised by hand over a grid of orders alpha = 1 + t around the best one."""
    a = math.fsum(r.count * r.mu**2 for r in items)
    best = math.sqrt(-2 * math.log(delta) / a)
    orders = [1 + best * factor for factor in (0.5, 0.9, 1.0, 1.1, 2.0)]
    by_order = [order * a / 2 - math.log(delta) / (order - 1) for order in orders]
    assert total("rdp", items, delta) == pytest.approx(min(by_order), rel=1e-12)
    epsilon = total("moments", items, delta)
    exponents = [a / 2 * (t + t**2) - t * epsilon for t in (order - 1 for order in orders)]
    assert min(exponents) == pytest.approx(math.log(delta), rel=1e-9)


@given(st.lists(st.tuples(st.floats(1e-3, 1), st.integers(1, 9)), min_size=1, max_size=5))
def test_order_and_grouping_do_not_matter(pairs):
    grouped = [Release(mu, k) for mu, k in pairs]
    single = [Release(mu) for mu, k in reversed(pairs) for _ in range(k)]
    for name in ACCOUNTANTS:
        assert total(name, grouped) == pytest.approx(total(name, single), rel=1e-12)


def test_one_release_costs_the_same_exactly_and_naively():
    assert total("naive", [Release(0.7)]) == pytest.approx(total("exact", [Release(0.7)]))


def test_strong_composition_of_equal_releases_by_hand():
    """k releases: sqrt(2 k log(1/d)) e + k e (exp(e) - 1), d = delta/2, e at delta/(2k) each."""
    k, delta = 30, 1e-5
    e = gaussian_epsilon(0.05, delta / 2 / k)
    by_hand = math.sqrt(2 * k * math.log(2 / delta)) * e + k * e * math.expm1(e)
    assert total("strong", [Release(0.05, k)], delta) == pytest.approx(by_hand, rel=1e-12)
    assert total("naive", [Release(0.05, k)], delta) == pytest.approx(k * gaussian_epsilon(0.05, delta / k))


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_a_refused_release_changes_nothing(name):
    ledger = accountant(name, 1e-5, max_epsilon=2.0)
    ledger.compose(Release(0.05))
    before = ledger.epsilon, ledger.releases
    with pytest.raises(BudgetExceededError, match=r"above the cap of 2 \(.* already spent\); they were"):
        ledger.compose(Release(0.001), Release(1.0))
    assert (ledger.epsilon, ledger.releases) == before
    assert ledger.epsilon_with(Release(1.0)) > 2.0
    ledger.compose(Release(0.001))


def test_the_whole_budget_can_be_spent_and_not_a_bit_more():
    ledger = ExactAccountant(1e-5, max_epsilon=1.0)
    mu = gaussian_mu(1.0, 1e-5) * (1 - 1e-12)
    ledger.compose(Release(mu / 2, count=4))
    assert ledger.epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError):
        ledger.compose(Release(1e-4))


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_nothing_costs_nothing_and_no_privacy_costs_infinity(name):
    assert accountant(name, 1e-5).epsilon == 0
    assert total(name, [Release(0.0)]) == 0
    assert total(name, [Release(0.1), Release(math.inf)]) == math.inf


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize("mu", [1e-290, 1e-170, 1e9, 1e160, 1e300])
def test_absurd_releases_have_a_total_no_smaller_than_the_exact_one(name, mu):
    items = [Release(mu, count=1000), Release(mu / 3)]
    assert total(name, items, 1e-300) >= total("exact", items, 1e-300) * (1 - 1e-12) > 0


def test_strong_composition_overflows_to_infinity():
    assert total("strong", [Release(60.0)]) == math.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Release(-1.0), "mu must be at least 0, got -1.0"),
        (lambda: Release(math.nan), "mu must be a number, got nan"),
        (lambda: Release(1.0, count=0), "count must be a whole number of at least 1, got 0"),
        (lambda: Release(1.0, count=math.inf), "count must be a whole number of at least 1, got inf"),
        (lambda: Release("much"), "mu must be a number, got 'much'"),
        (
            lambda: accountant("best", 1e-5),
            "accountant must be one of exact, rdp, moments, strong, naive; got 'best'",
        ),
        (lambda: accountant("exact", 0.0), "delta must lie strictly between 0 and 1, got 0.0"),
        (lambda: accountant("exact", 0.1, -1), "max_epsilon must be at least 0, got -1"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
