"""An honest aggregator among sites that lie, fail, or say what nobody should print."""

import math
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.aggregator.lost_sites import LEFT_OUT_AFTER
from capedjica.mechanisms.messages import VERSION, Refusal, question_hash
from capedjica.securesum.noise import NoiseSource
from tests.mechanisms.world import Liar, clipped_mean, make_data, make_study, parts

DATA = make_data((12, 9, 15, 8, 10), 20)


def with_carrier(study, carrier):
    study.engine.carrier = carrier
    return study


def with_liar(study, name, kind, **change):
    """The study, with one site that signs other values than it should in its replies of one kind."""
    lie = lambda said: msgspec.structs.replace(said, **change)  # noqa: E731
    study.sites[name] = Liar(study.sites[name], kind, lie)
    return study


@pytest.mark.parametrize("lost", ["Answer", "SumAnswer"])
def test_a_site_that_fails_again_and_again_is_left_out(lost):
    """It greets, so it is invited; it never gets to the end, at the cost of the others."""
    study = make_study(DATA, count=4, epsilon=20.0, reserve=0.3)
    seen = []

    def carrier(letter):
        if letter.direction == "answer" and letter.site == "s2" and parts(letter)[0] == lost:
            seen.append(letter.round)
            # of the five in a secure sum only the last, without which the block is of no use
            return [] if lost == "Answer" or len(seen) % 5 == 0 else [letter.data]
        return [letter.data]

    with_carrier(study, carrier)
    means = [study.mean(0) for _ in range(4)]
    releases = study.aggregator.releases
    assert sum(release.aborted for release in releases) == (LEFT_OUT_AFTER if lost == "Answer" else 0)
    assert "s2" not in releases[-1].participants
    others = {name: rows for name, rows in DATA.items() if name != "s2"}
    assert np.abs(means[-1] - clipped_mean(others)).max() < 6 * releases[-1].noise


def test_a_lost_publication_costs_a_new_block_and_nothing_else():
    study = make_study(DATA, count=3, epsilon=20.0)
    study.mean(0)
    lost = study.engine._round

    def carrier(letter):
        return [] if letter.round == lost and letter.site == "s1" else [letter.data]

    with_carrier(study, carrier).publish(b"a projection")
    study.mean(0)
    assert not any(release.aborted for release in study.aggregator.releases)
    assert study.aggregator.releases[-1].participants == tuple(DATA)


@pytest.mark.parametrize(
    ("kind_of_message", "change"),
    [
        ("Status", {"spent": math.inf}),
        ("Status", {"spent": math.nan}),
        ("Status", {"spent": 1.0}),
        ("Status", {"block": 2**62}),
        ("Status", {"sender": "s0"}),
        ("Status", {"sender": "nobody"}),
        ("SumAnswer", {"block": 7}),
        ("SumAnswer", {"data": b""}),
        ("Answer", {"mu": 0.0}),
        ("Answer", {"mu": math.nan}),
        ("Answer", {"words": b""}),
        ("Answer", {"words": bytes(8 * 21)}),
        ("Answer", {"slot": 1}),
        ("Answer", {"head": b"x" * 256}),
    ],
)
@pytest.mark.parametrize("mechanism", ["cape", "conventional"])
def test_a_lying_site_ends_the_run_in_words_at_worst(mechanism, kind_of_message, change):
    """The run ends with a result over the others, or with one of the product's errors; no site overspends."""
    study = make_study(DATA, count=3, epsilon=20.0, mechanism=mechanism, reserve=0.3)
    with_liar(study, "s3", kind_of_message, **change)
    with suppress(ProtocolError, BudgetExceededError):
        for _ in range(3):
            study.mean(0)
    for name, site in study.sites.items():
        assert site._ledger.spent(study.contract.hash) <= study.contract.total_mu[name] ** 2


@pytest.mark.parametrize(
    ("mechanism", "kind_of_message", "change", "reason"),
    [
        ("cape", "Status", {"sender": "s0"}, "site s3 sent an answer in the name of site s0"),
        ("cape", "Answer", {"mu": 0.1}, "claims mu 0.1, planned"),
        ("cape", "Answer", {"slot": 2}, "an answer to another release than the one asked for"),
        ("cape", "Answer", {"words": bytes(8)}, "an answer to another release than the one asked for"),
        ("conventional", "SumAnswer", {"block": 7}, None),
    ],
)
def test_a_site_whose_answer_does_not_fit_does_not_take_part(mechanism, kind_of_message, change, reason):
    study = make_study(DATA, count=3, epsilon=20.0, mechanism=mechanism, reserve=0.6)
    with_liar(study, "s3", kind_of_message, **change)
    study.mean(0)
    aggregator = study.aggregator
    assert "s3" not in aggregator.releases[-1].participants
    assert reason is None or reason in aggregator.refusals["s3"]


@pytest.mark.parametrize("block", [2**21, 2**62 - 1])
def test_a_site_that_runs_ahead_with_its_blocks_takes_nobody_along(block):
    """The others' ledgers would never go back, and after the largest number of all no block could follow.

    The aggregator has no record of the blocks that were begun, and has to believe what most sites say.
    """
    study = make_study(DATA, count=3, epsilon=20.0, reserve=0.3)
    study.mean(0)
    honest = study.sites["s3"]
    with_liar(study, "s3", "Status", block=block)
    study.aggregator = aggregator = Aggregator(study.contract, study.engine.exchange, n_done=[1])
    study.mean(0)
    assert "s3" not in aggregator.releases[-1].participants
    assert "far ahead of the others" in aggregator.refusals["s3"]
    assert max(site._ledger.last_block(study.contract.hash) for site in study.sites.values()) < 3
    study.sites["s3"] = honest
    aggregator._give_up_blocks()
    study.mean(0)
    assert aggregator.releases[-1].participants == tuple(DATA)


def test_part_of_the_budget_is_held_back():
    study = make_study(DATA, count=4, reserve=0.4)
    study.mean(0)
    (release,) = study.aggregator.releases
    planned = study.contract.total_mu["s0"] ** 2 * 0.6 / 4
    assert release.mu["s0"] ** 2 == pytest.approx(planned, rel=1e-4)


def test_what_a_site_says_is_shown_on_one_short_line():
    study = make_study(DATA)
    nasty = "\x1b[2Jall is well\n\r\u202ereversed" + "x" * 900
    refusal, site = Refusal(VERSION, study.contract.hash, "s1", nasty), study.sites["s1"]
    aggregator = Aggregator(
        study.contract, lambda questions: {"s1": site.sign(question_hash(questions["s1"]), refusal)}
    )
    with pytest.raises(ProtocolError, match="all is well") as error:
        aggregator.mean(0)
    assert str(error.value).isprintable()
    assert len(aggregator.refusals["s1"]) <= 203


def test_the_curator_needs_a_source_of_noise_that_fits_the_contract():
    contract = make_study(DATA, mechanism="pooled").contract
    with pytest.raises(InputError, match="needs the curator's source of noise"):
        Aggregator(contract, dict)
    with pytest.raises(InputError, match="disagree on whether noise is seeded"):
        Aggregator(contract, dict, NoiseSource(insecure_noise_seed=1))


def test_no_stage_is_asked_more_often_than_agreed():
    study = make_study(DATA, count=2)
    for _ in range(2):
        study.mean(0)
    with pytest.raises(BudgetExceededError, match=r"allows 2 releases of .*; it cannot be requested again"):
        study.mean(0)
