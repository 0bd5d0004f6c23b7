"""What a result cost, in words: never less than it did, and never private when it is not."""

import math
import re
from dataclasses import replace

import pytest

from capedjica.errors import InputError
from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.privacy.statement import Charge, PrivacyStatement

EPSILON = 1.2345612
STATEMENT = PrivacyStatement(
    nominal_epsilon=EPSILON,
    delta=1e-5,
    nominal_mu=gaussian_mu(EPSILON, 1e-5),
    nominal_releases=(
        Charge("mean", {"north": 0.1, "south": 0.02}, noise=0.5),
        Charge("mean", {"north": 0.05, "south": 0.2}, noise=0.5, aborted=True),
        Charge("gradient", {"north": 0.2, "south": 0.01}, noise=0.5),
    ),
    nominal_site_epsilon={"north": EPSILON, "south": 1.0},
    mechanism="cape",
    n_sites=2,
    n_colluding=1,
)


def test_numbers_in_words_are_rounded_up():
    text = str(STATEMENT)
    epsilon, mu = re.search(r"epsilon (\S+) at delta 1e-5, [^$]*mu = (\S+) st", text).groups()
    assert float(epsilon) == 1.23457
    assert float(mu) >= STATEMENT.mu
    spent, allowed = re.search(r"epsilon (\S+) of the (\S+) allowed", text).groups()
    assert float(spent) >= STATEMENT.spent_epsilon
    assert float(allowed) >= STATEMENT.epsilon


def test_a_site_that_was_not_in_the_last_release_is_named_as_lost():
    assert STATEMENT.lost == ()
    without = replace(
        STATEMENT, nominal_releases=(*STATEMENT.releases, Charge("gradient", {"north": 0.1}, noise=0.5))
    )
    assert without.lost == ("south",)
    assert "Sites lost during the run: south" in str(without)
    assert "lost during the run" not in str(STATEMENT)
    assert replace(without, mechanism="local").lost == ()


def test_a_site_in_no_completed_release_took_no_part():
    assert STATEMENT.absent == ()
    aborted = Charge("mean", {"north": 0.1, "south": 0.1}, noise=0.5, aborted=True)
    never = replace(STATEMENT, nominal_releases=(aborted, Charge("gradient", {"north": 0.1}, noise=0.5)))
    assert never.absent == ("south",)
    assert "took no part and are in no result: south" in str(never)
    assert "lost during the run" not in str(never)
    assert replace(never, mechanism="local").absent == ()


def test_an_epsilon_at_which_delta_does_not_cover_the_stream_says_so():
    large = replace(STATEMENT, nominal_epsilon=10.1)
    (probability,) = re.search(
        r"ideal random numbers; .* except with probability (\S+)\.", str(large)
    ).groups()
    assert 5e-12 <= float(probability) < 5.2e-12
    assert "ideal" not in str(replace(STATEMENT, nominal_epsilon=10.0))
    assert "ideal" not in str(replace(large, secure=False))
    assert "ideal" not in str(replace(large, nominal_epsilon=math.inf))


def test_what_was_spent_is_that_of_the_site_that_gave_most_aborted_releases_included():
    assert STATEMENT.spent_mu == pytest.approx(math.sqrt(0.1**2 + 0.05**2 + 0.2**2))
    assert STATEMENT.spent_epsilon == pytest.approx(gaussian_epsilon(STATEMENT.spent_mu, 1e-5))
    assert STATEMENT.epsilon_of("mean") == pytest.approx(gaussian_epsilon(math.hypot(0.02, 0.2), 1e-5))
    assert STATEMENT.releases[1].mu == 0.2
    assert "1 x mean (aborted when a site was lost; still charged)" in str(STATEMENT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"n_sites": 3},
            "an aggregator that sees every message and colludes with any 1 of the 2 other sites",
        ),
        ({}, "colludes with all other sites"),
        ({"mechanism": "conventional"}, "colludes with all other sites"),
        ({"mechanism": "pooled"}, "It does NOT hold against the aggregator"),
        ({"mechanism": "local", "alone": "north"}, "anyone who sees what site north sends"),
        (
            {"mechanism": "none", "nominal_epsilon": math.inf},
            "NOT PRIVATE: no noise is added, so no participant",
        ),
        (
            {"secure": False},
            "NOT PRIVATE: the noise comes from a seed and can be removed, so no participant",
        ),
    ],
)
def test_against_whom(changes, words):
    text = str(replace(STATEMENT, **changes))
    assert words in text
    assert ("is protected with" in text) == ("NOT PRIVATE" not in text)


