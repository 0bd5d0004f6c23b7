"""What a result cost, in words: never less than it did, and never private when it is not."""

import math
import re
from dataclasses import replace

import pytest

from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.privacy.statement import Charge, PrivacyStatement

EPSILON = 1.2345612
STATEMENT = PrivacyStatement(
    epsilon=EPSILON,
    delta=1e-5,
    mu=gaussian_mu(EPSILON, 1e-5),
    releases=(
        Charge("mean", {"north": 0.1, "south": 0.02}, noise=0.5),
        Charge("mean", {"north": 0.05, "south": 0.2}, noise=0.5, aborted=True),
        Charge("gradient", {"north": 0.2, "south": 0.01}, noise=0.5),
    ),
    site_epsilon={"north": EPSILON, "south": 1.0},
    mechanism="cape",
    n_sites=2,
    n_colluding=1,
)


def test_numbers_in_words_are_rounded_up():
    text = str(STATEMENT)
    epsilon, mu = re.search(r"epsilon = (\S+), delta = 1e-05\n\(mu = (\S+)\)", text).groups()
    assert float(epsilon) == 1.23457
    assert float(mu) >= STATEMENT.mu
    spent, allowed = re.search(r"epsilon = (\S+) of the (\S+) allowed", text).groups()
    assert float(spent) >= STATEMENT.spent_epsilon
    assert float(allowed) >= STATEMENT.epsilon


def test_a_site_that_was_not_in_the_last_release_is_named_as_lost():
    assert STATEMENT.lost == ()
    without = replace(
        STATEMENT, releases=(*STATEMENT.releases, Charge("gradient", {"north": 0.1}, noise=0.5))
    )
    assert without.lost == ("south",)
    assert "Sites lost on the way: south" in str(without)
    assert "lost on the way" not in str(STATEMENT)
    assert replace(without, mechanism="local").lost == ()


def test_an_epsilon_at_which_delta_does_not_cover_the_stream_says_so():
    large = replace(STATEMENT, epsilon=10.1)
    (probability,) = re.search(
        r"ideal random numbers; .* except with probability (\S+)\.", str(large)
    ).groups()
    assert 5e-12 <= float(probability) < 5.2e-12
    assert "ideal" not in str(replace(STATEMENT, epsilon=10.0))
    assert "ideal" not in str(replace(large, secure=False))
    assert "ideal" not in str(replace(large, epsilon=math.inf))


def test_what_was_spent_is_that_of_the_site_that_gave_most_aborted_releases_included():
    assert STATEMENT.spent_mu == pytest.approx(math.sqrt(0.1**2 + 0.05**2 + 0.2**2))
    assert STATEMENT.spent_epsilon == pytest.approx(gaussian_epsilon(STATEMENT.spent_mu, 1e-5))
    assert STATEMENT.epsilon_of("mean") == pytest.approx(gaussian_epsilon(math.hypot(0.02, 0.2), 1e-5))
    assert STATEMENT.releases[1].mu == 0.2
    assert "1 x mean (given up when a site was lost; charged)" in str(STATEMENT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "an aggregator that sees every message, together with any 1 of the 2 sites"),
        ({"mechanism": "conventional"}, "together with all other sites"),
        ({"mechanism": "pooled"}, "but NOT the curator"),
        ({"mechanism": "none", "epsilon": math.inf, "mu": math.inf}, "NOT PRIVATE: no noise was added"),
        ({"secure": False}, "NOT PRIVATE: the noise came from a seed"),
    ],
)
def test_against_whom(changes, words):
    text = str(replace(STATEMENT, **changes))
    assert words in text
    assert ("protected" in text) == ("NOT PRIVATE" not in text)


def test_nothing_released_cost_nothing():
    assert replace(STATEMENT, releases=()).spent_epsilon == 0
