"""Questions and answers between the aggregator and sites, without FLARE."""

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.coordinator.flare import transport as courier_module
from capedjica.coordinator.flare.carrier import CarrierLostError
from capedjica.coordinator.flare.transport import Courier, Patience
from capedjica.errors import ProtocolError
from capedjica.flare import parcels
from capedjica.flare.parcels import Notice, Parcel, write_notice, write_parcel
from capedjica.flare.wire import MAX_MESSAGE
from capedjica.mechanisms.messages import VERSION, Busy, Refusal, Status, Unknown, question_hash, read_reply
from capedjica.site.agent import responder as desk_module
from capedjica.site.agent.responder import Desk
from tests.flare.carriers import (
    ASK,
    BEGIN,
    CONTRACT,
    HASH,
    HELLO,
    SUM,
    Clock,
    Faulty,
    Network,
    Signer,
    Worker,
    answer,
    answers,
    busy,
    read,
    refusal,
    said,
    status,
    unknown,
)

PATIENCE = Patience()
# The longest that one round can take beyond what it was to wait for.
ROUND = parcels.HOLD_SECONDS + parcels.TRANSIT_SECONDS + 1.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(courier_module, "time", Clock())
    return courier_module.time


def courier(clock, **sites):
    return Courier(CONTRACT, Network(clock, sites))


def parcel(question, version=VERSION, hash_=None, asked=True):
    """Return a parcel with a question, or one that asks again for its answer."""
    return msgspec.msgpack.encode(
        Parcel(version, hash_ or question_hash(question), question if asked else None)
    )


def answered(desk, question, **options):
    """Return what a desk said, which must be signed for that question."""
    data = parcel(question, **options)
    return read_reply(desk.receive(data), CONTRACT, "a", read(data).hash)


# The aggregator's end


def test_a_site_may_compute_for_long_and_is_sent_the_question_once(clock):
    site = Worker(clock, takes=0.9 * PATIENCE.release)
    assert courier(clock, a=site).exchange({"a": ASK}) == answers("a", ASK)
    assert site.sent == [ASK]
    assert len(site.parcels) > 1000


@pytest.mark.parametrize("alive", [0.0, 1000.0])
def test_a_dead_site_is_given_up_after_the_silence_and_not_before(clock, alive):
    """At once, or while it computes; the answer of the other is there all the same."""
    line = courier(clock, dead=Worker(clock, takes=5000, gone=(alive, 1e9)), well=Worker(clock))
    began = clock.now
    assert line.exchange({"dead": ASK, "well": ASK}) == answers(["well"], ASK)
    took = clock.now - began - alive
    assert PATIENCE.silence <= took <= PATIENCE.silence + 2 * ROUND
    assert line.lost == {"dead": "no reply"}


@pytest.mark.parametrize("takes", [0.0, 300.0])
def test_a_site_that_is_cut_off_for_less_than_the_silence_is_not_given_up(clock, takes):
    site = Worker(clock, takes, gone=(0.0 if takes == 0 else 20.0, 40.0))
    line = courier(clock, a=site)
    assert line.exchange({"a": ASK}) == answers("a", ASK)
    assert not line.lost


@pytest.mark.parametrize(
    ("question", "limit"),
    [(HELLO, PATIENCE.greeting), (BEGIN, PATIENCE.masks), (SUM, PATIENCE.masks), (ASK, PATIENCE.release)],
)
def test_a_site_that_stalls_is_given_up_after_the_limit_of_what_was_asked(clock, question, limit):
    line = courier(clock, a=Worker(clock, takes=1e9))
    began = clock.now
    assert line.exchange({"a": question}) == {}
    assert limit <= clock.now - began <= limit + ROUND
    assert line.lost == {"a": "time limit exceeded"}


def test_a_site_given_up_costs_the_others_nothing_until_it_is_greeted_again(clock):
    """A greeting asks whether it is back, but not more often than once in the time of the silence."""
    back = Worker(clock, gone=(0.0, 300.0))
    line = courier(clock, a=back, b=Worker(clock))
    line.exchange({"a": ASK, "b": ASK})
    tried, given_up = len(back.parcels), clock.now
    for question in (ASK, HELLO, BEGIN):
        assert line.exchange({"a": question, "b": question}) == answers("b", question)
    assert len(back.parcels) == tried
    assert clock.now - given_up < 1.0
    clock.sleep(PATIENCE.silence)
    assert line.exchange({"a": HELLO, "b": HELLO}) == answers("b", HELLO)
    assert len(back.parcels) == tried + 1
    clock.sleep(300.0)
    assert line.exchange({"a": HELLO, "b": HELLO}) == answers("ab", HELLO)
    assert not line.lost
    assert line.exchange({"a": ASK}) == answers("a", ASK)


