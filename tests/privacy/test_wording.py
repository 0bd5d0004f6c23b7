"""A guarantee in words: every number exact or on the safe side, and the same sentences everywhere."""

import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

from capedjica.coordinator.planning.plan import plan_study
from capedjica.coordinator.planning.plan_text import show_plan
from capedjica.mechanisms.aggregator.history import privacy_statement
from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.privacy.neighbour import ProtectedUnit
from capedjica.privacy.wording import NOT_PRIVATE, Guarantee, round_up, short
from capedjica.study.approval_text import describe, show_study
from capedjica.study.study_file import Study
from tests.support.drafts import draft

GUARANTEE = Guarantee(1.0, 1e-5, gaussian_mu(1.0, 1e-5), "cape", n_sites=4, n_colluding=1)


def guess(mu, delta):
    return replace(GUARANTEE, nominal_mu=mu, delta=delta).best_guess


def test_the_best_guess_is_that_of_the_best_test():
    for mu in (1e-3, 0.1, 0.5, 1.0, 2.0, 5.0):
        assert norm.cdf(mu / 2) <= guess(mu, 1e-5) <= norm.cdf(mu / 2) + 1e-11
    assert guess(math.inf, 1e-5) == 1
    shown = float(re.search(r"at most ([\d.]+)% of cases", GUARANTEE.bet)[1])
    assert 100 * GUARANTEE.best_guess <= shown <= 100.5 * GUARANTEE.best_guess


def test_an_attack_is_right_as_often_as_is_said_and_not_more_or_less():
    """Guess which of two scans somebody had from noise of known size; false alarms below 1e-8 (6 sigma)."""
    n, mu = 400_000, 1.2
    rng = np.random.default_rng(5)
    other = rng.integers(2, size=n)
    right = np.mean((rng.standard_normal(n) + mu * other > mu / 2) == other)
    sigma = 0.5 / math.sqrt(n)
    assert abs(right - guess(mu, 1e-5)) < 6 * sigma
    for scale in (0.7, 1.3):
        assert abs(right - guess(mu * scale, 1e-5)) > 6 * sigma


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.9, 2.0, 3.3, 10.0])
def test_the_factor_in_words_is_not_below_the_true_one(epsilon):
    said = replace(GUARANTEE, nominal_epsilon=epsilon).odds
    factor = float(re.search(r"factor of more than ([\d.,]+) \(e to", said)[1].replace(",", ""))
    assert math.exp(epsilon) <= factor <= 1.02 * math.exp(epsilon) + 1
    assert "1 in 100,000" in said
    assert "practically no protection" not in said


@pytest.mark.parametrize("epsilon", [13.9, 14.0, 30.0, 100.0])
def test_the_factor_of_a_large_epsilon_is_not_below_the_true_one_either(epsilon):
    said = replace(GUARANTEE, nominal_epsilon=epsilon).odds
    factor = 10.0 ** int(re.search(r"by a factor of more than 10\^(\d+) \(e to", said)[1])
    assert 1e6 < math.exp(epsilon) <= factor <= 10 * math.exp(epsilon)
    assert said.endswith("A factor of more than one million offers practically no protection.")


def test_nobody_has_odds_where_nobody_is_protected():
    assert replace(GUARANTEE, secure=False).odds == ""
    assert replace(GUARANTEE, nominal_epsilon=math.inf, nominal_mu=math.inf).odds == ""


@pytest.mark.parametrize("delta", [1e-3, 3e-6, 1e-9, 7e-7])
def test_the_remainder_in_words_is_not_below_delta(delta):
    one_in = int(re.search(r"1 in ([\d,]+)", replace(GUARANTEE, delta=delta).odds)[1].replace(",", ""))
    assert delta * (1 - 1e-8) <= 1 / one_in <= delta * 1.001


def test_whoever_is_enrolled_twice_has_the_mu_of_both():
    twice = gaussian_epsilon(2 * GUARANTEE.mu, GUARANTEE.delta)
    assert twice <= GUARANTEE.two_sites_epsilon <= 1.00001 * twice
    shown = round_up(GUARANTEE.two_sites_epsilon)
    assert f"at two sites, epsilon is {shown} and not 1." in GUARANTEE.enrolled_once
    small = replace(GUARANTEE, nominal_mu=GUARANTEE.mu / 4, nominal_epsilon=0.2, other_mu=GUARANTEE.mu)
    assert small.two_sites_epsilon >= gaussian_epsilon(1.25 * GUARANTEE.mu, GUARANTEE.delta)
    sample = replace(GUARANTEE, unit=ProtectedUnit("sample", 100))
    assert sample.two_sites_epsilon is None
    assert sample.enrolled_once == ""


def test_where_one_site_works_alone_nobody_gives_anything_twice():
    local = replace(GUARANTEE, mechanism="local", alone="north")
    assert local.two_sites_epsilon is None
    assert local.enrolled_once == ""
    assert not [words for words in local.rests_on if "more than one site" in words]


def test_what_it_rests_on_fits_who_may_collude_and_what_is_counted():
    assert GUARANTEE.rests_on[0] == (
        "No more than 1 of the 4 sites collude with the aggregator; the others follow the protocol."
    )
    nobody = replace(GUARANTEE, n_colluding=0).rests_on
    assert nobody[0] == "No site colludes with the aggregator, and all sites follow the protocol."
    assert any(words.startswith("The number of participants enrolled at each site was") for words in nobody)
    sample = replace(GUARANTEE, unit=ProtectedUnit("sample", 100)).rests_on
    assert any(words.startswith("The number of time points held by each site was fixed") for words in sample)


def test_numbers_are_written_as_people_do():
    assert [short(value) for value in (1e-5, 1e-10, 0.25)] == ["1e-5", "1e-10", "0.25"]


def told(study):
    """What approval, plan and Python say of one study, with single blanks."""
    out = io.StringIO()
    show_study(study, Console(file=out, width=80, color_system=None))
    plan = io.StringIO()
    show_plan(plan_study(study), Console(file=plan, width=80, color_system=None))
    return [
        " ".join(text.split())
        for text in (out.getvalue(), plan.getvalue(), str(privacy_statement(study.contract, [])))
    ]


@pytest.mark.parametrize(
    "privacy",
    [
        *({}, {"n_colluding": 0}, {"mechanism": "pooled"}, {"mechanism": "local"}, {"epsilon": 30.0}),
        *({"mechanism": "conventional"}, {"mechanism": "none", "epsilon": None}, {"insecure_noise": True}),
    ],
    ids=str,
)
def test_the_same_sentences_everywhere(privacy):
    study = Study(draft(privacy=privacy))
    guarantee = study.contract.guarantee()
    assert guarantee == replace(privacy_statement(study.contract, []).guarantee, alone=guarantee.alone)
    for text in told(study):
        for sentence in guarantee.summary:
            assert sentence in text
        assert (NOT_PRIVATE in text) == (not guarantee.private)
    written = json.loads(json.dumps(describe(study), allow_nan=False))["privacy"]["guarantee"]
    assert written == json.loads(json.dumps(plan_study(study).as_dict()))["setting"]["guarantee"]
    assert written == guarantee.as_dict()
    assert written["protected"] == guarantee.summary[0]
    assert bool(written["holds"]) == guarantee.private
