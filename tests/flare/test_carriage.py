"""Questions and answers between the aggregator and sites, without FLARE."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.coordinator.flare import courier as courier_module
from capedjica.coordinator.flare.courier import Courier, Patience
from capedjica.errors import ProtocolError
from capedjica.flare import parcels
from capedjica.flare.parcels import VERSION, Parcel, Slip
from capedjica.flare.size_limits import MAX_MESSAGE
from capedjica.site.flare import desk as desk_module
from capedjica.site.flare.desk import Desk, Revocable
from tests.flare.carriers import ASK, BEGIN, HELLO, SUM, Clock, Faulty, Network, Worker, read, slip

PATIENCE = Patience()
# The longest that one round can take beyond what it was to wait for.
ROUND = parcels.HOLD_SECONDS + parcels.TRANSIT_SECONDS + 1.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(courier_module, "time", Clock())
    return courier_module.time


def courier(clock, **sites):
    return Courier(Network(clock, sites))


def parcel(data, number=b"12345678", version=VERSION):
    return msgspec.msgpack.encode(Parcel(version, number, data))


def answered(desk, *given, **options):
    return msgspec.msgpack.decode(desk.receive(parcel(*given, **options)), type=Slip)


# The aggregator's end


def test_a_site_may_compute_for_long_and_is_sent_the_question_once(clock):
    site = Worker(clock, takes=0.9 * PATIENCE.release)
    assert courier(clock, a=site).exchange({"a": ASK}) == {"a": b"answer"}
    assert site.sent == [ASK]
    assert len(site.parcels) > 1000


@pytest.mark.parametrize("alive", [0.0, 1000.0])
def test_a_dead_site_is_given_up_after_the_silence_and_not_before(clock, alive):
    """At once, or while it computes; the answer of the other is there all the same."""
    line = courier(clock, dead=Worker(clock, takes=5000, gone=(alive, 1e9)), well=Worker(clock))
    began = clock.now
    assert line.exchange({"dead": ASK, "well": ASK}) == {"well": b"answer"}
    took = clock.now - began - alive
    assert PATIENCE.silence <= took <= PATIENCE.silence + 2 * ROUND
    assert line.lost == {"dead": "nothing was heard from it"}


@pytest.mark.parametrize("takes", [0.0, 300.0])
def test_a_site_that_is_cut_off_for_less_than_the_silence_is_not_given_up(clock, takes):
    site = Worker(clock, takes, gone=(0.0 if takes == 0 else 20.0, 40.0))
    line = courier(clock, a=site)
    assert line.exchange({"a": ASK}) == {"a": b"answer"}
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
    assert line.lost == {"a": "it took too long"}


def test_a_site_given_up_costs_the_others_nothing_until_it_is_greeted_again(clock):
    """A greeting asks whether it is back, but not more often than once in the time of the silence."""
    back = Worker(clock, gone=(0.0, 300.0))
    line = courier(clock, a=back, b=Worker(clock))
    line.exchange({"a": ASK, "b": ASK})
    tried, given_up = len(back.parcels), clock.now
    for question in (ASK, HELLO, BEGIN):
        assert line.exchange({"a": question, "b": question}) == {"b": b"answer"}
    assert len(back.parcels) == tried
    assert clock.now - given_up < 1.0
    clock.sleep(PATIENCE.silence)
    assert line.exchange({"a": HELLO, "b": HELLO}) == {"b": b"answer"}
    assert len(back.parcels) == tried + 1
    clock.sleep(300.0)
    assert line.exchange({"a": HELLO, "b": HELLO}) == {"a": b"answer", "b": b"answer"}
    assert not line.lost
    assert line.exchange({"a": ASK}) == {"a": b"answer"}


def test_the_same_question_is_one_parcel_and_another_exchange_has_another_number(clock):
    """FLARE sends equal bytes at once; a number that came twice would get an earlier answer."""
    sites = {name: Worker(clock) for name in "abc"}
    line = courier(clock, **sites)
    for _ in range(100):
        line.exchange(dict.fromkeys(sites, ASK))
    assert sites["a"].parcels == sites["b"].parcels == sites["c"].parcels
    assert len({given.number for given in sites["a"].parcels}) == 100


def test_different_questions_reach_their_sites(clock):
    sites = {"a": Worker(clock), "b": Worker(clock)}
    courier(clock, **sites).exchange({"a": BEGIN, "b": SUM})
    assert (sites["a"].sent, sites["b"].sent) == ([BEGIN], [SUM])


def test_an_aggregator_meets_a_site_of_another_version(clock):
    """It is told in words; an answer would not be believed even if it came."""
    line = courier(clock, a=lambda _: slip("done", b"answer", version="9.8.7"))
    assert line.exchange({"a": ASK}) == {}
    assert line.lost == {"a": f"it runs capedjica 9.8.7, the aggregator {VERSION}"}


def test_a_site_meets_an_aggregator_of_another_version():
    given = answered(Desk(lambda data: data), ASK, version="9.8.7\x1b[2J")
    assert given.state == "refused"
    assert given.data.decode() == f"this site runs capedjica {VERSION}, the aggregator 9.8.7 [2J"


def test_the_refusal_of_a_site_of_another_version_names_both_to_the_coordinator(clock, monkeypatch):
    """The way it happens: the site's own program refuses, and the aggregator's shows what it said."""

    def other_site(data):
        with monkeypatch.context() as patch:
            for module in (parcels, desk_module):
                patch.setattr(module, "VERSION", "9.8.7")
            return Desk(lambda data: data).receive(data)

    line = courier(clock, a=other_site)
    assert line.exchange({"a": HELLO}) == {}
    assert line.lost == {"a": f"this site runs capedjica 9.8.7, the aggregator {VERSION}"}


def test_words_of_a_site_are_short_and_harmless(clock, caplog):
    line = courier(clock, a=lambda _: slip("refused", b"\x1b]0;x\x07\n\xff" + b"z" * 5000))
    line.exchange({"a": ASK})
    assert line.lost["a"].isprintable()
    assert len(line.lost["a"]) <= 200
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(clock):
    site = Worker(clock)
    line = courier(clock, a=site)
    with pytest.raises(ProtocolError, match="50,331,649 bytes is larger than 50,331,648"):
        line.exchange({"a": bytes(MAX_MESSAGE + 1)})
    assert not site.parcels
    assert line.exchange({"a": bytes(MAX_MESSAGE)}) == {"a": b"answer"}


def test_an_answer_that_is_too_large_is_refused(clock):
    line = courier(clock, a=lambda _: slip("done", bytes(MAX_MESSAGE + 1)))
    assert not line.exchange({"a": ASK})
    assert line.lost["a"] == "an answer of 50,331,649 bytes is larger than 50,331,648"


slips = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(slip, st.sampled_from(["done", "busy", "unknown", "refused"]), st.binary(max_size=300)),
    st.builds(slip, st.sampled_from(["done", "busy", "refused"]), st.binary(), st.text(max_size=64)),
    st.recursive(st.none() | st.binary() | st.text() | st.integers(-9, 9), st.lists).map(
        msgspec.msgpack.encode
    ),
    st.integers(1, 3000).map(lambda depth: b"\x91" * depth),
)


@given(st.lists(slips, max_size=30), st.sampled_from([HELLO, BEGIN, ASK, b"", b"\x00"]))
def test_nothing_that_a_site_sends_breaks_the_aggregator(replies, question):
    """Whatever comes back, an exchange ends, and the site has answered or is given up for a reason."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_module, "time", clock := Clock())
        line = courier(clock, a=lambda _: replies.pop(0) if replies else None)
        answers = line.exchange({"a": question})
    assert (answers.keys(), line.lost.keys()) in (({"a"}, set()), (set(), {"a"}))
    assert all(reason.isprintable() for reason in line.lost.values())


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