def test_a_question_is_the_same_parcel_at_every_site_and_every_time(clock):
    """FLARE sends equal bytes at once; and a site knows by it what it answered through an earlier job."""
    sites = {name: Worker(clock) for name in "abc"}
    line = courier(clock, **sites)
    for question in (ASK, ASK, BEGIN):
        line.exchange(dict.fromkeys(sites, question))
    assert sites["a"].parcels == sites["b"].parcels == sites["c"].parcels
    assert [given.hash for given in sites["a"].parcels] == [question_hash(q) for q in (ASK, ASK, BEGIN)]


def test_different_questions_reach_their_sites(clock):
    sites = {"a": Worker(clock), "b": Worker(clock)}
    courier(clock, **sites).exchange({"a": BEGIN, "b": SUM})
    assert (sites["a"].sent, sites["b"].sent) == ([BEGIN], [SUM])


def test_a_site_that_forgot_the_question_is_sent_it_again(clock):
    """An agent that was started again says that it does not know the question, and is not given up."""
    site = Worker(clock, takes=30.0)

    def forgetful(name, data):
        if len(site.parcels) == 5:
            site.asked.clear()
        return site(name, data)

    line = courier(clock, a=forgetful)
    assert line.exchange({"a": ASK}) == answers("a", ASK)
    assert site.sent == [ASK, ASK]
    assert not line.lost


# Refusals


def test_a_refusal_of_a_greeting_gives_the_site_up_for_its_reason(clock):
    """Whoever asked sees the refusal as well."""
    line = courier(clock, a=lambda name, data: refusal(name, read(data).hash, "it takes no part"))
    expected = {"a": refusal("a", question_hash(HELLO), "it takes no part")}
    assert line.exchange({"a": HELLO}) == expected
    assert line.lost == {"a": "it takes no part"}
    assert line.exchange({"a": ASK}) == {}


@pytest.mark.parametrize("question", [BEGIN, SUM, ASK])
def test_a_refusal_of_anything_else_is_for_whoever_asked(clock, question):
    line = courier(clock, a=lambda name, data: refusal(name, read(data).hash, "no"))
    assert line.exchange({"a": question}) == {"a": refusal("a", question_hash(question), "no")}
    assert not line.lost


def test_a_site_meets_an_aggregator_of_another_version():
    given = answered(Desk(Signer()), ASK, version=9)
    assert given.reason == f"this site speaks version {VERSION} of the protocol, the aggregator 9"


def test_the_refusal_of_a_site_of_another_version_names_both_to_the_coordinator(clock, monkeypatch):
    """The way it happens: the site's own program refuses, and the aggregator's shows what it said."""

    def other_site(name, data):
        with monkeypatch.context() as patch:
            patch.setattr(desk_module, "VERSION", 9)
            return Desk(Signer()).receive(data)

    line = courier(clock, a=other_site)
    line.exchange({"a": HELLO})
    assert line.lost == {"a": f"this site speaks version 9 of the protocol, the aggregator {VERSION}"}


def test_words_of_a_site_are_short_and_harmless(clock, caplog):
    words = "\x1b]0;x\x07\n\u202e" + "z" * 900
    line = courier(clock, a=lambda name, data: refusal(name, read(data).hash, words))
    line.exchange({"a": HELLO})
    assert line.lost["a"].isprintable()
    assert len(line.lost["a"]) <= 203
    assert all(record.getMessage().isprintable() for record in caplog.records)


# Forgeries

