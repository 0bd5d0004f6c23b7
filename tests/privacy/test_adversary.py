"""Whoever is named as covered is covered by the claimed mu, and nobody beyond."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, calibrate, gaussian_epsilon, gaussian_mu
from capedjica.privacy.adversary import adversary, curious_site_epsilon, curious_site_mu

SLACK = 1 + 1e-9
budgets = st.floats(0.05, 5.0)


@st.composite
def releases(draw, n_colluding=None):
    """Sites with their weights, sizes and budgets, and the noise that CAPE gives them."""
    n_sites = draw(st.integers(2, 7))
    colluding = draw(st.integers(0, n_sites - 1)) if n_colluding is None else n_colluding
    sizes = np.array(draw(st.lists(st.integers(5, 300), min_size=n_sites, max_size=n_sites)), dtype=float)
    claimed = np.array(draw(st.lists(budgets, min_size=n_sites, max_size=n_sites)))
    mask = draw(st.sampled_from(["uniform", "paper"]))
    shift = 2 / sizes
    return calibrate(claimed, shift, sizes / sizes.sum(), colluding, mask), shift, claimed


def seen_by(cape, shift, n_colluding):
    return Cape(cape.mask_var, cape.local_var, cape.weights, n_colluding).mu(shift)


@given(releases())
def test_cape_covers_as_many_sites_as_it_says_and_not_one_more(release):
    cape, shift, claimed = release
    whom = adversary("cape", cape.n_sites, cape.n_colluding)
    assert whom.aggregator
    for allies in range(whom.n_sites + 1):
        assert (seen_by(cape, shift, allies) <= claimed * SLACK).all()
    if whom.n_sites < cape.n_sites - 1:
        # the noise is no larger than it has to be: one more site, and somebody has more than was claimed
        assert (seen_by(cape, shift, whom.n_sites + 1) > claimed * SLACK).any()
        assert "NOT against" in str(whom)
        assert whom.not_against != "the site that holds the data"


@given(releases(n_colluding=0))
def test_one_curious_site_at_the_noise_for_none(release):
    """The best of the other sites takes its own noise off the published mean: equation (1)."""
    cape, shift, _ = release
    aggregator = cape.mu(shift)
    bound = np.array([curious_site_mu(mu, cape.n_sites) for mu in aggregator])
    noise = cape.weights**2 * cape.local_var
    left = np.array([noise.sum() - np.delete(noise, s).max() for s in range(cape.n_sites)])
    alone = cape.weights * shift / np.sqrt(left)
    assert (alone <= bound * SLACK).all()
    assert (seen_by(cape, shift, 1) <= bound * SLACK).all()
    if np.isinf(cape.mask_var).all():
        assert alone == pytest.approx(bound, rel=1e-9)
        assert seen_by(cape, shift, 1) == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(("n_sites", "expected"), [(4, 12.0), (2, 15.5)])
def test_epsilon_ten_without_colluders_is_more_against_a_site(n_sites, expected):
    mu = gaussian_mu(10.0, 1e-5 * (1 - 1e-6))
    found = curious_site_epsilon(mu, n_sites, 1e-5)
    assert found == pytest.approx(expected, abs=0.1)
    assert found >= gaussian_epsilon(curious_site_mu(mu, n_sites), 1e-5)
    assert curious_site_epsilon(mu, 1, 1e-5) == math.inf


def test_without_colluders_no_other_site_is_covered():
    none, one = adversary("cape", 4, 0), adversary("cape", 4, 1)
    assert (none.aggregator, none.n_sites) == (True, 0)
    assert "any other site" in none.not_against
    assert "site" not in none.against.replace("no site", "")
    assert (one.aggregator, one.n_sites) == (True, 1)
    assert "any 1 of the 3 other sites" in one.against


@pytest.mark.parametrize("n_colluding", [0, 1])
def test_conventional_noise_covers_all_other_sites(n_colluding):
    """Each message has enough noise by itself, so the others' noise may be known."""
    claimed, shift = 0.5, np.full(4, 0.02)
    cape = calibrate(claimed, shift, np.full(4, 0.25), n_colluding, "none")
    whom = adversary("conventional", 4, n_colluding)
    assert (whom.aggregator, whom.n_sites) == (True, 3)
    assert (seen_by(cape, shift, whom.n_sites) <= claimed * SLACK).all()


def test_all_others_of_cape_are_all_other_sites():
    assert adversary("cape", 4, 3).against == adversary("conventional", 4, 3).against


@pytest.mark.parametrize(
    ("mechanism", "secure", "aggregator", "n_sites"),
    [
        ("local", True, True, 3),
        ("pooled", True, False, 3),
        ("none", True, False, 0),
        ("cape", False, False, 0),
    ],
)
def test_the_others(mechanism, secure, aggregator, n_sites):
    whom = adversary(mechanism, 4, 1, "north", secure)
    assert (whom.aggregator, whom.n_sites) == (aggregator, n_sites)
    assert (whom.against == "no one") == (not secure or mechanism == "none")
    assert ("aggregator" in whom.not_against) == (mechanism == "pooled")
    assert ("site north" in whom.against) == (mechanism == "local")


def test_no_two_adversaries_share_their_words():
    cases = [("cape", 4, c) for c in range(3)] + [
        (name, 4, 1) for name in ("conventional", "local", "pooled")
    ]
    for one, other in combinations(cases, 2):
        assert str(adversary(*one)) != str(adversary(*other))


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(InputError, match="mechanism must be one of cape"):
        adversary("magic", 4, 1)