def test_nothing_released_cost_nothing():
    assert replace(STATEMENT, nominal_releases=()).spent_epsilon == 0


def numbers(value):
    """Every cost in a statement, at any depth."""
    costs = ("epsilon", "mu", "site_epsilon", "spent_epsilon", "spent_mu", "subject_epsilon", "subject_mu")
    found = [getattr(value, name) for name in costs] + [value.charged, value.epsilon_of("mean", "gradient")]
    found += [one.mu for one in value.releases] + [one.site_mu for one in value.releases]
    return [
        number
        for one in found
        for number in (one.values() if isinstance(one, dict) else [one])
        if number is not None
    ]


@pytest.mark.parametrize("changes", [{"secure": False}, {"mechanism": "none"}], ids=str)
@pytest.mark.parametrize("neighbour", [("subject", 1), ("sample", 200)])
def test_where_nobody_is_protected_every_cost_is_infinite(changes, neighbour):
    charged = {"north": 0.04, "south": 0.05}
    unit = {"neighbour": neighbour[0], "units_per_subject": neighbour[1]}
    private = replace(STATEMENT, nominal_charged=charged, **unit)
    assert private.private
    assert all(math.isfinite(number) for number in numbers(private))
    void = replace(private, **changes)
    assert not void.private
    assert len(numbers(void)) == len(numbers(private))
    assert all(number == math.inf for number in numbers(void))
    assert void.adversary.against == "no one"
    assert void.nominal_epsilon == EPSILON
    assert void.nominal_spent_epsilon == private.spent_epsilon
    assert not re.search(r"(epsilon|mu)( =)? \d", str(void))


def test_a_whole_subject_costs_as_many_times_the_mu_as_it_holds_time_points():
    epsilon, delta = 1.0, 1e-5
    sample = replace(
        STATEMENT,
        nominal_epsilon=epsilon,
        nominal_mu=gaussian_mu(epsilon, delta * (1 - 1e-6)),
        neighbour="sample",
        units_per_subject=200,
    )
    assert sample.subject_mu == 200 * sample.mu
    assert sample.subject_epsilon >= gaussian_epsilon(sample.subject_mu, delta)
    assert sample.subject_epsilon == pytest.approx(gaussian_epsilon(sample.subject_mu, delta), rel=1e-5)
    text = str(sample)
    assert text.startswith("Each single time point is protected with epsilon 1 at")
    shown = re.search(r"participant with up to 200 time points is protected only with epsilon (\d+)", text)[1]
    assert sample.subject_epsilon <= float(shown) <= 1.001 * sample.subject_epsilon
    subject = replace(sample, neighbour="subject", units_per_subject=1)
    assert str(subject).startswith("Each participant (all of their data) is protected with epsilon 1 at")
    assert "time point" not in str(subject)
    assert subject.subject_epsilon == subject.epsilon


def test_what_is_not_covered_is_said():
    assert STATEMENT.not_covered == ()
    sentences = ("Scan lengths are public.", "A mask may be a release.")
    lines = str(replace(STATEMENT, not_covered=sentences)).splitlines()
    assert lines[-2:] == list(sentences)


@pytest.mark.parametrize(
    "change", [{"neighbour": "site"}, {"units_per_subject": 0}, {"units_per_subject": 200}], ids=str
)
def test_a_unit_that_is_none_is_refused(change):
    with pytest.raises(InputError, match=r"neighbour|units_per_subject"):
        replace(STATEMENT, **change)
