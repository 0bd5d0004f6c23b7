"""The two relays: how bytes are handed to FLARE, which has its own ways of failing."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import msgspec
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from capedjica.coordinator.flare import relay as aggregator_relay
from capedjica.coordinator.flare.carrier_messages import Post, read_replies
from capedjica.coordinator.flare.relay import AggregatorRelay
from capedjica.flare import link
from capedjica.flare.link import Caller, LinkError, Listener, answer_calls, owners
from capedjica.flare.wire import ANSWERS, MAX_FRAME, PARCEL, SETTINGS, TICKET, TOPIC
from capedjica.site.flare import relay as site_relay
from capedjica.site.flare.relay import SiteRelay
from tests.support.waiting import wait_for

# The least bytes of a message that FLARE would carry as a stream, and more.
LARGE = 3 << 20


class Engine:
    """FLARE's engine as it behaves: with a timeout of 0 nothing is replied, and what is wrong is silent.

    ``sites`` are what sites answer to a request; None is one that says nothing.
    """

    def __init__(self, settings, **sites):
        self.settings, self.sites = settings, sites
        self.sent, self.handlers = [], {}

    # What both relays use.

    def get_workspace(self):
        return SimpleNamespace(get_site_config_dir=lambda: str(self.settings))

    # What a site's relay uses.

    def register_aux_message_handler(self, topic, handler):
        self.handlers[topic] = handler

    def answered(self, answer):
        """Receive what a site sent."""
        return self.handlers[ANSWERS](ANSWERS, answer, context(self))

    # What the aggregator's relay uses.

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in self.sites]

    def new_context(self):
        return nullcontext()

    def get_client_from_name(self, name):
        return SimpleNamespace(name=name) if name in self.sites else None

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
        assert optional
        if topic == ANSWERS:
            self.sent.append(request)
            assert (targets, timeout) == (None, 0.0)
        elif timeout:
            return {name: self._replied(name, request) for name in targets}
        else:
            self.sent += targets
            for name in targets:
                answer = self.sites[name](request)
                if answer is not None:
                    self.answered(answer)
        return {}

    def _replied(self, name, request):
        """Return the reply to a request: what a site would have sent, or that it is there."""
        reply = make_reply(ReturnCode.OK)
        if PARCEL in request:
            assert TICKET not in request
            self.sent.append(f"{name}, as a request")
            reply[PARCEL] = request[PARCEL][::-1]
        return reply


def context(engine):
    return SimpleNamespace(get_engine=lambda: engine)


@pytest.fixture
def settings(tmp_path):
    """The folder of a carrier's settings, which point to a socket."""
    (tmp_path / SETTINGS).write_text(json.dumps({"socket": str(tmp_path / "a.carrier")}))
    return tmp_path


# A site's relay


class Agent:
    """An agent that answers with what it was asked, turned around; one carrier at a time."""

    def __init__(self, folder):
        self.greetings, self.refused = [], []
        self._busy, self._channels = threading.Lock(), []
        self.listener = Listener(
            folder / "a.carrier", MAX_FRAME, owners(), self._admit, self._serve, self.refused.append
        )

    def _admit(self, greeting):
        return "" if self._busy.acquire(blocking=False) else "one at a time"

    def _serve(self, channel, greeting):
        self.greetings.append(greeting)
        self._channels.append(channel)
        try:
            with suppress(LinkError):  # hung up by the test
                answer_calls(channel, lambda data: data[::-1])
        finally:
            self._busy.release()

    def close(self):
        self.listener.close()
        for channel in self._channels:
            channel.close()


@pytest.fixture
def agent(settings):
    made = Agent(settings)
    yield made
    made.close()


@pytest.fixture
def begun(settings):
    """Begin a relay as FLARE does; ended when the test is."""
    relays = []

    def begin(seed=None):
        relay, engine = SiteRelay(seed), Engine(settings)
        relay.handle_event(EventType.START_RUN, context(engine))
        relays.append((relay, engine))
        return engine

    yield begin
    for relay, engine in relays:
        relay.handle_event(EventType.END_RUN, context(engine))


