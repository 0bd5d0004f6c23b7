"""Blocks of masks made while the sites compute: the same results, sooner, whatever is lost on the way."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting

import msgspec
import numpy as np
import pytest

from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.aggregator import driving as aggregator_module
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Query, Stage
from tests.mechanisms.driving import PATIENT
from tests.mechanisms.world import clipped_mean, make_data, make_study, parts

DATA = make_data((12, 9, 15, 8, 10), 20)
COUNT = 5


def fields(letter):
    """Kind and block of a message, which follows version, hash and, in an answer, the sender."""
    kind, *rest = parts(letter)
    place = {"Begin": 2, "Sum": 2, "Ask": 2, "SumAnswer": 3, "Answer": 3}.get(kind)
    return kind, None if place is None else rest[place]


def working_ahead(study, **options):
    """The study with an aggregator that makes blocks ahead."""
    study.aggregator = Aggregator(
        study.contract, study.engine.exchange, study.aggregator._noise, ahead=True, **options
    )
    return study


@pytest.fixture(autouse=True)
def one_release_first(monkeypatch):
    """The first block is for one release only, as if releases were large, so that others are made ahead."""
    monkeypatch.setattr(Aggregator, "_first_slots", lambda self, slots: slots[:1])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two releases."""
    monkeypatch.setattr(aggregator_module, "BLOCK_WORDS", 40)


def two_stages(ahead, **options):
    """Means of two sizes, some of which are passed over, each depending on the one before."""

    def statistics(rows):
        return lambda stage, published, state: [rows[:, : 20 - 5 * stage]]

    study = EmbeddedStudy(
        "test",
        {name: len(rows) for name, rows in DATA.items()},
        {name: statistics(rows) for name, rows in DATA.items()},
        [Stage(Query("first", 20, 1.0), 5, 0.4), Stage(Query("second", 15, 1.0), 6, 0.6)],
        in_process(**({"epsilon": 3.0} | options)),
        insecure_noise_seed=7,
    )
    if ahead:
        working_ahead(study)
    values = [study.mean(0) for _ in range(3)]
    study.publish(b"what is known so far")
    values += [study.mean(1, value.tobytes()) for value in values]
    values += [study.mean(1) for _ in range(3)]
    study.aggregator.close()
    return study, values


@pytest.mark.parametrize("words", [1 << 21, 40, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"masking": "paper"},
        {"reserve": 0.2},
        {"mechanism": "conventional"},
        {"mechanism": "pooled"},
        {"mechanism": "none", "epsilon": None},
    ],
    ids=str,
)
def test_seeded_noise_does_not_depend_on_when_masks_are_made(options, words, monkeypatch):
    reference, expected = two_stages(ahead=False, **options)
    monkeypatch.setattr(aggregator_module, "BLOCK_WORDS", words)
    for ahead in (False, True):
        study, values = two_stages(ahead, **options)
        for value, wanted in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
        assert study.aggregator.releases == reference.aggregator.releases


def test_the_comparison_of_seeded_runs_can_fail(monkeypatch):
    """The control: masks out of the stream of the noise, as if there were only one."""
    monkeypatch.setattr("capedjica.securesum.noise.NoiseSource.branch", lambda self, purpose: self)
    _, expected = two_stages(ahead=False)
    monkeypatch.setattr(aggregator_module, "BLOCK_WORDS", 1)
    _, values = two_stages(ahead=False)
    assert not all(np.array_equal(a, b) for a, b in zip(values, expected, strict=True))


def test_the_next_block_is_made_before_the_first_release_is_answered():
    """The first release is answered only after the last message of the next block has been."""
    study = working_ahead(make_study(DATA, count=COUNT))
    unmasked, blocks = threading.Event(), []

    def carrier(letter):
        kind, block = fields(letter)
        if kind == "Ask" and block == 0:
            assert unmasked.wait(PATIENT), "the next block is not made while the sites compute"
        if kind == "Begin":
            blocks.append((block, letter.data))
        if kind == "SumAnswer" and block == 1 and letter.site == "s4":
            rounds.append(letter)
            if len(rounds) == 5:
                unmasked.set()
        return [letter.data]

    rounds = []
    study.engine.carrier = carrier
    values = [study.mean(0) for _ in range(COUNT)]
    noise = study.aggregator.releases[-1].noise
    assert all(np.abs(value - clipped_mean(DATA)).max() < 6 * noise for value in values)
    assert {block for block, _ in blocks} == {0, 1}
    sizes = {block: len(msgspec.msgpack.decode(data)[5]) for block, data in blocks}
    assert sizes == {0: 1, 1: COUNT - 1}


