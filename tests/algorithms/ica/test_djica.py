"""djICA against a transcription with one loop per site, and what it does with odd sites and rates."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.algorithms.ica import djica as module
from capedjica.algorithms.ica.djica import djica
from capedjica.algorithms.ica.infomax import default_learning_rate
from capedjica.errors import InputError
from capedjica.metrics import normalized_gain_index
from tests.algorithms.ica import reference

R = 3


def make_sites(sizes=((40, 70), (100,), (55, 20, 30)), seed=0):
    """Unequal sites of unequal scans: heavy tails, mixed, off centre."""
    rng = np.random.default_rng(seed)
    mixing, centre = rng.normal(size=(R, R)), 5 * rng.normal(size=R)
    return [[rng.laplace(size=(T, R)) @ mixing.T + centre for T in site] for site in sizes], mixing


@pytest.mark.parametrize(
    "sizes",
    [((40, 70), (100,), (55, 20, 30)), ((20,), (400,)), ((500,),), ((81,), (79,))],
    ids=["unequal", "smallest blocks", "one site", "one point left over"],
)
def test_every_pass_is_that_of_the_transcription(sizes):
    sites, _ = make_sites(sizes)
    expected = list(reference.djica(sites, default_learning_rate(R), 12, np.random.default_rng(7)))
    seen = []
    result = djica(
        sites, random_state=7, max_iter=12, progress=lambda unmixing, n: seen.append((n, unmixing))
    )
    assert_allclose(result.unmixing, expected[-1].W, rtol=1e-9, atol=1e-9)
    assert_allclose(result.changes, [step.change for step in expected], rtol=1e-7)
    assert_allclose(result.learning_rate, expected[-1].rate, rtol=1e-12)
    assert result.n_iter == 12
    assert [n for n, _ in seen] == list(range(1, 13))
    assert_allclose(seen[-1][1], result.unmixing)


def test_the_transcription_sees_turns():
    sites, _ = make_sites()
    steps = reference.djica(sites, default_learning_rate(R), 12, np.random.default_rng(7))
    assert "turn" in set(itertools.chain.from_iterable(step.events for step in steps))


def test_the_sources_are_found_whatever_the_mixing_and_the_seed():
    sites, mixing = make_sites(((3000,), (2000, 1000)))
    first, second = (djica(sites, random_state=seed) for seed in (0, 1))
    for result in (first, second):
        assert normalized_gain_index(result.unmixing @ mixing) < 0.05
        assert result.changes[-1] < 1e-6
        assert result.n_iter == len(result.changes) < 1000
    assert (first.unmixing != second.unmixing).any()
    assert normalized_gain_index(first.unmixing @ np.linalg.inv(second.unmixing)) < 0.01


def test_a_seed_repeats_a_run():
    sites, _ = make_sites()
    first, second = (djica(sites, random_state=3, max_iter=4) for _ in range(2))
    assert_array_equal(first.unmixing, second.unmixing)


def test_the_unit_of_the_samples_does_not_matter():
    sites, _ = make_sites()
    small = [[1e-6 * subject for subject in site] for site in sites]
    first, second = (djica(data, random_state=3, max_iter=4) for data in (sites, small))
    assert_allclose(1e-6 * second.unmixing, first.unmixing, rtol=1e-6)


def test_a_pass_that_runs_away_starts_again_at_a_lower_rate(monkeypatch):
    monkeypatch.setattr(module, "default_learning_rate", lambda size: 1.0)
    sites, mixing = make_sites(((1500,), (1500,)))
    result = djica(sites, random_state=0)
    restarts = sum(math.isinf(change) for change in result.changes)
    assert restarts >= 3
    assert result.learning_rate <= 0.9**restarts
    assert result.changes[-1] < 1e-6
    assert normalized_gain_index(result.unmixing @ mixing) < 0.1


def bad(subject):
    sites, _ = make_sites()
    sites[1] = [subject]
    return sites


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ([], r"samples of one dimension R, got \[\]"),
        ([[]], "site 0 must contain arrays of numbers"),
        (
            bad(np.zeros((19, R))),
            r"site 1 must have at least 20 time points .* got shape \(19, 3\)",
        ),
        (bad(np.zeros(30)), "site 1 must have at least 20 time points"),
        (bad([["a"] * R] * 30), "site 1 must contain arrays of numbers"),
        (bad(np.ones((30, R + 1))), r"samples of one dimension R, got \[3, 4, 3\]"),
        (bad(np.full((30, R), np.nan)), "site 1 must contain finite numbers, got NaN or infinity"),
        ([[np.ones((30, R))]], "samples must have full rank in their 3 dimensions"),
        ([[np.arange(60.0).reshape(30, 2)]], "samples must have full rank in their 2 dimensions"),
        ([[np.arange(30.0).reshape(30, 1)]], "n_components must be a whole number of at least 2, got 1"),
    ],
)
def test_what_cannot_be_used_is_refused(sites, message):
    with pytest.raises(InputError, match=message):
        djica(sites)


def test_passes_must_be_a_number():
    with pytest.raises(InputError, match="max_iter must be a whole number of at least 1, got 0"):
        djica(make_sites()[0], max_iter=0)
