"""A release happens once: repeats, changed questions, restarts, an aggregator from an old checkpoint."""

import copy
import dataclasses
import math
import threading
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.messages import (
    MAX_SLOTS,
    VERSION,
    Answer,
    Ask,
    Begin,
    Hello,
    Refusal,
    SlotPlan,
    Status,
    Sum,
    encode,
    publication_hash,
)
from capedjica.mechanisms.site.answering import Site, SitePolicy
from capedjica.privacy import gaussian_delta
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Summary
from capedjica.privacy.reserved_delta import RESERVED_DELTA
from capedjica.securesum.noise import NoiseSource
from tests.mechanisms.consortium import DATA, SIZES, Consortium, reply
from tests.mechanisms.world import NONCE, clipped_mean, hello, make_study


@pytest.fixture
def consortium(tmp_path):
    with Consortium(tmp_path) as made:
        yield made


def test_the_same_request_gets_identical_bytes_and_no_charge(consortium):
    consortium.aggregator.mean(0, b"state")
    ask, answers = consortium.last_ask()
    before = consortium.spent("s0")
    assert before > 0
    assert consortium.sites["s0"].handle(ask) == answers["s0"]
    assert consortium.spent("s0") == before


def test_a_restarted_site_repeats_stored_bytes_and_burns_the_rest(consortium):
    consortium.aggregator.mean(0, b"state")
    ask, answers = consortium.last_ask()
    consortium.start("s0")
    assert consortium.sites["s0"].handle(ask) == answers["s0"]
    before = consortium.spent("s0")
    unused = msgspec.structs.replace(msgspec.msgpack.decode(ask, type=Ask), slot=1)
    refused = reply(consortium.sites["s0"].handle(encode(unused)))
    assert isinstance(refused, Refusal)
    assert "is used up" in refused.reason
    assert consortium.spent("s0") == before
    # the study goes on in a new block
    for _ in range(4):
        consortium.aggregator.mean(0, b"state")
    assert consortium.spent("s0") <= consortium.contract.total_mu["s0"] ** 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": b"another state"}, "already answered another request"),
        ({"published": bytes(32)}, "already answered another request"),
        ({"plan": SlotPlan(0, 0.01)}, "already answered another request"),
        ({"participants": ["s0", "s1", "s2"]}, "already answered another request"),
        ({"participants": ["s0", "s1", "s3", "s2"]}, "not sites of the roster in order"),
        ({"participants": ["s1", "s2", "s3"]}, "not sites of the roster in order"),
        ({"participants": []}, "not sites of the roster in order"),
        ({"plan": SlotPlan(7, 0.01)}, "stage that is not in the contract"),
    ],
)
def test_a_changed_question_under_a_used_slot_is_refused(consortium, change, reason):
    consortium.aggregator.mean(0, b"state")
    ask = msgspec.msgpack.decode(consortium.last_ask()[0], type=Ask)
    before = consortium.spent("s0")
    refused = reply(consortium.sites["s0"].handle(encode(msgspec.structs.replace(ask, **change))))
    assert isinstance(refused, Refusal)
    assert reason in refused.reason
    assert consortium.spent("s0") == before


def test_other_participants_than_agreed_are_refused_for_a_fresh_slot(consortium):
    consortium.aggregator.mean(0)
    ask = msgspec.msgpack.decode(consortium.last_ask()[0], type=Ask)
    fewer = msgspec.structs.replace(ask, slot=1, participants=["s0", "s1", "s2"])
    assert "not those that were agreed on" in reply(consortium.sites["s0"].handle(encode(fewer))).reason
    other = msgspec.structs.replace(ask, slot=1, plan=msgspec.structs.replace(ask.plan, fraction=0.9))
    assert "not agreed on as it is asked" in reply(consortium.sites["s0"].handle(encode(other))).reason


def test_an_aggregator_from_an_old_checkpoint_gets_no_second_message_under_a_mask(consortium):
    """Two means with different states; then the aggregator forgets the second and asks for something else."""
    first = consortium.aggregator
    first.mean(0, b"a")
    checkpoint = copy.copy(first._block.__dict__), list(first._done)
    first.mean(0, b"b")
    _, answers_b = consortium.last_ask()
    first._block.__dict__.update(checkpoint[0])
    first._done = checkpoint[1]
    consortium.calls.clear()
    value = first.mean(0, b"c")
    asked = [
        msgspec.msgpack.decode(data, type=Ask)
        for questions, _ in consortium.calls
        for data in questions.values()
        if msgspec.msgpack.decode(data)[0] == "Ask"
    ]
    # the used slot was refused by all; only then did a new block, with fresh masks, give an answer
    refused = [reply(answer) for _, answers in consortium.calls for answer in answers.values()]
    assert sum(isinstance(r, Refusal) and "another request" in r.reason for r in refused) >= 4
    assert {(a.block, a.slot, a.state) for a in asked} == {(0, 1, b"c"), (1, 0, b"c")}
    assert np.abs(value - clipped_mean(DATA)).max() < 6 * first.releases[-1].noise
    words = {reply(answers_b[name]).words for name in DATA} | {
        reply(a).words
        for _, answers in consortium.calls
        for a in answers.values()
        if isinstance(reply(a), Answer)
    }
    assert len(words) == 8
    assert consortium.spent("s0") <= consortium.contract.total_mu["s0"] ** 2