def test_gathering_ends_when_the_job_is_ended(clock):
    line = courier(clock, never=Worker(clock, gone=(0.0, 1e9)))
    began = clock.now
    line.gather(["never"], ended=lambda: clock.now > began + 20)
    assert clock.now - began < 20 + ROUND


# A site's end


@pytest.fixture
def gate():
    """A desk whose handler waits until it may go on, and counts."""
    opened, ran = threading.Event(), Counter()

    def handle(data):
        ran[data] += 1
        assert opened.wait(60)
        return data.upper()

    desk = Desk(handle, hold=0.01)
    yield desk, opened, ran
    opened.set()
    desk.close()


def until_done(desk, *given, **options):
    while (said := answered(desk, *given, **options)).state == "busy":
        pass
    return said


def test_a_desk_is_busy_until_it_is_done_and_has_worked_once(gate):
    desk, opened, ran = gate
    assert [answered(desk, b"one").state for _ in range(3)] == ["busy"] * 3
    assert answered(desk, None).state == "busy"
    opened.set()
    assert until_done(desk, None).data == b"ONE"
    assert [answered(desk, data).data for data in (b"one", None, b"two")] == [b"ONE"] * 3
    assert ran == {b"one": 1}


def test_what_was_never_asked_is_unknown():
    assert answered(Desk(lambda data: data), None).state == "unknown"


def test_a_desk_keeps_few_answers():
    desk, numbers = Desk(lambda data: data), [bytes([n]) * 8 for n in range(10)]
    for number in numbers:
        answered(desk, number, number)
    states = [answered(desk, None, number).state for number in numbers]
    assert states == ["unknown"] * (10 - desk_module._KEPT) + ["done"] * desk_module._KEPT


def test_a_flood_of_questions_is_refused_until_there_is_room(gate):
    desk, opened, ran = gate
    said = [answered(desk, bytes([n]), bytes([n]) * 8) for n in range(20)]
    assert [one.state for one in said] == ["busy"] * desk_module._KEPT + ["refused"] * (
        20 - desk_module._KEPT
    )
    assert said[-1].data == b"4 questions are being worked on: no more at once"
    assert len(ran) <= desk_module._WORKERS
    opened.set()
    for n in range(desk_module._KEPT):
        assert until_done(desk, None, bytes([n]) * 8).state == "done"
    assert until_done(desk, b"later", b"7" * 8).data == b"LATER"
    assert sum(ran.values()) == desk_module._KEPT + 1


