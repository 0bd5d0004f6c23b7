"""Sites that lie about blocks or spending are found out and named; honest ones never are."""

import copy
import math
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capedjica.errors import ProtocolError
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.aggregator.lost_sites import LEFT_OUT_AFTER
from capedjica.mechanisms.aggregator.standing import Standing
from capedjica.mechanisms.messages import VERSION, Status
from tests.mechanisms.world import Liar, clipped_mean, make_data, make_study

DATA = make_data((12, 9, 15, 8, 10), 20)
NAMES = tuple(DATA)
COUNT = 3
STUDY = make_study(DATA)
CONTRACT = STUDY.contract


def lying(study, name, **claims):
    """Let a site say something else than its ledger does."""
    study.sites[name] = Liar(
        study.sites[name], "Status", lambda said: msgspec.structs.replace(said, **claims)
    )
    return study


def statuses(contract=CONTRACT, **claims):
    """What sites say in a greeting: block and part of the budget spent, by name."""
    return {
        name: Status(VERSION, contract.hash, name, block, spent, b"", "embedded")
        for name, (block, spent) in claims.items()
    }


@pytest.mark.parametrize("mechanism", ["cape", "conventional", "pooled"])
@pytest.mark.parametrize("spent", [1e-6, 0.2, 1.0, 1.5, math.inf])
def test_a_site_that_lies_about_its_spending_is_left_out_and_named(mechanism, spent):
    """The others go on with all of their budget, as if it had not been there."""
    study = make_study(DATA, count=COUNT, epsilon=20.0, mechanism=mechanism)
    lying(study, "s3", spent=spent)
    means = [study.mean(0) for _ in range(COUNT)]
    aggregator = study.aggregator
    for release in aggregator.releases:
        assert release.participants == ("s0", "s1", "s2", "s4")
        planned = study.contract.total_mu["s0"] ** 2 / COUNT
        assert release.aborted is False
        assert mechanism != "cape" or release.mu["s0"] ** 2 == pytest.approx(planned, rel=1e-4)
    others = {name: rows for name, rows in DATA.items() if name != "s3"}
    assert np.abs(means[-1] - clipped_mean(others)).max() < 6 * aggregator.releases[-1].noise
    assert f"it says that it spent {spent:.6g} of its budget" in aggregator.refusals["s3"]
    assert aggregator.standing.liars == {"s3"}
    assert aggregator.standing.reasons["s3"] == aggregator.refusals["s3"]
    assert aggregator.standing.failures["s3"] == LEFT_OUT_AFTER


@pytest.mark.parametrize("block", [0, 7, 2**20, 2**21, 2**62])
def test_a_site_that_lies_about_its_blocks_is_left_out_and_named(block):
    study = lying(make_study(DATA, count=COUNT, epsilon=20.0), "s3", block=block)
    study.mean(0)
    aggregator = study.aggregator
    assert aggregator.releases[-1].participants == ("s0", "s1", "s2", "s4")
    assert (
        aggregator.refusals["s3"] == f"it says that it claimed block {block}; this run never went beyond -1"
    )
    assert {site._ledger.last_block(study.contract.hash) for site in study.sites.values()} == {-1, 0}


@pytest.mark.parametrize("claims", [{"spent": 0.0}, {"block": -1}], ids=str)
def test_who_claims_less_harms_nobody(claims):
    study = lying(make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.3), "s3", **claims)
    for _ in range(COUNT):
        study.aggregator._give_up_blocks()
        with suppress(ProtocolError):
            study.mean(0)
    assert not study.aggregator.standing.liars
    assert set(NAMES) - {"s3"} <= set(study.aggregator.releases[-1].participants)


def test_a_lie_that_begins_late_is_told_with_both_numbers():
    study = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.4)
    study.mean(0)
    lying(study, "s1", spent=0.9)
    study.aggregator._give_up_blocks()
    study.mean(0)
    assert (
        study.aggregator.refusals["s1"]
        == "it says that it spent 0.9 of its budget; this run asked it for 0.2"
    )
    assert study.aggregator.releases[-1].participants == ("s0", "s2", "s3", "s4")