FORGERIES = {
    "nothing": lambda name, hash_: b"",
    "not signed": lambda name, hash_: bytes(64) + said(name, hash_)[64:],
    "signed by another site": lambda name, hash_: said(name, hash_, key="b"),
    "signed for another question": lambda name, hash_: answer(name, b"other"),
    "cut short": lambda name, hash_: said(name, hash_)[:-1],
    "longer": lambda name, hash_: said(name, hash_) + b"\0",
    "a refusal of nobody": lambda name, hash_: refusal(name, b"1" * 32, "it takes no part"),
    "busy for ever, by nobody": lambda name, hash_: busy(name, b"1" * 32),
}


@pytest.mark.parametrize("how", FORGERIES)
@pytest.mark.parametrize("question", [HELLO, ASK], ids=["hello", "ask"])
def test_a_forged_reply_is_as_good_as_none_and_the_honest_site_stays(clock, caplog, how, question):
    """It is asked again, and the coordinator reads once that something is wrong."""
    honest, forged = Worker(clock), [0]

    def road(name, data):
        if forged[0] < 3:
            forged[0] += 1
            return FORGERIES[how](name, read(data).hash)
        return honest(name, data)

    line = courier(clock, a=road)
    with caplog.at_level(logging.WARNING):
        assert line.exchange({"a": question}) == answers("a", question)
    assert not line.lost
    assert honest.sent == [question]
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["what came in the name of site a is not signed by its key; it is asked again"]


def test_a_forger_who_never_ends_costs_the_site_and_the_reason_is_told(clock):
    line = courier(clock, a=lambda *_: bytes(100), b=Worker(clock))
    began = clock.now
    assert line.exchange(dict.fromkeys("ab", ASK)) == answers("b", ASK)
    assert line.lost == {"a": "what came in the name of site a is not signed by its key"}
    assert PATIENCE.silence <= clock.now - began <= PATIENCE.silence + ROUND


def test_what_a_site_signed_and_nobody_can_read_is_not_taken_for_an_answer(clock):
    line = courier(clock, a=lambda name, data: said(name, read(data).hash, b"\xc1nonsense"))
    assert line.exchange({"a": ASK}) == {}
    assert "cannot be read" in line.lost["a"]


# A carrier that is lost


def test_a_carrier_that_is_lost_is_no_sites_fault(clock):
    """However long it takes until another carries: the question is put again, and nobody is given up."""
    site, lost = Worker(clock, takes=30.0), [0]
    network = Network(clock, {"a": site})

    def send(posts, seconds):
        if len(site.parcels) == 3 and lost[0] < 20:
            lost[0] += 1
            clock.sleep(10 * PATIENCE.silence)
            raise CarrierLostError("the carrier was lost")
        return network(posts, seconds)

    line = Courier(CONTRACT, send)
    assert line.exchange({"a": ASK}) == answers("a", ASK)
    assert (lost, line.lost) == ([20], {})
    # Through another job the question itself travels again; the hash says that it is the same.
    assert [one.data is not None for one in site.parcels[:4]] == [True, False, False, True]
    assert len({one.hash for one in site.parcels}) == 1


def test_the_control_for_a_carrier_that_is_lost(clock):
    """As long a silence with a carrier is a site's own."""
    line = courier(clock, a=Worker(clock, takes=30.0, gone=(6.0, 10 * PATIENCE.silence)))
    assert line.exchange({"a": ASK}) == {}
    assert line.lost == {"a": "no reply"}


def test_a_carrier_that_cannot_be_had_ends_the_exchange(clock):
    def send(posts, seconds):
        raise ProtocolError("the job died 21 times in a row")

    with pytest.raises(ProtocolError, match="21 times"):
        Courier(CONTRACT, send).exchange({"a": ASK})


# Sizes


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(clock):
    site = Worker(clock)
    line = courier(clock, a=site)
    with pytest.raises(ProtocolError, match="a message has 50,331,649 bytes; at most 50,331,648 are allowed"):
        line.exchange({"a": bytes(MAX_MESSAGE + 1)})
    assert not site.parcels
    assert line.exchange({"a": bytes(MAX_MESSAGE)}).keys() == {"a"}


def test_an_answer_that_is_too_large_is_refused(clock):
    line = courier(clock, a=lambda *_: bytes(MAX_MESSAGE + 1))
    assert not line.exchange({"a": ASK})
    assert line.lost["a"] == "an answer has 50,331,649 bytes; at most 50,331,648 are allowed"