@pytest.mark.usefixtures("small_blocks")
def test_blocks_follow_each_other_to_the_end():
    study = working_ahead(make_study(DATA, count=6))
    begun = {}

    def carrier(letter):
        kind, block = fields(letter)
        if kind == "Begin":
            *_, slots, after = msgspec.msgpack.decode(letter.data)
            begun[block] = len(slots), after
        return [letter.data]

    study.engine.carrier = carrier
    for _ in range(6):
        study.mean(0)
    assert begun == {0: (1, -1), 1: (2, 0), 2: (2, 1), 3: (1, 2)}
    assert study.aggregator._next is None
    spent = [site._ledger.spent(study.contract.hash) for site in study.sites.values()]
    assert spent == pytest.approx([study.contract.total_mu["s0"] ** 2] * 5, rel=1e-6)


# Lost on the way


def check_books(study):
    """What ledgers charged is what the aggregator says, and within the budget."""
    for name, site in study.sites.items():
        spent = site._ledger.spent(study.contract.hash)
        said = math.fsum(release.mu.get(name, 0.0) ** 2 for release in study.aggregator.releases)
        assert spent == pytest.approx(said, rel=1e-12)
        assert spent <= study.contract.total_mu[name] ** 2


MOMENTS = [
    ("Begin", 0, 1),
    ("Sum", 0, 2),
    ("Ask", 0, 1),
    *[("Begin", 1, 1), *[("Sum", 1, n) for n in (1, 2, 3, 4)], ("Ask", 1, 1), ("Ask", 1, 2)],
    ("Begin", 2, 1),
    ("Sum", 2, 4),
    ("Ask", 2, 1),
]


def at_moment(moment, name, act):
    """A carrier that acts once, at the n-th question of a kind for a block to one site."""
    seen = []

    def carrier(letter):
        if letter.direction == "question" and letter.site == name and fields(letter) == moment[:2]:
            seen.append(letter)
            if len(seen) == moment[2]:
                return act(letter)
        return [letter.data]

    return carrier


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_a_site_dies_with_a_release_ahead(moment):
    study = working_ahead(make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.1))

    def die(letter):
        study.sites.pop("s2")
        return []

    study.engine.carrier = at_moment(moment, "s2", die)
    values = [study.mean(0) for _ in range(COUNT)]
    assert "s2" not in study.sites
    check_books(study)
    last = study.aggregator.releases[-1]
    others = {name: rows for name, rows in DATA.items() if name in last.participants}
    assert set(DATA) - set(others) == {"s2"}
    assert np.abs(values[-1] - clipped_mean(others)).max() < 6 * last.noise
    # lost in a release, or before it was noticed: the others were charged in vain at most once
    assert sum(release.aborted for release in study.aggregator.releases) <= 1
    assert study.aggregator.standing.failures["s2"] <= 1


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_a_question_is_lost(moment):
    """Nobody is given up for good, and no release is, since a lost question for one is asked again."""
    study = working_ahead(make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.1))
    study.engine.carrier = at_moment(moment, "s2", lambda letter: [])
    for _ in range(COUNT):
        study.mean(0)
    check_books(study)
    assert not any(release.aborted for release in study.aggregator.releases)
    assert study.aggregator.standing.failures["s2"] <= 1
    assert "s2" in study.aggregator._wanted()


def test_a_site_lost_once_is_counted_once():
    """It does not answer the release, nor the secure sum of the next block at the same time."""
    study = working_ahead(make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.3))
    away = threading.Event()

    def carrier(letter):
        if fields(letter) == ("Sum", 1):
            away.set()
        if fields(letter) == ("Ask", 0):
            assert away.wait(PATIENT)
        return [] if letter.site == "s2" and away.is_set() else [letter.data]

    study.engine.carrier = carrier
    study.mean(0)
    assert [release.aborted for release in study.aggregator.releases] == [True, False]
    assert study.aggregator.standing.failures == {"s2": 1}
    study.engine.carrier = lambda letter: [letter.data]
    study.aggregator.close()
    study = working_ahead(study)
    study.mean(0)
    assert "s2" in study.aggregator.releases[-1].participants