def test_with_too_few_sites_to_tell_nobody_is_convicted_or_believed():
    """Three agree with the record and four would have to: the run stops in words, and goes on with all."""
    study = make_study(DATA, count=COUNT, epsilon=20.0)
    honest, away = study.sites["s3"], study.sites.pop("s4")
    lying(study, "s3", spent=0.9)
    with pytest.raises(
        ProtocolError, match=r"3 sites answered, 4 are needed.*s3: it says that it spent 0\.9"
    ):
        study.mean(0)
    assert study.aggregator.standing == Standing(carriers=study.aggregator.standing.carriers)
    study.sites |= {"s3": honest, "s4": away}
    study.mean(0)
    assert study.aggregator.releases[-1].participants == NAMES


def test_a_run_whose_record_was_lost_believes_its_sites():
    """Even one that was away when it noticed; and from then on, nobody who claims more than that."""
    study = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.4)
    study.mean(0)
    away = study.sites.pop("s4")
    study.aggregator = aggregator = Aggregator(study.contract, study.engine.exchange, n_done=[1])
    study.mean(0)
    study.sites["s4"] = away
    aggregator._give_up_blocks()
    study.mean(0)
    assert aggregator.releases[-1].participants == NAMES
    lying(study, "s2", spent=1.0)
    assert set(aggregator.charged()) == set(NAMES) - {"s2"}
    assert aggregator.standing.liars == {"s2"}


def test_who_claims_nothing_does_not_push_out_honest_sites_when_the_record_was_lost():
    for mechanism in ("cape", "conventional"):
        study = make_study(DATA, count=COUNT, epsilon=20.0, mechanism=mechanism)
        study.mean(0)
        lying(study, "s0", spent=0.0, block=-1)
        study.aggregator = Aggregator(study.contract, study.engine.exchange, n_done=[1])
        study.mean(0)
        assert not study.aggregator.standing.liars
        assert set(NAMES) - {"s0"} <= set(study.aggregator.releases[-1].participants)


@pytest.mark.parametrize("data", [make_data((12, 9), 20), DATA], ids=["two sites", "five sites"])
def test_a_site_alone_or_one_of_two_is_believed(data):
    """Nobody is there to outvote it."""
    mechanism = "local" if len(data) > 2 else "cape"
    study = make_study(data, count=COUNT, epsilon=20.0, mechanism=mechanism)
    study.mean(0)
    study.aggregator = Aggregator(study.contract, study.engine.exchange, n_done=[1])
    study.mean(0)
    assert not study.aggregator.standing.liars


def test_what_is_unprotected_is_spent_by_nobody():
    for mechanism in ("none", "pooled"):
        study = make_study(DATA, count=COUNT, mechanism=mechanism)
        for _ in range(COUNT):
            study.mean(0)
            study.aggregator._give_up_blocks()
        assert not study.aggregator.standing.liars
        assert not study.aggregator.standing.reasons


def test_everything_is_written_down_before_it_is_asked():
    study, log = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.4), []

    def save(standing):
        log.append((standing.block, dict(standing.asked)))

    def carrier(letter):
        if letter.direction == "question":
            kind = msgspec.msgpack.decode(letter.data)[0]
            block, asked = log[-1] if log else (-1, {})
            assert kind == "Hello" or block == 0
            assert kind != "Ask" or asked[letter.site] == pytest.approx(0.2 * (len(study.released) + 1))
        return [letter.data]

    study.engine.carrier = carrier
    study.aggregator = Aggregator(study.contract, study.engine.exchange, standing=Standing(save=save))
    for _ in range(COUNT):
        study.mean(0)
    # What keeps the network from their files, which the first greeting tells; the block; the releases.
    assert len(log) == 1 + 1 + COUNT


def test_liars_are_kept_out_by_a_record_that_is_read_again():
    standing = Standing(liars={"s3"}, reasons={"s3": "it lied"})
    assert standing.leaves_out("s3")
    study = make_study(DATA, count=COUNT, epsilon=20.0)
    study.aggregator = Aggregator(study.contract, study.engine.exchange, standing=standing)
    study.mean(0)
    assert study.aggregator.releases[-1].participants == ("s0", "s1", "s2", "s4")