def test_a_new_aggregator_that_knows_nothing_stays_within_the_budget(consortium):
    for _ in range(4):
        consortium.aggregator.mean(0)
    amnesiac = Aggregator(consortium.contract, consortium.exchange)
    for _ in range(5):
        amnesiac.mean(0)
    for name in DATA:
        assert consortium.spent(name) <= consortium.contract.total_mu[name] ** 2
    # it learnt from the sites what was spent, and spread the rest over the releases it still wanted
    assert amnesiac.releases[0].mu["s0"] < consortium.aggregator.releases[0].mu["s0"]


def test_a_site_whose_total_cap_is_spent_stays_out_and_nobody_is_charged_in_vain(tmp_path):
    other = b"o" * 32
    with Consortium(tmp_path, count=1, epsilon=1.0, policy_epsilon=1.0) as consortium:
        ledger = consortium.ledgers["s2"]
        ledger.register_study(other, "earlier", Cap(1.0, 1e-5))
        ledger.claim(other, 0, 0)
        ledger.release(other, 0, 0, 0, ["s2"], b"r" * 32, 0.2, lambda: b"x", Summary("earlier", 1))
        consortium.aggregator.mean(0)
        (release,) = consortium.aggregator.releases
        assert release.participants == ("s0", "s1", "s3")
        assert consortium.spent("s2") == 0
        assert "the budget of site s2 does not allow it" in consortium.aggregator.refusals["s2"]


def test_an_aggregator_that_never_stops_cannot_make_the_guarantee_false(tmp_path, monkeypatch):
    """It asks for the smallest slots that a site affords until all are refused, far beyond what was agreed.

    What was spent, with all that the grid added, stays below the delta of the contract at its epsilon.
    """
    with Consortium(tmp_path, count=1, epsilon=2.0) as consortium:
        contract = consortium.contract
        for fraction in (0.5, 0.3, 0.1, 0.05, 0.05, 0.01, 1e-3, 1e-5, 1e-7, 1e-8, 1e-9):
            aggregator = Aggregator(contract, consortium.exchange)
            monkeypatch.setattr(aggregator, "_calibrate", lambda spent: None)
            monkeypatch.setattr(aggregator, "_coming_slots", lambda stage, f=fraction: [SlotPlan(0, f)])
            with suppress(CapedjicaError):
                aggregator.mean(0)
        for name in DATA:
            spent = consortium.spent(name)
            assert 0.999999 < spent / contract.total_mu[name] ** 2 <= 1
            reached = gaussian_delta(math.sqrt(spent), 2.0)
            assert reached <= contract.delta * (1 - RESERVED_DELTA)


def test_a_study_approved_for_more_than_its_contract_is_not_begun(tmp_path):
    with Consortium(tmp_path) as consortium:
        generous = Contract(
            title="generous",
            roster=consortium.contract.roster,
            subjects=SIZES,
            stages=consortium.contract.stages,
            epsilon=(1.0,) * 4,
            delta=1e-5,
        )
        ledger = consortium.ledgers["s0"]
        ledger.register_study(generous.hash, "generous", Cap(2.0, 1e-5))
        arguments = consortium.identities["s0"], ledger, lambda *_: [DATA["s0"]], NoiseSource()
        site = Site(generous, "s0", *arguments)
        begin = Begin(VERSION, generous.hash, 0, list(DATA), [SlotPlan(0, 0.1)])
        assert "its own log says why" in reply(site.handle(encode(begin))).reason
        assert ledger.last_block(generous.hash) == -1