def asked(engine, data, ticket=b"ticket"):
    """Return what a site sends for what it received; None for nothing."""
    request, before = Shareable(), len(engine.sent)
    if data is not ...:
        request[PARCEL] = data
    if ticket is not ...:
        request[TICKET] = ticket
    assert engine.handlers[TOPIC](TOPIC, request, context(engine)).get_return_code() == ReturnCode.OK
    sent = engine.sent[before:]
    assert len(sent) <= 1
    return sent[0] if sent else None


def test_a_relay_hands_bytes_to_the_agent_and_back(agent, begun):
    engine = begun(seed=7)
    for data in (b"x1", bytes(range(256))):
        answer = asked(engine, data)
        assert (answer[TICKET], answer[PARCEL]) == (b"ticket", data[::-1])
    # Of a large answer only that there is one; it is the reply to a request.
    assert asked(engine, b"12" * LARGE)[PARCEL] is None
    request = Shareable()
    request[PARCEL] = b"12" * LARGE
    assert engine.handlers[TOPIC](TOPIC, request, context(engine))[PARCEL] == b"21" * LARGE
    (greeting,) = agent.greetings
    assert (greeting.role, greeting.token, greeting.seed) == ("carrier", b"", 7)


@pytest.mark.parametrize("data", [..., None, "text", 3, [b"x"], {}, bytearray(b"x")])
def test_a_message_without_a_parcel_or_a_ticket_gets_no_answer(agent, begun, data):
    engine = begun()
    assert asked(engine, data) is None
    if not isinstance(data, bytes):
        assert asked(engine, b"x", data) is None


def test_an_agent_that_is_gone_is_no_answer_and_one_that_is_back_is_found(settings, begun, monkeypatch):
    """Nothing gets out of a handler: it would fail the job for everybody."""
    agent = Agent(settings)
    engine = begun()
    assert asked(engine, b"x1")[PARCEL] == b"1x"
    monkeypatch.setattr(link, "_PATIENCE", 0.0)
    agent.close()
    for _ in range(3):
        assert asked(engine, b"x2")[PARCEL] == b""
    agent = Agent(settings)
    try:
        assert asked(engine, b"x3")[PARCEL] == b"3x"
    finally:
        agent.close()


def test_a_relay_without_an_agent_fails_nothing(settings, begun, monkeypatch, caplog):
    monkeypatch.setattr(link, "_PATIENCE", 0.0)
    assert asked(begun(), b"x")[PARCEL] == b""
    assert "cannot connect to the agent: no process answers at" in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"socket": 3}', None])
def test_settings_that_cannot_be_read_fail_nothing(settings, begun, monkeypatch, content):
    monkeypatch.setattr(link, "_PATIENCE", 0.0)
    file = settings / SETTINGS
    file.unlink() if content is None else file.write_bytes(content)
    assert asked(begun(), b"x")[PARCEL] == b""


def test_a_relay_waits_until_that_of_an_earlier_job_is_gone(agent, settings):
    first, second = SiteRelay(), SiteRelay()
    engines = [Engine(settings), Engine(settings)]
    first.handle_event(EventType.START_RUN, context(engines[0]))
    with ThreadPoolExecutor(1) as other:
        begins = other.submit(second.handle_event, EventType.START_RUN, context(engines[1]))
        wait_for(lambda: agent.refused)
        assert not begins.done()
        first.handle_event(EventType.END_RUN, context(engines[0]))
        begins.result(60)
    assert asked(engines[1], b"x1")[PARCEL] == b"1x"
    second.handle_event(EventType.END_RUN, context(engines[1]))
    assert all("one at a time" in line for line in agent.refused)


@pytest.fixture
def watching(settings, agent, monkeypatch):
    """Begin a relay that looks often after a server, which replies as told; return why it ends its job."""
    monkeypatch.setattr(site_relay, "_LOOK", 0.01)
    monkeypatch.setattr(site_relay, "_GONE", 0.3)
    relays = []

    def begin(replies):
        relay, engine, ends = SiteRelay(), Engine(settings), []
        relay.system_panic = lambda reason, fl_ctx: ends.append(reason)
        engine.send_aux_request = lambda *_, **__: replies(engine)
        relay.handle_event(EventType.START_RUN, context(engine))
        relays.append(relay)
        return ends

    yield begin
    for relay in relays:
        relay.handle_event(EventType.END_RUN, None)