@given(st.lists(st.floats(2.0**-60, 0.1), min_size=1, max_size=60))
def test_rounding_makes_nobody_a_liar(fractions):
    """The parts add up in any order, at the site as charges and here as parts."""
    standing = Standing(block=3)
    for fraction in fractions:
        standing.ask(NAMES, fraction)
    spent = min(1.0, math.fsum(sorted(fractions)))
    greeting = statuses(**dict.fromkeys(NAMES, (3, spent)))
    assert standing.judge(CONTRACT, greeting) == {}


class KilledError(Exception):
    """The aggregator is gone, whatever it was doing."""


class Life:
    """A run through losses, restarts of sites and deaths of the aggregator, with one site that may lie.

    Things happen at numbered moments: before a letter is delivered, or before or after the record is saved.
    """

    def __init__(self, losses, restarts, kills, liar, begins, claims):
        self.losses, self.restarts, self.kills = losses, restarts, kills
        self.moment, self.saved, self.n_done = -1, Standing(), 0
        self.study = make_study(DATA, count=COUNT, epsilon=20.0, reserve=0.6)
        self.honest = {name: site for name, site in self.study.sites.items() if name != liar}
        self.study.engine.carrier = self.carry
        self.begins, self.claims = begins, claims
        site = self.study.sites[liar]
        self.study.sites[liar] = Liar(site, "Status", self.lie)

    def lie(self, status):
        return msgspec.structs.replace(status, **self.claims) if self.moment >= self.begins else status

    def pass_moment(self):
        self.moment += 1
        if self.moment in self.kills:
            raise KilledError

    def carry(self, letter):
        self.pass_moment()
        if self.moment in self.restarts:
            site = self.study.sites[letter.site]
            site._keep(None)
        return [] if self.moment in self.losses else [letter.data]

    def save(self, standing):
        self.pass_moment()
        self.saved = Standing(
            standing.block, dict(standing.asked), reasons=dict(standing.reasons), liars=set(standing.liars)
        )
        self.pass_moment()

    def start(self):
        standing = copy.deepcopy(self.saved)
        standing.save = self.save
        return Aggregator(
            self.study.contract, self.study.engine.exchange, n_done=[self.n_done], standing=standing
        )

    def run(self):
        """Start the aggregator again and again, until all means are made and all sites were greeted."""
        for _ in range(20):
            aggregator = self.start()
            with suppress(KilledError, ProtocolError):
                while self.n_done < COUNT:
                    aggregator.mean(0)
                    self.n_done += 1
                self.losses, self.kills, self.begins = set(), set(), 0
                return aggregator.charged()
        raise AssertionError("the run does not come to its end")


MOMENTS = st.integers(0, 130)
MORE = st.one_of(
    st.builds(lambda spent: {"spent": spent}, st.floats(0.9, 1.0)),
    st.builds(lambda block: {"block": block}, st.integers(1000, 2**62)),
)
LESS = st.sampled_from([{}, {"spent": 0.0}])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sets(MOMENTS, max_size=3),
    st.sets(MOMENTS, max_size=2),
    st.sets(MOMENTS, max_size=3),
    st.sampled_from(NAMES),
    MOMENTS,
    MORE | LESS,
)
def test_honest_sites_stay_and_the_liar_goes_whatever_is_lost(losses, restarts, kills, liar, begins, claims):
    life = Life(losses, restarts, kills, liar, begins, claims)
    greeted = life.run()
    says_more = bool(claims) and claims != {"spent": 0.0}
    assert life.saved.liars == ({liar} if says_more else set())
    assert not life.saved.liars & life.honest.keys()
    assert not says_more or "it says that it" in life.saved.reasons[liar]
    assert liar not in greeted or not says_more
    for name, site in life.honest.items():
        assert site._ledger.spent(life.study.contract.hash) <= life.study.contract.total_mu[name] ** 2
