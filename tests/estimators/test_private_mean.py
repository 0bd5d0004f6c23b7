"""``capedjica.private_mean`` as a researcher uses it."""

import math

import numpy as np
import pytest

from capedjica import private_mean
from capedjica.errors import CapedjicaError, InputError
from tests.mechanisms.world import clipped_mean, make_data

DATA = make_data((30, 20, 40), 6)


@pytest.mark.parametrize("mechanism", ["cape", "conventional", "pooled", "local", "none"])
def test_every_mechanism_estimates_the_clipped_mean(mechanism):
    result = private_mean(DATA, 1.0, None if mechanism == "none" else 5.0, mechanism=mechanism)
    data = {"s2": DATA["s2"]} if mechanism == "local" else DATA
    assert np.abs(result.value - clipped_mean(data)).max() <= 6 * result.noise + 1e-9
    assert result.privacy.epsilon == (math.inf if mechanism == "none" else 5.0)
    assert result.privacy.spent_epsilon <= result.privacy.epsilon


def test_lists_dicts_and_shapes():
    named = private_mean(
        {"a": np.ones((9, 2, 3)), "b": np.ones((8, 2, 3)), "c": np.ones((7, 2, 3))}, 9.0, 50.0
    )
    assert named.value.shape == (2, 3)
    listed = private_mean([[1.0, 2.0, 3.0], [4.0, 5.0], [6.0]], 10.0, 50.0)
    assert listed.value.shape == ()
    assert list(listed.privacy.site_epsilon) == ["site-1", "site-2", "site-3"]


def test_budgets_by_site():
    budgets = {"s0": 0.5, "s1": 2.0, "s2": 1.0}
    privacy = private_mean(DATA, 1.0, budgets).privacy
    assert privacy.epsilon == 2.0
    assert privacy.site_epsilon == budgets
    (charge,) = privacy.releases
    assert charge.site_mu["s0"] < charge.site_mu["s1"]


@pytest.mark.parametrize("n_colluding", [0, 1, 2])
def test_any_number_of_colluders_but_all(n_colluding):
    result = private_mean(DATA, 1.0, 1.0, n_colluding=n_colluding)
    assert result.privacy.adversary.n_sites == n_colluding
    assert result.privacy.adversary.against in str(result.privacy)
    assert ("Against one curious site, epsilon is " in str(result.privacy)) == (n_colluding == 0)
    alone = private_mean(DATA, 1.0, 1.0, mechanism="conventional").noise
    assert result.noise == pytest.approx(alone / math.sqrt(3 - n_colluding), rel=1e-4)
    four = {**DATA, "s3": DATA["s0"]}
    assert private_mean(four, 1.0, 1.0, n_colluding=3).privacy.n_colluding == 3


def test_a_broken_subject_counts_as_zero():
    data = {name: rows.copy() for name, rows in DATA.items()}
    data["s0"][0, 0] = np.nan
    result = private_mean(data, 1.0, mechanism="none")
    assert result.value == pytest.approx(clipped_mean(data), abs=1e-9)


def test_seeded_noise_repeats_and_taints():
    first, again = (private_mean(DATA, 1.0, 1.0, insecure_noise_seed=7) for _ in range(2))
    assert (first.value == again.value).all()
    assert not first.privacy.secure
    assert first.privacy.epsilon == first.privacy.releases[0].mu == math.inf
    assert first.privacy.nominal_epsilon == 1.0
    assert str(first.privacy).startswith("NOT PRIVATE")
    fresh, other = (private_mean(DATA, 1.0, 1.0).value for _ in range(2))
    assert (fresh != other).all()


def test_the_statement_reads_well():
    text = str(private_mean(DATA, 1.0, 1.0).privacy)
    assert "epsilon 1 at delta 1e-5" in text
    assert "any 1 of the 2 other sites" in text
    assert "NOT hold against the aggregator" in str(private_mean(DATA, 1.0, 1.0, mechanism="pooled").privacy)
    assert str(private_mean(DATA, 1.0, mechanism="none").privacy).startswith("NOT PRIVATE: no noise")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([], 1.0, 1.0), {}, "X contains no sites"),
        (("abc", 1.0, 1.0), {}, "X must be a list of sites or a dict"),
        ((5, 1.0, 1.0), {}, "X must be a list of sites or a dict"),
        (({"a": [], "b": [1.0]}, 1.0, 1.0), {}, "site a has no subjects"),
        (([[[1.0, 2.0]], [[1.0]]], 1.0, 1.0), {}, r"site site-2, subject 0 has shape \(1,\), .* has \(2,\)"),
        (([["x"], ["y"]], 1.0, 1.0), {}, "site site-1, subject 0 is not an array of numbers"),
        ((DATA, 0.0, 1.0), {}, "clip must be a finite number above 0, got 0.0"),
        ((DATA, -1.0, 1.0), {}, "clip must be a finite number above 0, got -1.0"),
        ((DATA, 1.0), {}, "epsilon must be given for mechanism 'cape'"),
        ((DATA, 1.0, 1.0), {"mechanism": "none"}, "epsilon must not be given, got 1.0"),
        ((DATA, 1.0, math.nan), {}, "epsilon must be a number, got nan"),
        ((DATA, 1.0, {"s0": 1.0}), {}, "epsilon must name the sites s0, s1, s2; got s0"),
        ((DATA, 1.0, 1.0), {"mechanism": "magic"}, "mechanism must be one of"),
        ((DATA, 1.0, 1.0), {"n_colluding": 3}, "n_colluding must be less than the number of sites, 3; got 3"),
        ((DATA, 1.0, 1.0), {"weights": [1.0]}, "weights must contain one number for each of the 3 sites"),
        (
            (DATA, 1.0, 1.0),
            {"weights": {"x": 1.0}},
            "must name the same sites as X, s0, s1, s2; got x",
        ),
        (({"a b": [1.0], "c": [1.0]}, 1.0, 1.0), {}, "site name 'a b' cannot be used"),
        (([[1.0, 2.0]], 1.0, 1.0), {}, "needs at least two sites, got 1"),
        ((DATA, 1.0, 1.0), {"insecure_noise_seed": -1}, "insecure_noise_seed must be a non-negative integer"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises((InputError, CapedjicaError), match=message):
        private_mean(*arguments, **options)