def test_a_question_under_way_is_not_forgotten_for_newer_ones(gate):
    """The answer to a release takes long; blocks of masks are made meanwhile."""
    desk, opened, _ = gate
    quick = Desk(lambda data: data if data != b"slow" else desk._handle(data), hold=0.01)
    assert answered(quick, b"slow").state == "busy"
    for n in range(50):
        assert until_done(quick, b"fast", bytes([n]) * 8).state == "done"
    opened.set()
    assert until_done(quick, None).data == b"SLOW"


def test_a_site_that_does_not_take_part_says_why():
    desk = Desk(None, refusal="it does not take part")
    assert answered(desk, ASK) == Slip(VERSION, "refused", b"it does not take part")
    assert answered(desk, None).state == "unknown"


def test_a_desk_hands_out_no_answer_once_it_is_revoked():
    """Neither one that it kept, asked for by its question or by its number, nor a new one."""
    standing = [True]
    desk = Desk(Revocable(lambda data: data.upper(), lambda: standing[0]))
    assert answered(desk, b"one").data == b"ONE"
    assert answered(desk, None).data == b"ONE"
    standing[0] = False
    for number, data in ((b"12345678", b"one"), (b"12345678", None), (b"another-", b"two")):
        assert answered(desk, data, number) == Slip(VERSION, "refused", b"it gives no answers any more")
    desk.close()


def test_a_closed_desk_refuses(gate):
    """Also what waited for its turn; what was being worked on ends by itself."""
    desk, opened, ran = gate
    numbers = [bytes([n]) * 8 for n in range(desk_module._KEPT)]
    for number in numbers:
        assert answered(desk, number, number).state == "busy"
    while len(ran) < desk_module._WORKERS:
        time.sleep(0.001)
    desk.close()
    assert answered(desk, b"new", b"new-----").state == "refused"
    opened.set()
    states = [until_done(desk, None, number).state for number in numbers]
    assert states == ["done"] * desk_module._WORKERS + ["refused"] * (
        desk_module._KEPT - desk_module._WORKERS
    )
    assert len(ran) == desk_module._WORKERS


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.binary() | st.text() | st.integers(-9, 9), st.lists).map(
            msgspec.msgpack.encode
        ),
        st.builds(parcel, st.none() | st.binary(), st.binary(max_size=12), st.text(max_size=70)),
        st.integers(1, 3000).map(lambda depth: b"\x91" * depth),
    )
)
def test_no_parcel_breaks_a_desk(data):
    desk = Desk(lambda data: data)
    try:
        assert msgspec.msgpack.decode(desk.receive(data), type=Slip).state in ("done", "unknown", "refused")
    finally:
        desk.close()


# Both ends


class Counted:
    """Handlers of a desk, which note every question that they were given."""

    def __init__(self):
        self.ran = Counter()
        self.desk = Desk(self.handle)

    def handle(self, data):
        self.ran[data] += 1
        return data[::-1]


FAULTS = ["none", "lost on the way there", "lost on the way back", "repeated", "cut short"]


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(FAULTS), max_size=4), min_size=3, max_size=3))
def test_a_network_that_fails_for_a_while_costs_time_and_nothing_else(faults):
    """Every question is answered, and was worked on once."""
    sites = {name: Counted() for name in "abc"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier_module, "time", clock := Clock())
        roads = {
            name: Faulty(site.desk, own) for (name, site), own in zip(sites.items(), faults, strict=True)
        }
        line = Courier(Network(clock, roads))
        for question in (HELLO, BEGIN, SUM, ASK):
            assert line.exchange(dict.fromkeys(sites, question)) == dict.fromkeys(sites, question[::-1])
    for site in sites.values():
        assert site.ran == dict.fromkeys((HELLO, BEGIN, SUM, ASK), 1)
        site.desk.close()


def test_two_threads_ask_at_once():
    """A release is asked for while a block of masks is made; nobody gets the other's answer."""
    sites = {name: Counted() for name in "abcd"}
    line = Courier(lambda parcels, _: {name: sites[name].desk.receive(p) for name, p in parcels.items()})

    def ask(thread):
        for n in range(200):
            question = ASK + bytes([thread, n])
            assert line.exchange(dict.fromkeys(sites, question)) == dict.fromkeys(sites, question[::-1])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, range(2)))
    for site in sites.values():
        assert set(site.ran.values()) == {1}
        site.desk.close()


def test_a_release_is_told_from_other_messages_by_its_bytes(clock):
    """How long to wait depends on it, so a change of the format of messages must not go unnoticed."""
    seconds = [PATIENCE.of(question) for question in (HELLO, BEGIN, SUM, ASK)]
    assert seconds == [PATIENCE.greeting, PATIENCE.masks, PATIENCE.masks, PATIENCE.release]
    assert read(parcel(ASK)).data == ASK
