"""Messages that reach a site while it makes a release: each either waits or does no harm.

A statistic that ends when it is told to holds the release open, in a thread of its own.
"""

import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting

import msgspec
import numpy as np
import pytest

from capedjica.mechanisms.messages import VERSION, Answer, Ask, Refusal, Status, Sum, SumAnswer, encode
from capedjica.mechanisms.site.clipping import sum_subjects
from tests.mechanisms.consortium import DATA, Consortium, reply
from tests.mechanisms.driving import PATIENT, SlowStatistics, ask_of, begin_of, make_block
from tests.mechanisms.world import clipped_mean, hello


class World:
    """A consortium with a block in use, whose site s0 takes as long as the test wants."""

    def __init__(self, folder, pool):
        self.consortium, self.pool = Consortium(folder, count=8), pool
        self.site, self.ledger = self.consortium.sites["s0"], self.consortium.ledgers["s0"]
        self.slow = self.site._statistics = SlowStatistics()
        self.block = make_block(self.consortium, 0, [0.1, 0.1, 0.1])

    @property
    def contract(self):
        return self.consortium.contract

    def hello(self, published=b"", aborted=()):
        return hello(self.contract, published, aborted)

    def tell(self, data):
        """Hand the site a message in another thread."""
        return self.pool.submit(self.site.handle, data)

    def begin_release(self, ask=None):
        """Ask for a release and return when its statistic is being computed."""
        made = self.tell(ask or ask_of(self.block, 0))
        assert self.slow.started.wait(PATIENT)
        return made

    def finish(self, made):
        self.slow.go.set()
        return reply(made.result(PATIENT))

    def begin(self, number, fractions, after=0):
        return reply(self.site.handle(encode(begin_of(self.contract, number, fractions, after))))