contents = st.one_of(
    st.binary(max_size=40),
    st.builds(status, st.sampled_from("abc")),
    st.builds(lambda name, words: Refusal(VERSION, HASH, name, words), st.just("a"), st.text(max_size=300)),
    st.sampled_from([Busy(VERSION, HASH, "a"), Unknown(VERSION, HASH, "a"), Busy(9, HASH, "a")]),
    st.recursive(st.none() | st.binary() | st.text() | st.integers(-9, 9), st.lists).map(
        msgspec.msgpack.encode
    ),
    st.integers(1, 3000).map(lambda depth: b"\x91" * depth),
)
replies = st.one_of(
    st.none(),
    st.binary(max_size=200),
    st.builds(
        lambda content, own: lambda hash_: said("a", hash_ if own else HASH, content), contents, st.booleans()
    ),
)


@given(st.lists(replies, max_size=30), st.sampled_from([HELLO, BEGIN, ASK, b"", b"\x00"]))
def test_nothing_that_a_site_sends_breaks_the_aggregator(given_replies, question):
    """Whatever comes back, an exchange ends, and the site has answered or is given up for a reason."""

    def road(name, data):
        reply = given_replies.pop(0) if given_replies else None
        return reply(read(data).hash) if callable(reply) else reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_module, "time", clock := Clock())
        line = courier(clock, a=road)
        came = line.exchange({"a": question})
    refused = question == HELLO and came and line.lost
    assert refused or (came.keys(), line.lost.keys()) in (({"a"}, set()), (set(), {"a"}))
    for data in came.values():
        assert not isinstance(read_reply(data, CONTRACT, "a", question_hash(question)), Busy | Unknown)
    assert all(reason.isprintable() for reason in line.lost.values())


# Before a run, and after it


def test_gathering_waits_for_all_sites(clock):
    late = Worker(clock, gone=(0.0, 50.0))
    line = courier(clock, a=Worker(clock), late=late)
    line.gather(["a", "late"])
    assert not line.lost
    assert late.sent == []


def test_gathering_ends_with_the_patience_for_it(clock):
    line = courier(clock, a=Worker(clock), never=Worker(clock, gone=(0.0, 1e9)))
    began = clock.now
    line.gather(["a", "never"])
    assert line.lost == {"never": "did not join"}
    assert PATIENCE.joining <= clock.now - began <= PATIENCE.joining + ROUND


def test_gathering_waits_only_for_connected_sites_and_lets_others_join(clock):
    sites = {"a": Worker(clock, gone=(0.0, 50.0)), "late": Worker(clock)}
    line = courier(clock, **sites, never=Worker(clock, gone=(0.0, 1e9)))
    began = clock.now
    line.gather([*sites, "never"], ["a"])
    assert clock.now - began <= 50.0 + 2 * ROUND
    assert line.lost == {"never": "did not join"}


def test_nobody_joins_in_the_name_of_a_site(clock):
    """Nor by what the site said at another time: each time something else is asked for."""
    kept = []

    def replayed(name, data):
        kept.append(unknown(name, read(data).hash))
        return kept[0] if len(kept) > 1 else None

    forged = lambda name, data: said(name, read(data).hash, key="a")  # noqa: E731
    line = courier(clock, a=Worker(clock), b=forged, c=replayed)
    line.gather("abc")
    assert line.lost == dict.fromkeys("bc", "did not join")


def test_gathering_goes_on_when_the_carrier_is_lost(clock):
    site, tries = Worker(clock), []

    def send(posts, seconds):
        clock.sleep(1.0)
        tries.append(posts)
        if len(tries) < 5:
            raise CarrierLostError("the carrier was lost")
        return Network(clock, {"a": site})(posts, seconds)

    line = Courier(CONTRACT, send)
    line.gather("a")
    assert not line.lost


def test_what_is_told_reaches_all_and_waits_for_none(clock):
    heard = []
    line = courier(clock, a=lambda name, data: heard.append((name, data)), b=lambda *_: b"junk")
    line.tell("ab", b"notice")
    assert heard == [("a", b"notice")]

    def fail(posts, seconds):
        raise CarrierLostError("the carrier was lost")

    Courier(CONTRACT, fail).tell("ab", b"notice")


# A site's end