@pytest.mark.parametrize("reply", [None, {}, {"server": None}, {"server": make_reply(ReturnCode.TIMEOUT)}])
def test_a_job_whose_server_is_gone_ends_itself(watching, reply):
    """FLARE's own would go on for ever, where the server ended while this site could not hear it."""
    ends = watching(lambda engine: reply)
    wait_for(lambda: ends)
    assert ends[0].startswith("nothing was heard from the server")


@pytest.mark.parametrize(
    "reply",
    [
        lambda engine: engine.handlers[TOPIC](TOPIC, Shareable(), None) and {},
        lambda engine: {"server": make_reply(ReturnCode.OK)},
    ],
    ids=["asks by itself", "replies"],
)
def test_a_job_whose_server_is_there_goes_on(watching, reply):
    asked = []
    ends = watching(lambda engine: asked.append(1) or reply(engine))
    wait_for(lambda: len(asked) > 50)
    assert ends == []


def test_tasks_are_refused():
    reply = SiteRelay().execute("train", Shareable(), None, None)
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN


# The aggregator's relay


class Aggregator:
    """Listens as the aggregator does, and posts through whoever connected."""

    def __init__(self, folder):
        self._there = threading.Event()
        self.listener = Listener(
            folder / "a.carrier", MAX_FRAME, owners(), lambda greeting: "", self._serve, lambda line: None
        )

    def _serve(self, channel, greeting):
        self.role, self.caller = greeting.role, Caller(channel)
        self._there.set()

    def post(self, parcels, seconds=3.0):
        assert self._there.wait(60)
        data = msgspec.msgpack.encode(Post(parcels, seconds))
        return read_replies(self.caller.call(data, 60))

    def close(self):
        self.listener.close()
        if self._there.is_set():
            self.caller.close()


def answer_to(request, data):
    answer = Shareable()
    answer[TICKET], answer[PARCEL] = request[TICKET], data
    return answer


def answering(request):
    return answer_to(request, request[PARCEL][::-1])


@pytest.fixture
def line(settings):
    """An aggregator, the relay of a job that works for it, FLARE's engine, and its signal to end."""
    aggregator, engine, abort = Aggregator(settings), Engine(settings), Signal()
    with ThreadPoolExecutor(1) as job:
        relay = AggregatorRelay()
        relay.start_controller(context(engine))
        runs = job.submit(relay.control_flow, abort, context(engine))
        try:
            yield SimpleNamespace(aggregator=aggregator, engine=engine, abort=abort, runs=runs)
        finally:
            aggregator.close()
            abort.trigger(True)
            runs.result(60)


def test_parcels_reach_their_sites(line):
    line.engine.sites = dict.fromkeys("abc", answering)
    assert line.aggregator.post({"a": b"x1", "b": b"y1", "c": b"x1"}) == {"a": b"1x", "b": b"1y", "c": b"1x"}
    assert line.aggregator.role == "relay"
    assert line.engine.sent == ["a", "b", "c"]


def test_large_parcels_travel_too(line):
    line.engine.sites = {"a": answering}
    assert line.aggregator.post({"a": b"12" * LARGE}) == {"a": b"21" * LARGE}
    assert line.engine.sent == ["a, as a request"]


def test_a_large_answer_is_asked_for_again_as_a_request(line):
    line.engine.sites = {"a": lambda request: answer_to(request, None), "b": answering}
    assert line.aggregator.post(dict.fromkeys("ab", b"12")) == {"a": b"21", "b": b"21"}
    assert line.engine.sent == ["a", "b", "a, as a request"]


def test_a_site_that_is_not_part_of_the_job_does_not_keep_the_others_from_being_asked(line):
    line.engine.sites = dict.fromkeys("ab", answering)
    assert line.aggregator.post(dict.fromkeys("abc", b"x")).keys() == {"a", "b"}
    assert line.aggregator.post({"c": b"x"}) == {}
    assert line.engine.sent == ["a", "b"]


@pytest.mark.parametrize("bad", ["text", b"", 3, bytearray(b"x")])
def test_what_is_no_answer_is_as_good_as_none(line, bad):
    line.engine.sites = {"a": lambda request: answer_to(request, bad), "b": answering}
    assert line.aggregator.post(dict.fromkeys("ab", b"x")).keys() == {"b"}


def test_a_site_that_says_nothing_does_not_keep_what_the_others_said(line):
    line.engine.sites = {"a": lambda request: None, "b": answering}
    assert line.aggregator.post(dict.fromkeys("ab", b"x"), seconds=0.2) == {"b": b"x"}