def test_a_block_begun_while_a_release_is_made_does_not_uncover_it(tmp_path):
    """Messages may come from several threads: the mask in use must not be wiped by the next block."""
    with Consortium(tmp_path) as consortium:
        site, contract, begun = consortium.sites["s0"], consortium.contract, threading.Event()
        next_block = encode(Begin(VERSION, contract.hash, 1, list(DATA), [SlotPlan(0, 0.1)]))

        def begin():
            site.handle(next_block)
            begun.set()

        thread = threading.Thread(target=begin)

        def statistics(stage, published, state):
            if not begun.is_set():
                thread.start()
                begun.wait(0.3)
            return [DATA["s0"]]

        site._statistics = statistics
        consortium.aggregator.mean(0)
        thread.join()
        answers = [
            reply(answers["s0"])
            for _, answers in consortium.calls
            if isinstance(reply(answers["s0"]), Answer)
        ]
        for answer in answers:
            # Under a uniform mask all 20 words lie below 2^55 with odds of 2^-160.
            assert np.abs(np.frombuffer(answer.words, "<i8").astype(float)).max() > 2**55
        assert begun.is_set()


def test_slots_that_cannot_exist_leave_no_trace(consortium):
    consortium.aggregator.mean(0)
    ask = msgspec.msgpack.decode(consortium.last_ask()[0], type=Ask)
    entries = len(consortium.ledgers["s0"].entries())
    for slot in (len(DATA) + 99, MAX_SLOTS, 2**40):
        refused = reply(consortium.sites["s0"].handle(encode(msgspec.structs.replace(ask, slot=slot))))
        assert isinstance(refused, Refusal)
    assert len(consortium.ledgers["s0"].entries()) == entries


@pytest.mark.parametrize("lost", ["two releases", "the last release"])
def test_a_restored_ledger_is_noticed_by_the_head_in_the_last_message(tmp_path, consortium, lost):
    """Ledger and head both put back to an older copy: only what was sent elsewhere can tell."""
    aggregator = consortium.aggregator
    if lost == "the last release":
        aggregator.mean(0)
        aggregator.mean(0)
    saved = {path: path.read_bytes() for path in tmp_path.glob("s1.*")}
    for _ in range(2 if lost == "two releases" else 1):
        aggregator.mean(0)
    if lost == "the last release":
        aggregator.publish(b"")  # the head in the answer is older than the answer; the next message has it
    consortium.ledgers["s1"].close()
    for path in tmp_path.glob("s1.*"):
        path.unlink()
    for path, content in saved.items():
        path.write_bytes(content)
    consortium.start("s1")
    aggregator._block = None
    aggregator.mean(0)
    assert "s1" not in consortium.aggregator.releases[-1].participants
    assert "its own log says why" in consortium.aggregator.refusals["s1"]


def test_every_message_kind_is_refused_in_words(consortium):
    site, contract = consortium.sites["s0"], consortium.contract
    header = (VERSION, contract.hash)
    for bad in (
        b"",
        b"\x00" * 50,
        hello(contract, version=VERSION - 1),
        hello(contract, version=VERSION + 1),
        encode(Hello(VERSION, b"x" * 32, b"", [], b"", NONCE)),
        encode(Hello(*header, b"", [], b"", NONCE[1:])),
        encode(Hello(*header, b"", [], b"", NONCE + b"x")),
        encode(Sum(*header, 7, b"")),
        encode(Begin(*header, 0, ["s0"], [])),
        encode(Begin(*header, 0, list(DATA), [SlotPlan(0, 5e-324)])),
        hello(contract, aborted=[(0, 0)] * 65),
        encode(Begin(*header, 0, ["s9", "s0"], [SlotPlan(0, 0.1)])),
    ):
        assert isinstance(reply(site.handle(bad)), Refusal)
    assert consortium.ledgers["s0"].last_block(contract.hash) == -1


@pytest.mark.parametrize(
    ("slots", "invited", "reason"),
    [
        ([(5, 0.1)], "s0 s1 s2 s3", "stage that is not in the contract"),
        ([(0, 0.6), (0, 0.6)], "s0 s1 s2 s3", "more than the whole budget"),
        ([(0, 0.1)], "s1 s0 s2 s3", "not sites of the roster in order"),
        ([(0, 0.1)], "s1 s2 s3", "not sites of the roster in order"),
        ([(0, 0.1)], "s0 s0 s1 s2", "not sites of the roster in order"),
    ],
)
def test_a_block_that_was_not_agreed_on_is_refused(consortium, slots, invited, reason):
    begin = Begin(VERSION, consortium.contract.hash, 0, invited.split(), [SlotPlan(*slot) for slot in slots])
    answer = reply(consortium.sites["s0"].handle(encode(begin)))
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


def test_a_site_refuses_what_its_policy_does_not_allow(consortium):
    for mechanism, insecure in (("pooled", False), ("none", False), ("cape", True)):
        contract = Contract(
            title="open",
            roster=consortium.contract.roster,
            subjects=SIZES,
            stages=consortium.contract.stages,
            epsilon=() if mechanism == "none" else (1.0,) * 4,
            delta=1e-5,
            mechanism=mechanism,
            insecure_noise=insecure,
        )
        arguments = (contract, "s0", consortium.identities["s0"], consortium.ledgers["s0"], None)
        noise = NoiseSource(insecure_noise_seed=1 if insecure else None)
        with pytest.raises(InputError, match="its policy does not allow"):
            Site(*arguments, noise)
        Site(*arguments, noise, SitePolicy(allow_unprotected=True))