def test_a_release_given_up_takes_the_block_made_ahead_with_it():
    """Its slots were planned before the loss: what is left is spread anew, over fresh masks."""
    study = working_ahead(make_study(DATA, count=COUNT, epsilon=20.0))
    asked = []

    def carrier(letter):
        kind, block = fields(letter)
        if kind == "Ask":
            asked.append(block)
            if block == 0:
                assert study.aggregator._next.result() is not None
        return [] if (kind, block, letter.site) == ("Answer", 0, "s2") else [letter.data]

    study.engine.carrier = carrier
    for _ in range(COUNT):
        study.mean(0)
    assert set(asked) == {0, 2, 3}
    lost, *others = study.aggregator.releases
    assert [lost.aborted] + [release.aborted for release in others] == [True] + [False] * COUNT
    total = study.contract.total_mu["s0"] ** 2
    assert lost.mu["s0"] ** 2 == pytest.approx(total / COUNT, rel=1e-4)
    for release in others:
        assert release.mu["s0"] ** 2 == pytest.approx(total * (1 - 1 / COUNT) / COUNT, rel=1e-4)
    check_books(study)


@pytest.mark.usefixtures("small_blocks")
def test_a_site_that_comes_back_is_in_the_next_block_but_one():
    study = working_ahead(make_study(DATA, count=6, epsilon=20.0))
    away = study.sites.pop("s4")
    study.mean(0)
    study.sites["s4"] = away
    for _ in range(5):
        study.mean(0)
    taking_part = ["s4" in release.participants for release in study.aggregator.releases]
    assert taking_part == [False, False, False, True, True, True]
    assert study.aggregator.refusals["s4"] == "no answer"


def test_a_publication_that_did_not_arrive_is_found_out_before_anything_is_charged():
    study = working_ahead(make_study(DATA, count=3, epsilon=20.0))
    study.mean(0)

    def carrier(letter):
        return [] if letter.site == "s1" and fields(letter)[0] == "Hello" else [letter.data]

    study.engine.carrier = carrier
    study.publish(b"a projection")
    study.engine.carrier = lambda letter: [letter.data]
    study.mean(0)
    assert not any(release.aborted for release in study.aggregator.releases)
    assert study.aggregator.releases[-1].participants == tuple(DATA)


def test_a_site_that_was_started_again_is_told_what_is_published():
    """It forgot the publication with its masks; a new block comes with a greeting."""
    study = working_ahead(make_study(DATA, count=4, epsilon=20.0, reserve=0.3))
    study.publish(b"a projection")
    study.mean(0)
    study.aggregator._next.result()
    site = study.sites["s1"]
    site._block = site._next = None
    site._published, site._published_hash = b"", bytes(32)
    for _ in range(3):
        study.mean(0)
    assert [release.aborted for release in study.aggregator.releases] == [False, True, False, False, False]
    assert study.aggregator.releases[-1].participants == tuple(DATA)


def test_an_error_of_the_carrier_is_told_when_the_block_is_needed():
    study = working_ahead(make_study(DATA, count=3))

    def carrier(letter):
        if fields(letter) == ("Begin", 1):
            raise ConnectionError("the wire is cut")
        return [letter.data]

    study.engine.carrier = carrier
    study.mean(0)
    with pytest.raises(ConnectionError, match="the wire is cut"):
        study.mean(0)


def test_nothing_is_sent_after_the_end():
    """Closed in the middle of a secure sum: the message on its way is waited for, and is the last."""
    study = working_ahead(make_study(DATA, count=3))
    reached, go_on, later = threading.Event(), threading.Event(), []

    def carrier(letter):
        if go_on.is_set() and letter.direction == "question":
            later.append(fields(letter))
        if fields(letter) == ("Begin", 1) and letter.site == "s4":
            reached.set()
            assert go_on.wait(PATIENT)
        return [letter.data]

    study.engine.carrier = carrier
    study.mean(0)
    assert reached.wait(PATIENT)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(study.aggregator.close)
        with pytest.raises(StillWaiting):
            closed.result(0.1)
        go_on.set()
        closed.result(PATIENT)
    assert not later


# What a person is told


def told(study, ahead):
    events = []
    study.aggregator = Aggregator(study.contract, study.engine.exchange, ahead=ahead, on_event=events.append)
    for _ in range(3):
        study.mean(0)
    return events


def test_events_tell_what_is_being_done():
    doing = [event.doing for event in told(make_study(DATA, count=3), ahead=False)]
    assert doing == ["greeting", "greeted", "making masks", *["asking mean"] * 3]
    doing = [event.doing for event in told(make_study(DATA, count=3), ahead=True)]
    assert doing == ["greeting", "greeted", "making masks", "making masks ahead", *["asking mean"] * 3]


def test_events_tell_who_is_there_and_why_others_are_not():
    study = make_study(DATA, count=3, epsilon=20.0)
    del study.sites["s3"]
    first, *others = told(study, ahead=True)
    assert (first.present, first.lost) == ((), {})
    for event in others:
        assert event.present == ("s0", "s1", "s2", "s4")
        assert event.lost == {"s3": "no answer"}
