"""Letters that come late or out of order, and parties that stop and start again, at every step of a study."""

import math
from contextlib import suppress

import numpy as np
import pytest

from capedjica.engines.inprocess import InProcessEngine
from capedjica.mechanisms.aggregator.driving import Aggregator
from tests.attacks.messages.test_release_mutations import Watch
from tests.faults.test_lost_sites import COUNT, DATA, N_ROUNDS, NAMES, check_books, run
from tests.mechanisms.consortium import DATA as CONSORTIUM_DATA
from tests.mechanisms.consortium import Consortium
from tests.mechanisms.world import clipped_mean, make_study, reply


@pytest.mark.parametrize("direction", ["question", "answer"])
@pytest.mark.parametrize("order", ["late", "overtaken"])
@pytest.mark.parametrize("number", range(N_ROUNDS))
def test_a_letter_comes_a_round_late(number, order, direction):
    """It arrives before the next one of the same kind ("late"), or after it ("overtaken")."""
    name, held = NAMES[number % len(NAMES)], []

    def carrier(study, letter):
        if (letter.site, letter.direction) != (name, direction):
            return [letter.data]
        if letter.round == number:
            held.append(letter.data)
            return []
        late = [held.pop()] if held else []
        return [*late, letter.data] if order == "late" else [letter.data, *late]

    study, means = run(carrier)
    check_books(study)
    assert [release.aborted for release in study.aggregator.releases] == [False] * COUNT
    last = study.aggregator.releases[-1]
    taking_part = {site: rows for site, rows in DATA.items() if site in last.participants}
    assert np.abs(means[-1] - clipped_mean(taking_part)).max() < 6 * last.noise


def test_every_letter_comes_twice_and_the_second_time_a_round_late():
    before = {}

    def carrier(study, letter):
        late = before.get((letter.site, letter.direction), [])
        before[letter.site, letter.direction] = [letter.data]
        return [letter.data, *late, letter.data]

    study, _ = run(carrier)
    check_books(study)
    assert [release.aborted for release in study.aggregator.releases] == [False] * COUNT


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(6 + COUNT))
def test_a_site_stops_and_starts_again(tmp_path, number, moment):
    """Its memory is gone, masks included; its ledger is there. The study goes on with it or without it."""
    with Consortium(tmp_path, count=COUNT, epsilon=20.0, reserve=0.2) as consortium:

        def carrier(letter):
            direction = "question" if moment == "before" else "answer"
            if (letter.round, letter.site, letter.direction) == (number, "s1", direction):
                consortium.start("s1")
            return [letter.data]

        engine = InProcessEngine(consortium.sites, carrier)
        aggregator = Aggregator(consortium.contract, engine.exchange)
        means = [aggregator.mean(0) for _ in range(COUNT)]
        last = aggregator.releases[-1]
        data = {name: rows for name, rows in CONSORTIUM_DATA.items() if name in last.participants}
        assert np.abs(means[-1] - clipped_mean(data)).max() < 6 * last.noise
        assert sum(release.aborted for release in aggregator.releases) <= 1
        for name in CONSORTIUM_DATA:
            reported = math.fsum(release.mu.get(name, 0.0) ** 2 for release in aggregator.releases)
            assert consortium.spent(name) <= reported * (1 + 1e-12)
            assert name == "s1" or consortium.spent(name) >= reported * (1 - 1e-12)
            assert consortium.spent(name) <= consortium.contract.total_mu[name] ** 2


@pytest.mark.parametrize("number", range(N_ROUNDS))
def test_the_aggregator_stops_and_another_takes_over(number):
    """The second knows nothing of the first but the contract, and asks for other states."""
    study = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.3)
    watches = {name: Watch(site, study.contract) for name, site in study.sites.items()}
    study.engine.sites = watches

    def carrier(letter):
        if letter.round == number and letter.site == "s2" and letter.direction == "answer":
            raise InterruptedError
        return [letter.data]

    study.engine.carrier = carrier
    with suppress(InterruptedError):
        for step in range(COUNT):
            study.mean(0, bytes([step]))
    assert study.engine._round == number
    study.engine.carrier = lambda letter: [letter.data]
    study.engine._round += 1
    second = Aggregator(study.contract, study.engine.exchange)
    for step in range(COUNT - 1):
        second.mean(0, bytes([100 + step]))
    for watch in watches.values():
        watch.check()
    answers = watches["s0"].answers.values()
    assert len({reply(data).words for data in answers}) == len(answers)