def test_a_site_refuses_seeded_noise_under_a_contract_that_promises_privacy(consortium):
    with pytest.raises(InputError, match="disagree on whether noise is seeded"):
        Site(
            consortium.contract,
            "s0",
            consortium.identities["s0"],
            consortium.ledgers["s0"],
            None,
            NoiseSource(insecure_noise_seed=1),
        )


def test_unprotected_releases_charge_infinity():
    for mechanism in ("pooled", "none"):
        study = make_study(DATA, mechanism=mechanism)
        study.mean(0)
        assert study.sites["s0"]._ledger.spent(study.contract.hash) == math.inf


@pytest.mark.parametrize("when", ["at once", "for one subject"])
def test_no_error_that_depends_on_data_leaves_a_site(consortium, caplog, when):
    """The scans of a site cannot be read: it answers as always, and its own log has no word of them."""

    def broken(*_):
        raise OSError("cannot read /scans/smith_john.nii")

    def statistics(stage, published, state):
        return broken() if when == "at once" else map(broken, DATA["s2"])

    consortium.start("s2", statistics)
    consortium.aggregator.mean(0)
    _, answers = consortium.last_ask()
    assert {type(reply(answer)) for answer in answers.values()} == {Answer}
    assert len({len(answer) for answer in answers.values()}) == 1
    assert consortium.sites["s2"].n_zero == SIZES[2]
    assert "smith" not in caplog.text


def test_an_unexpected_error_is_a_refusal_without_its_words(consortium, monkeypatch):
    site = consortium.sites["s0"]

    def fail(study):
        raise RuntimeError("smith_john.nii")

    monkeypatch.setattr(consortium.ledgers["s0"], "last_block", fail)
    refused = reply(site.handle(hello(consortium.contract)))
    assert isinstance(refused, Refusal)
    assert refused.reason == "site s0 cannot answer; its own log says why"


def test_masks_are_forgotten_once_used_or_replaced(consortium):
    consortium.aggregator.mean(0)
    block = consortium.sites["s0"]._block
    masks, layout = block._masks, block._layout
    assert not masks[layout.words(0)].any()
    assert masks[layout.words(1)].all()
    consortium.aggregator._block = None
    consortium.aggregator.mean(0)
    assert not masks.any()


def test_a_release_refers_to_what_is_published_or_is_refused_uncharged(consortium):
    consortium.aggregator.publish(b"a projection")
    consortium.aggregator.mean(0)
    ask = msgspec.msgpack.decode(consortium.last_ask()[0], type=Ask)
    before = consortium.spent("s0")
    other = msgspec.structs.replace(ask, slot=1, published=publication_hash(b"another projection"))
    refused = reply(consortium.sites["s0"].handle(encode(other)))
    assert "does not hold the published data" in refused.reason
    assert consortium.spent("s0") == before
    assert isinstance(
        reply(consortium.sites["s0"].handle(encode(msgspec.structs.replace(ask, slot=1)))), Answer
    )


def test_a_block_that_would_not_fit_into_memory_is_refused(consortium):
    contract = dataclasses.replace(consortium.contract, stages=(Stage(Query("huge", 1 << 23, 1.0)),))
    ledger = consortium.ledgers["s0"]
    ledger.register_study(contract.hash, "huge", contract.cap("s0"))
    site = Site(contract, "s0", consortium.identities["s0"], ledger, None, NoiseSource())
    begin = Begin(VERSION, contract.hash, 0, list(DATA), [SlotPlan(0, 0.1)] * 3)
    assert "must not need more than 16777216 words" in reply(site.handle(encode(begin))).reason
    assert ledger.last_block(contract.hash) == -1


def test_a_release_given_up_is_noted_in_the_ledgers_of_the_others(consortium):
    consortium.aggregator.mean(0)
    away = consortium.sites.pop("s3")
    consortium.aggregator.mean(0)
    assert [release.aborted for release in consortium.aggregator.releases] == [False, True, False]
    for name in ("s0", "s1", "s2"):
        (study,) = consortium.ledgers[name].totals().studies.values()
        assert (study.n_releases, study.n_aborted) == (3, 1)
    consortium.sites["s3"] = away
    # whatever else an aggregator calls given up: there is nothing to note
    answer = away.handle(hello(consortium.contract, aborted=[(0, 3), (77, 0)]))
    assert isinstance(reply(answer), Status)
    assert consortium.ledgers["s3"].totals().overall.n_aborted == 0
