"""The rounds of a study, counted from its messages: over a long line, they are most of its time."""

import pytest

from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.aggregator import driving
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Query, Stage
from tests.mechanisms.world import make_data, parts

DATA = make_data((6, 5, 7, 6), 60)
# Advertised keys, shared keys, masked input, agreement and unmasking.
BLOCK = ["Begin", *["Sum"] * 4]


def study_of(*stages):
    """A study with masks made ahead; its stages are pairs of a size and a number of releases."""

    def statistics(rows):
        return lambda stage, published, state: [rows[:, : stages[stage][0]]]

    study = EmbeddedStudy(
        "test",
        {name: len(rows) for name, rows in DATA.items()},
        {name: statistics(rows) for name, rows in DATA.items()},
        [Stage(Query(f"of {size}", size, 1.0), count, 1 / len(stages)) for size, count in stages],
        in_process(epsilon=20.0),
    )
    study.aggregator = Aggregator(study.contract, study.engine.exchange, ahead=True)
    return study


def questions(study, stages):
    """Make all releases; return the kinds of the questions to one site, and the slots of each block."""
    asked, slots = [], []

    def carrier(letter):
        if letter.direction == "question" and letter.site == "s0":
            kind, *rest = parts(letter)
            asked.append(kind)
            if kind == "Begin":
                slots.append(len(rest[4]))
        return [letter.data]

    study.engine.carrier = carrier
    for stage, (_, count) in enumerate(stages):
        for _ in range(count):
            study.mean(stage)
    study.aggregator.close()
    return asked, slots


@pytest.mark.parametrize("stages", [[(60, 1), (5, 12)], [(20, 30)], [(1, 1)]], ids=str)
def test_a_small_study_takes_a_greeting_one_block_and_a_round_for_each_release(stages):
    asked, slots = questions(study_of(*stages), stages)
    n_releases = sum(count for _, count in stages)
    assert asked == ["Hello", *BLOCK, *["Ask"] * n_releases]
    assert slots == [n_releases]


def test_a_publication_and_the_last_greeting_take_a_round_each():
    """7 + p + n rounds, for p publications and n releases."""
    study, stages = study_of((60, 1), (5, 3)), [(60, 1), (5, 3)]
    rounds = []

    def carrier(letter):
        if letter.direction == "question" and letter.site == "s0":
            rounds.append(parts(letter)[0])
        return [letter.data]

    study.engine.carrier = carrier
    study.mean(0)
    for number in range(3):
        study.publish(bytes([number]))
        study.mean(1)
    study.aggregator.charged()
    study.aggregator.close()
    assert rounds == ["Hello", *BLOCK, "Ask", *["Hello", "Ask"] * 3, "Hello"]
    assert len(rounds) == 7 + 3 + sum(count for _, count in stages)


def test_what_more_than_doubles_the_first_block_is_made_ahead(monkeypatch):
    """60 words and, up to as many again, six of ten; the other four in another block, in another thread."""
    monkeypatch.setattr(driving, "FIRST_WORDS", 1)
    stages = [(60, 1), (10, 10)]
    asked, slots = questions(study_of(*stages), stages)
    assert slots == [7, 4]
    assert sorted(asked) == sorted(["Hello", *2 * BLOCK, *["Ask"] * 11])


@pytest.mark.parametrize(("most", "first"), [(1, 2), (40, 2), (59, 2), (60, 3), (100, 5), (4096, 10)])
def test_small_releases_share_the_first_block_up_to_a_size(monkeypatch, most, first):
    monkeypatch.setattr(driving, "FIRST_WORDS", most)
    asked, slots = questions(study_of((20, 10)), [(20, 10)])
    assert slots == ([first] if first == 10 else [first, 10 - first])
    assert asked.count("Ask") == 10


def test_the_first_block_is_no_larger_than_a_block(monkeypatch):
    monkeypatch.setattr(driving, "BLOCK_WORDS", 40)
    _, slots = questions(study_of((20, 5)), [(20, 5)])
    assert slots == [2, 2, 1]