@pytest.fixture
def gate():
    """A desk whose party waits until it may go on, and counts."""
    opened = threading.Event()

    def work(question):
        assert opened.wait(60)

    party = Signer(work=work)
    desk = Desk(party, hold=0.01)
    yield desk, opened, party
    opened.set()
    desk.close()


def until_done(desk, question, **options):
    while isinstance(reply := answered(desk, question, **options), Busy):
        pass
    return reply


def kinds(*replies):
    return [type(reply) for reply in replies]


def test_a_desk_is_busy_until_it_is_done_and_has_worked_once(gate):
    desk, opened, party = gate
    said_first = [answered(desk, b"one") for _ in range(3)] + [answered(desk, b"one", asked=False)]
    assert kinds(*said_first) == [Busy] * 4
    opened.set()
    assert until_done(desk, b"one", asked=False) == status("a")
    assert desk.receive(parcel(b"one")) == desk.receive(parcel(b"one", asked=False)) == answer("a", b"one")
    assert party.ran == {b"one": 1}


def test_what_was_never_asked_is_unknown():
    assert kinds(answered(Desk(Signer()), b"one", asked=False)) == [Unknown]


def test_a_question_that_is_not_what_its_parcel_names_is_refused():
    """Otherwise the answer to one could be had in the name of another."""
    party = Signer()
    reply = answered(Desk(party), b"one", hash_=question_hash(b"two"))
    assert reply.reason == "the question does not match the hash in its parcel"
    assert not party.ran


def test_a_desk_keeps_few_answers():
    desk, questions = Desk(Signer()), [bytes([n]) * 8 for n in range(10)]
    for question in questions:
        until_done(desk, question)
    given_back = [answered(desk, question, asked=False) for question in questions]
    kept = desk_module._KEPT
    assert kinds(*given_back) == [Unknown] * (10 - kept) + [Status] * kept


def test_a_flood_of_questions_is_refused_until_there_is_room(gate):
    desk, opened, party = gate
    kept = desk_module._KEPT
    replies = [answered(desk, bytes([n])) for n in range(20)]
    assert kinds(*replies) == [Busy] * kept + [Refusal] * (20 - kept)
    assert replies[-1].reason == "4 questions are in progress; no more are accepted"
    assert len(party.ran) <= desk_module._WORKERS
    opened.set()
    for n in range(kept):
        assert kinds(until_done(desk, bytes([n]), asked=False)) == [Status]
    assert kinds(until_done(desk, b"later")) == [Status]
    assert sum(party.ran.values()) == kept + 1


def test_a_question_under_way_is_not_forgotten_for_newer_ones():
    """The answer to a release takes long; blocks of masks are made meanwhile."""
    opened = threading.Event()
    party = Signer(work=lambda question: (question == b"slow" and not opened.wait(60)) or None)
    desk = Desk(party, hold=0.01)
    assert kinds(answered(desk, b"slow")) == [Busy]
    for n in range(50):
        assert kinds(until_done(desk, bytes([n]))) == [Status]
    opened.set()
    assert kinds(until_done(desk, b"slow", asked=False)) == [Status]
    assert party.ran[b"slow"] == 1
    desk.close()


def test_a_question_that_was_refused_is_worked_on_again_when_it_is_put_again():
    """What kept the site from answering may be over; any other answer is made once."""
    reasons = ["not yet", "not yet"]

    def work(question):
        return Refusal(VERSION, HASH, "a", reasons.pop()) if reasons else None

    party = Signer(work=work)
    desk = Desk(party)
    assert kinds(*(until_done(desk, b"one") for _ in range(4))) == [Refusal, Refusal, Status, Status]
    assert party.ran == {b"one": 3}
    desk.close()


def test_a_desk_hands_out_no_answer_once_it_is_revoked():
    """Neither one that it kept, asked for by its question or by its hash, nor a new one."""
    party = Signer()
    desk = Desk(party)
    assert kinds(answered(desk, b"one"), answered(desk, b"one", asked=False)) == [Status, Status]
    party.standing = False
    for question, asked in ((b"one", True), (b"one", False), (b"two", True)):
        assert answered(desk, question, asked=asked).reason == "it no longer answers"
    desk.close()