def test_an_answer_in_the_name_of_another_needs_its_ticket(line):
    """A site knows its own ticket and no other: whatever it sends, it speaks for itself."""

    def lying(request):
        for ticket in (b"", bytes(16), None, "text", [1], request[TICKET][::-1]):
            stranger = answer_to(request, b"in the name of b")
            stranger[TICKET] = ticket
            line.engine.answered(stranger)
        return answer_to(request, b"in its own")

    line.engine.sites = {"a": lying, "b": answering}
    assert line.aggregator.post(dict.fromkeys("ab", b"x1")) == {"a": b"in its own", "b": b"1x"}


def test_tickets_are_others_each_time_and_late_or_repeated_answers_are_dropped(line):
    kept = []

    def slow(request):
        kept.append(answer_to(request, b"late"))

    line.engine.sites = {"a": slow}
    assert line.aggregator.post({"a": b"x"}, seconds=0.1) == {}
    line.engine.sites = {"a": answering}
    for answer in kept * 2:
        line.engine.answered(answer)
    assert line.aggregator.post({"a": b"x1"}) == {"a": b"1x"}
    line.engine.sites = {"a": slow}
    line.aggregator.post({"a": b"x"}, seconds=0.1)
    assert len({answer[TICKET] for answer in kept}) == 2


def test_a_job_that_is_ended_waits_for_no_site(line):
    waits = threading.Event()
    line.engine.sites = {"a": lambda request: waits.set()}
    with ThreadPoolExecutor(1) as aggregator:
        posted = aggregator.submit(line.aggregator.post, {"a": b"x"}, 3600.0)
        assert waits.wait(60)
        line.abort.trigger(True)
        line.runs.result(60)
        with pytest.raises(LinkError):
            posted.result(60)


def test_a_relay_asks_for_nothing_until_all_sites_have_begun(settings, monkeypatch):
    """What is sent to a job that has not begun is lost; FLARE returns nothing, or says so, until it has."""
    monkeypatch.setattr(aggregator_relay, "_PAUSE", 0.001)
    engine, asked = Engine(settings, a=answering, b=answering, c=answering), []
    turns = iter([None, {}, {"a": make_reply(ReturnCode.OK), "b": make_reply(ReturnCode.TIMEOUT), "c": None}])

    def ping(targets, topic, request, timeout, fl_ctx, optional):
        asked.append(targets)
        return next(turns, dict.fromkeys(targets, make_reply(ReturnCode.OK)))

    engine.send_aux_request = ping
    aggregator_relay._Desk(engine).await_sites(Signal())
    assert asked == [["a", "b", "c"]] * 3 + [["b", "c"]]


def test_a_site_that_never_begins_is_not_waited_for_forever(settings, monkeypatch):
    monkeypatch.setattr(aggregator_relay, "_BEGINNING", 0.05)
    engine = Engine(settings, a=answering)
    engine.send_aux_request = lambda *_, **__: None
    aggregator_relay._Desk(engine).await_sites(Signal())


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91" * 2000, msgspec.msgpack.encode([{"a": "text"}, 3.0])])
def test_what_is_no_post_is_carried_to_nobody(line, data):
    line.engine.sites = {"a": answering}
    line.aggregator.post({})
    assert read_replies(line.aggregator.caller.call(data, 60)) == {}
    assert line.engine.sent == []


def test_the_job_ends_when_the_aggregator_hangs_up(line):
    line.aggregator.post({})
    line.aggregator.close()
    line.runs.result(60)


def test_the_relay_ends_with_the_job(line):
    line.aggregator.post({})
    line.abort.trigger(True)
    line.runs.result(60)
    assert line.aggregator.caller.over.wait(60)


def test_a_relay_without_an_aggregator_ends_and_says_so(settings, monkeypatch, caplog):
    monkeypatch.setattr(link, "_PATIENCE", 0.0)
    relay, engine = AggregatorRelay(), Engine(settings)
    relay.start_controller(context(engine))
    relay.control_flow(Signal(), context(engine))
    assert "the aggregator cannot be reached: no process answers at" in caplog.text


def test_results_of_tasks_are_ignored():
    assert AggregatorRelay().process_result_of_unknown_task(None, "train", "job", None, None) is None