@pytest.fixture
def world(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = World(tmp_path, pool)
        with made.consortium:
            yield made
            made.slow.go.set()
            pool.shutdown()


def waits(made):
    with pytest.raises(StillWaiting):
        made.result(0.1)
    return True


def mean_of(world, block, slot):
    """The mean that the answers of all sites to a slot give."""
    answers = {
        name: reply(site.handle(ask_of(block, slot))).words for name, site in world.consortium.sites.items()
    }
    total = sum((np.frombuffer(words, "<u8") for words in answers.values()), np.zeros(20, np.uint64))
    plan = block.plan(slot)
    value = (total - block.masks(slot)).view(np.int64) * plan.step / plan.n_subjects
    return value, 6 * plan.output_std


def test_the_next_block_is_made_while_a_release_is_computed(world):
    made = world.begin_release()
    following = make_block(world.consortium, 1, [0.1, 0.2], after=0)
    assert not made.done()
    assert isinstance(world.finish(made), Answer)
    for block, slot in ((world.block, 0), (world.block, 1), (following, 0), (following, 1)):
        value, tolerance = mean_of(world, block, slot)
        assert np.abs(value - clipped_mean(DATA)).max() < tolerance


def test_the_same_question_again_waits_and_gets_the_same_bytes(world):
    made = world.begin_release()
    again = [world.tell(ask_of(world.block, 0)) for _ in range(3)]
    assert waits(again[0])
    answer = world.finish(made)
    assert [reply(one.result(PATIENT)) for one in again] == [answer] * 3
    assert len(world.slow.calls) == 1
    assert world.ledger.spent(world.contract.hash) == pytest.approx(answer.mu**2)


def test_another_question_for_the_slot_waits_and_is_refused(world):
    made = world.begin_release()
    other = world.tell(ask_of(world.block, 0, state=b"another"))
    assert waits(other)
    assert isinstance(world.finish(made), Answer)
    assert "another request" in reply(other.result(PATIENT)).reason
    assert world.slow.calls == [(b"", b"")]


def test_releases_are_made_one_at_a_time(world):
    following = make_block(world.consortium, 1, [0.1], after=0)
    made = world.begin_release()
    others = [world.tell(ask_of(world.block, slot)) for slot in (1, 2)]
    assert all(waits(other) for other in others)
    assert isinstance(world.finish(made), Answer)
    assert all(isinstance(reply(other.result(PATIENT)), Answer) for other in others)
    assert isinstance(reply(world.site.handle(ask_of(following, 0))), Answer)
    assert world.slow.most_active == 1


def test_a_release_out_of_the_next_block_waits_for_the_one_being_made(world):
    following = make_block(world.consortium, 1, [0.1], after=0)
    made = world.begin_release()
    early = world.tell(ask_of(following, 0))
    assert waits(early)
    assert world.site._block.begin == world.block.begin
    assert isinstance(world.finish(made), Answer)
    assert isinstance(reply(early.result(PATIENT)), Answer)
    assert world.site._block.begin == following.begin


def test_a_block_in_place_of_the_one_in_use_waits(world):
    made = world.begin_release()
    instead = world.tell(encode(begin_of(world.contract, 1, [0.1])))
    assert waits(instead)
    answer = world.finish(made)
    assert np.abs(np.frombuffer(answer.words, "<i8").astype(float)).max() > 2**55
    assert isinstance(reply(instead.result(PATIENT)), SumAnswer)
    assert [block.begin.block for block in world.site._blocks()] == [1]


def test_a_third_block_replaces_the_next_one_and_not_the_one_in_use(world):
    made = world.begin_release()
    make_block(world.consortium, 1, [0.1], after=0)
    replaced = world.site._next._masks
    third = make_block(world.consortium, 2, [0.1], after=0)
    assert not replaced.any()
    assert isinstance(world.finish(made), Answer)
    gone = Sum(VERSION, world.contract.hash, 1, b"")
    assert "does not hold block 1" in reply(world.site.handle(encode(gone))).reason
    for block in (world.block, third):
        value, tolerance = mean_of(world, block, 0)
        assert np.abs(value - clipped_mean(DATA)).max() < tolerance


def test_a_block_after_the_next_one_brings_that_into_use_once_no_release_is_made(world):
    """An invitation may overtake the first release out of the block that it comes after."""
    following = make_block(world.consortium, 1, [0.1], after=0)
    made = world.begin_release()
    third = world.tell(encode(begin_of(world.contract, 2, [0.1], after=1)))
    assert waits(third)
    assert isinstance(world.finish(made), Answer)
    assert isinstance(reply(third.result(PATIENT)), SumAnswer)
    assert [block.begin.block for block in world.site._blocks()] == [1, 2]
    assert isinstance(reply(world.site.handle(ask_of(following, 0))), Answer)
    assert "no longer holds the mask" in reply(world.site.handle(ask_of(world.block, 1))).reason


@pytest.mark.parametrize("after", [-1, 5])
def test_a_block_after_none_that_is_held_replaces_both(world, after):
    make_block(world.consortium, 1, [0.1], after=0)
    masks = [block._masks for block in world.site._blocks()]
    assert isinstance(world.begin(6, [0.9], after), SumAnswer)
    assert not any(mask.any() for mask in masks)
    assert [block.begin.block for block in world.site._blocks()] == [6]


def test_what_is_published_meanwhile_is_for_later_releases(world):
    made = world.begin_release()
    assert isinstance(reply(world.tell(world.hello(b"new")).result(PATIENT)), Status)
    assert not made.done()
    assert isinstance(world.finish(made), Answer)
    assert "does not hold the published data" in reply(world.site.handle(ask_of(world.block, 1))).reason
    answer = reply(world.site.handle(ask_of(world.block, 1, published=b"new")))
    assert isinstance(answer, Answer)
    assert world.slow.calls == [(b"", b""), (b"new", b"")]


def test_what_is_published_just_before_the_statistic_is_too_late_for_it(world, monkeypatch):
    """Between the check that the site holds what the release refers to, and its use."""

    def overtaken(vectors, *others):
        assert isinstance(reply(world.site.handle(world.hello(b"new"))), Status)
        return sum_subjects(vectors, *others)

    monkeypatch.setattr("capedjica.mechanisms.site.answering.sum_subjects", overtaken)
    world.slow.go.set()
    assert isinstance(reply(world.site.handle(ask_of(world.block, 0))), Answer)
    assert world.slow.calls == [(b"", b"")]


def test_a_release_given_up_while_it_is_made_is_noted_once_it_is_recorded(world):
    made = world.begin_release()
    told = world.tell(world.hello(aborted=[(0, 0)]))
    assert waits(told)
    assert isinstance(world.finish(made), Answer)
    status = reply(told.result(PATIENT))
    assert status.spent > 0
    assert world.ledger.totals().overall.n_aborted == 1


def test_a_release_that_is_refused_lets_the_next_one_through(world):
    def refuse(stage, published, state):
        raise ValueError("nothing can be computed")

    world.site._statistics = refuse
    wrong = msgspec.structs.replace(msgspec.msgpack.decode(ask_of(world.block, 0), type=Ask), slot=7)
    assert isinstance(reply(world.site.handle(encode(wrong))), Refusal)
    assert isinstance(reply(world.site.handle(ask_of(world.block, 0))), Answer)
    assert world.site.n_zero == len(DATA["s0"])


# An aggregator that means harm


def test_the_unused_slots_of_both_blocks_must_fit_into_the_budget(world):
    """Three slots of 0.1 are unused, one of them being made; 0.7 is left for the next block."""
    made = world.begin_release()
    assert "more than the whole budget" in world.begin(1, [0.4, 0.31]).reason
    assert world.site._next is None
    assert isinstance(world.begin(1, [0.4, 0.3]), SumAnswer)
    assert isinstance(world.finish(made), Answer)
    # now 0.1 is charged and 0.2 unused
    assert "the budget of site s0 does not allow it" in world.begin(2, [0.71]).reason
    assert world.site._next.begin.block == 1
    assert isinstance(world.begin(2, [0.7]), SumAnswer)
    # in place of the block in use all of what is left can be had
    assert isinstance(world.begin(3, [0.9], after=-1), SumAnswer)


def test_a_flood_of_blocks_during_a_release_takes_the_memory_of_two(world):
    made, drawn, most = world.begin_release(), [], 0
    source = world.site._mask_source

    class Counting:
        def uniform(self, count):
            nonlocal most
            most = max(most, sum(mask() is not None for mask in drawn))
            masks = source.uniform(count)
            drawn.append(weakref.ref(masks))
            return masks

    world.site._mask_source = Counting()
    for number in range(1, 40):
        assert isinstance(world.begin(number, [0.01] * 50), SumAnswer)
    # the one in use was drawn before: of the others none is left when the next is drawn, and one after
    assert most == 0
    assert len(drawn) == 39
    assert sum(mask() is not None for mask in drawn) == 1
    answer = world.finish(made)
    assert np.abs(np.frombuffer(answer.words, "<i8").astype(float)).max() > 2**55


def test_the_old_block_has_stored_bytes_or_nothing_once_the_next_is_in_use(world):
    world.slow.go.set()
    following = make_block(world.consortium, 1, [0.1], after=0)
    first = world.site.handle(ask_of(world.block, 0))
    old_masks = world.site._block._masks
    assert isinstance(reply(world.site.handle(ask_of(following, 0))), Answer)
    assert not old_masks.any()
    spent = world.ledger.spent(world.contract.hash)
    assert world.site.handle(ask_of(world.block, 0)) == first
    assert "no longer holds the mask" in reply(world.site.handle(ask_of(world.block, 1))).reason
    assert "another request" in reply(world.site.handle(ask_of(world.block, 0, b"x"))).reason
    assert world.ledger.spent(world.contract.hash) == spent


@pytest.mark.parametrize("flaw", ["unfinished", "unpublished", "participants", "slot"])
def test_the_next_block_comes_into_use_only_by_a_release_that_can_be_made(world, flaw):
    world.slow.go.set()
    if flaw == "unfinished":
        begin = begin_of(world.contract, 1, [0.1], after=0)
        world.site.handle(encode(begin))
        ask = msgspec.structs.replace(msgspec.msgpack.decode(ask_of(world.block, 0), type=Ask), block=1)
    else:
        following = make_block(world.consortium, 1, [0.1], after=0)
        published = b"unheard of" if flaw == "unpublished" else b""
        ask = msgspec.msgpack.decode(ask_of(following, 0, published=published), type=Ask)
        if flaw == "participants":
            ask = msgspec.structs.replace(ask, participants=["s0", "s1", "s2"])
        if flaw == "slot":
            ask = msgspec.structs.replace(ask, slot=1)
    refused = reply(world.site.handle(encode(ask)))
    assert isinstance(refused, Refusal)
    assert [block.begin.block for block in world.site._blocks()] == [0, 1]
    assert isinstance(reply(world.site.handle(ask_of(world.block, 0))), Answer)
    assert world.ledger.totals().overall.n_releases == 1


def test_an_invitation_again_changes_nothing(world):
    in_use, following = world.site._block, begin_of(world.contract, 1, [0.1], after=0)
    first = world.site.handle(encode(following))
    held = world.site._blocks()
    assert world.site.handle(encode(following)) == first
    assert reply(world.site.handle(encode(in_use.begin))).data == in_use.first_message
    assert world.site._blocks() == held
    assert held[0]._masks.any()
    assert held[1]._masks.any()


def test_an_old_or_altered_invitation_is_refused_and_no_block_is_lost(world):
    world.begin(1, [0.1])
    world.begin(2, [0.1])
    held = world.site._blocks()
    for number, fractions, after in (
        (0, [0.1], 0),
        (0, [0.1, 0.1, 0.1], 2),
        (1, [0.1], 0),
        (1, [0.1], -1),
        (2, [0.05], 0),
        (2, [0.1], -1),
        (2, [0.1], 1),
    ):
        assert "block numbers grow" in world.begin(number, fractions, after).reason
    assert world.site._blocks() == held
    assert all(block._masks.any() for block in held)


def test_a_site_without_a_block_in_use_can_join_for_the_next(world):
    """It was not there before, or was started again; the masks it held are burnt."""
    world.consortium.start("s0")
    following = make_block(world.consortium, 1, [0.1], after=0)
    value, tolerance = mean_of(world, following, 0)
    assert np.abs(value - clipped_mean(DATA)).max() < tolerance