def test_a_closed_desk_refuses(gate):
    """Also what waited for its turn; what was being worked on ends by itself."""
    desk, opened, party = gate
    questions = [bytes([n]) * 8 for n in range(desk_module._KEPT)]
    for question in questions:
        assert kinds(answered(desk, question)) == [Busy]
    while len(party.ran) < desk_module._WORKERS:
        time.sleep(0.001)
    desk.close()
    assert answered(desk, b"new").reason == "its part in this run has ended"
    opened.set()
    replies = [until_done(desk, question, asked=False) for question in questions]
    left = desk_module._KEPT - desk_module._WORKERS
    assert kinds(*replies) == [Status] * desk_module._WORKERS + [Refusal] * left
    assert len(party.ran) == desk_module._WORKERS


def test_a_notice_is_passed_on_and_has_no_reply():
    party, notice = Signer(), Notice(VERSION, HASH, "over", "today", bytes(64))
    assert Desk(party).receive(write_notice(notice)) == b""
    assert party.notices == [notice]


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.binary() | st.text() | st.integers(-9, 9), st.lists).map(
            msgspec.msgpack.encode
        ),
        st.builds(
            lambda data, version, hash_, asked: parcel(data, version, hash_, asked),
            st.binary(),
            st.integers(-9, 9),
            st.none() | st.binary(max_size=40),
            st.booleans(),
        ),
        st.integers(1, 3000).map(lambda depth: b"\x91" * depth),
    )
)
def test_no_parcel_breaks_a_desk(data):
    desk = Desk(Signer())
    try:
        reply = desk.receive(data)
        if reply:
            assert kinds(read_reply(reply, CONTRACT, "a", read(data).hash))[0] in (Status, Unknown, Refusal)
    finally:
        desk.close()


# Both ends

FAULTS = [
    "none",
    "lost on the way there",
    "lost on the way back",
    "repeated",
    "cut short",
    "changed",
    "emptied",
]


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(FAULTS), max_size=4), min_size=3, max_size=3))
def test_a_network_that_fails_for_a_while_costs_time_and_nothing_else(faults):
    """Every question is answered, and was worked on once."""
    parties = {name: Signer(name) for name in "abc"}
    desks = {name: Desk(party) for name, party in parties.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_module, "time", clock := Clock())
        roads = {name: Faulty(desks[name], own) for name, own in zip("abc", faults, strict=True)}
        line = courier(clock, **roads)
        for question in (HELLO, BEGIN, SUM, ASK):
            assert line.exchange(dict.fromkeys("abc", question)) == answers("abc", question)
    for name, party in parties.items():
        assert party.ran == dict.fromkeys((HELLO, BEGIN, SUM, ASK), 1)
        desks[name].close()


def test_two_threads_ask_at_once():
    """A release is asked for while a block of masks is made; nobody gets the other's answer."""
    parties = {name: Signer(name) for name in "abcd"}
    desks = {name: Desk(party) for name, party in parties.items()}
    line = Courier(CONTRACT, lambda posts, _: {name: desks[name].receive(p) for name, p in posts.items()})

    def ask(thread):
        for n in range(50):
            question = ASK + bytes([thread, n])
            assert line.exchange(dict.fromkeys("abcd", question)) == answers("abcd", question)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, range(2)))
    for name, party in parties.items():
        assert set(party.ran.values()) == {1}
        desks[name].close()


def test_a_release_is_told_from_other_messages_by_its_bytes():
    """How long to wait depends on it, so a change of the format of messages must not go unnoticed."""
    seconds = [PATIENCE.of(question) for question in (HELLO, BEGIN, SUM, ASK)]
    assert seconds == [PATIENCE.greeting, PATIENCE.masks, PATIENCE.masks, PATIENCE.release]
    assert read(write_parcel(ASK)) == Parcel(VERSION, question_hash(ASK), ASK)
    assert read(write_parcel(ASK, question_hash(ASK))) == Parcel(VERSION, question_hash(ASK), None)


def test_a_desk_knows_a_refusal_by_its_bytes():
    """It is worked on again, so a change of the format of replies must not go unnoticed."""
    counts = Counter()
    for reply in (Refusal(VERSION, HASH, "a", "no"), None):
        party = Signer(work=lambda question, reply=reply: reply)
        desk = Desk(party)
        until_done(desk, b"one")
        until_done(desk, b"one")
        counts[reply is None] = party.ran[b"one"]
        desk.close()
    assert counts == {False: 2, True: 1}
