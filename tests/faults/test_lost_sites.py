"""Every single lost site, at every step of block and release: the run goes on, and the books are right."""

import math

import numpy as np
import pytest

from capedjica.errors import BudgetExceededError, ProtocolError
from capedjica.privacy import gaussian_epsilon
from tests.mechanisms.world import clipped_mean, make_data, make_study

SIZES, COUNT = (12, 9, 15, 8, 10), 3
DATA = make_data(SIZES, 30)
NAMES = list(DATA)


def run(carrier=None, **options):
    study = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.1, **options)
    if carrier is not None:
        study.engine.carrier = lambda letter: carrier(study, letter)
    return study, [study.mean(0) for _ in range(COUNT)]


def rounds():
    study, _ = run()
    return study.engine._round


N_ROUNDS = rounds()  # hello, begin, four more of the secure sum, one for each release


def check_books(study):
    """The ledgers, the report and the budget agree."""
    contract, privacy = study.contract, study.privacy
    for name, site in study.sites.items():
        spent = site._ledger.spent(contract.hash)
        reported = math.fsum(release.site_mu.get(name, 0.0) ** 2 for release in privacy.releases)
        assert spent == pytest.approx(reported, rel=1e-12)
        assert spent <= contract.total_mu[name] ** 2
    assert privacy.spent_epsilon <= privacy.epsilon
    most = max(study.sites.values(), key=lambda site: site._ledger.spent(contract.hash))
    assert privacy.spent_epsilon == pytest.approx(
        gaussian_epsilon(math.sqrt(most._ledger.spent(contract.hash)), contract.delta), rel=1e-9
    )


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", range(N_ROUNDS))
def test_a_site_dies(number, name, moment):
    """Dead before it hears the question, or after it answered and charged but before the answer arrives."""

    def carrier(study, letter):
        direction = "question" if moment == "before" else "answer"
        if (letter.round, letter.site, letter.direction) == (number, name, direction):
            study.sites.pop(name, None)
        return [letter.data] if letter.site in study.sites else []

    study, means = run(carrier)
    assert name not in study.sites
    check_books(study)
    survivors = {site: rows for site, rows in DATA.items() if site != name}
    last = study.aggregator.releases[-1]
    # the last mean is over the survivors, unless the site died only after everything was over
    if name not in last.participants:
        assert np.abs(means[-1] - clipped_mean(survivors)).max() < 6 * last.noise
    assert not last.aborted
    if number >= 6:
        assert sum(release.aborted for release in study.aggregator.releases) == 1


@pytest.mark.parametrize("number", range(N_ROUNDS))
@pytest.mark.parametrize("fault", ["lose", "repeat", "corrupt", "swap"])
def test_one_message_goes_astray(number, fault):
    """Lost, repeated, altered or exchanged with an older one: each site in turn, question and answer."""
    earlier = {}

    def carrier(study, letter):
        key = letter.site, letter.direction
        previous = earlier.get(key, letter.data)
        earlier[key] = letter.data
        if letter.round != number or letter.site != NAMES[number % len(NAMES)]:
            return [letter.data]
        return {
            "lose": [],
            "repeat": [letter.data, letter.data],
            "corrupt": [
                bytes([letter.data[0]]) + bytes(b ^ 255 for b in letter.data[1:40]) + letter.data[40:]
            ],
            "swap": [previous],
        }[fault]

    study, means = run(carrier)
    check_books(study)
    assert len(study.sites) == len(SIZES)
    last = study.aggregator.releases[-1]
    taking_part = {site: rows for site, rows in DATA.items() if site in last.participants}
    assert np.abs(means[-1] - clipped_mean(taking_part)).max() < 6 * last.noise
    if fault == "repeat":
        assert [release.aborted for release in study.aggregator.releases] == [False] * COUNT


def test_a_lost_answer_is_asked_for_again_and_costs_nothing():
    def carrier(study, letter):
        lost = letter.round == N_ROUNDS - 1 and letter.direction == "answer" and letter.site == "s2"
        return [] if lost else [letter.data]

    study, _ = run(carrier)
    assert not any(release.aborted for release in study.aggregator.releases)
    check_books(study)


def test_too_many_lost_sites_are_named():
    study = make_study(DATA, count=COUNT)
    del study.sites["s1"], study.sites["s3"]
    with pytest.raises(ProtocolError, match=r"3 sites answered, 4 are needed; missing: s1, s3"):
        study.mean(0)
    assert all(site._ledger.spent(study.contract.hash) == 0 for site in study.sites.values())


def test_a_budget_eaten_up_by_lost_releases_is_refused_rather_than_exceeded():
    """One release in all, given up: nothing is left for another."""
    study = make_study(DATA, count=1)

    def carrier(letter):
        if letter.round == 6 and letter.site == "s0":
            study.sites.pop("s0", None)
        return [letter.data]

    study.engine.carrier = carrier
    with pytest.raises(BudgetExceededError, match="others were aborted when sites were lost"):
        study.mean(0)
    for name, site in study.sites.items():
        assert site._ledger.spent(study.contract.hash) <= study.contract.total_mu[name] ** 2


def test_a_site_that_comes_back_takes_part_again():
    study = make_study(DATA, count=COUNT, epsilon=20.0)
    away = study.sites.pop("s4")
    study.mean(0)
    assert "s4" not in study.aggregator.releases[-1].participants
    study.sites["s4"] = away
    study.aggregator._block = None  # what happens when a block is used up
    study.mean(0)
    assert "s4" in study.aggregator.releases[-1].participants
    check_books(study)
