"""How parcels are handed to FLARE, which has its own ways of failing."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import make_reply as cell_reply
from nvflare.fuel.f3.message import Message

from capedjica.coordinator.flare.controller import _sender
from capedjica.flare.wire import LARGE, PARCEL
from capedjica.site.flare.desk import Desk
from capedjica.site.flare.executor import AnsweringExecutor
from tests.flare.carriers import ASK
from tests.flare.test_carriage import answered, parcel

AGGREGATOR = "server.job"


class Answering(AnsweringExecutor):
    """A site of FLARE whose desk answers as it is told."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self._aggregator = answer, AGGREGATOR

    def open(self, settings):
        return self.answer()

    def close(self):
        pass


class Engine:
    """FLARE's engine as it behaves: asked for somebody whom it does not know, it asks nobody."""

    def __init__(self, **sites):
        self.sites, self.single, self.streamed = sites, [], []
        self.core_cell = self

    def new_context(self):
        return nullcontext()

    def get_cell(self):
        return self

    def get_client_from_name(self, name):
        return SimpleNamespace(get_fqcn=lambda: name) if name in self.sites else None

    def broadcast_multi_requests(self, messages, timeout, optional):
        self.single.append(sorted(messages))
        replies = {}
        for place, target in messages.items():
            target.message.headers[MessageHeaderKey.ORIGIN] = AGGREGATOR
            site = self.sites[place.removesuffix(".job")]
            replies[place] = site._receive_small(target.message) if hasattr(site, "_receive_small") else site
        return replies

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
        self.streamed.append(sorted(targets))
        if not set(targets) <= self.sites.keys():
            return {}
        return {name: self.sites[name]._receive_large(topic, request, fl_ctx) for name in targets}


def site(handle=bytes.upper):
    made = Answering(None)
    made._desk = Desk(handle)
    return made


def slip_of(desk_site, data):
    """Return what a site's desk says to a parcel, by whichever way."""
    return desk_site._desk.receive(data)


def test_a_site_that_is_not_part_of_the_job_does_not_keep_the_others_from_being_asked():
    engine = Engine(a=site(), b=site())
    assert _sender(engine, "job")(dict.fromkeys("abc", parcel(b"x")), 3.0).keys() == {"a", "b"}
    assert _sender(engine, "job")({"c": parcel(b"x")}, 3.0) == {}
    engine.streamed.clear()
    large = parcel(bytes(LARGE))
    assert _sender(engine, "job")(dict.fromkeys("abc", large), 3.0).keys() == {"a", "b"}
    assert engine.streamed == [["a", "b"]]


def test_small_parcels_travel_as_one_message_whatever_is_in_them():
    engine = Engine(a=site(), b=site())
    given = {"a": parcel(b"x"), "b": parcel(b"y", b"other---")}
    slips = _sender(engine, "job")(given, 3.0)
    assert slips == {name: slip_of(engine.sites[name], data) for name, data in given.items()}
    assert (engine.single, engine.streamed) == ([["a.job", "b.job"]], [])


def test_large_parcels_travel_as_streams_equal_ones_at_once():
    engine = Engine(a=site(), b=site(), c=site())
    one, other = parcel(bytes(LARGE)), parcel(b"1" * LARGE, b"other---")
    slips = _sender(engine, "job")({"a": one, "b": other, "c": one}, 3.0)
    assert slips.keys() == {"a", "b", "c"}
    assert (engine.single, sorted(engine.streamed)) == ([], [["a", "c"], ["b"]])


def test_an_answer_that_is_large_is_fetched_as_a_stream_and_made_once():
    """The rest of the sites are not asked again."""
    made = []

    def handle(data):
        made.append(data)
        return bytes(LARGE)

    engine = Engine(a=site(handle), b=site())
    slips = _sender(engine, "job")(dict.fromkeys("ab", parcel(b"x")), 3.0)
    assert {name: len(slip) > LARGE for name, slip in slips.items()} == {"a": True, "b": False}
    assert made == [b"x"]
    assert (engine.single, engine.streamed) == ([["a.job", "b.job"]], [["a"]])


@pytest.mark.parametrize(
    "bad",
    [
        cell_reply("timeout"),
        cell_reply("ok", body="text"),
        cell_reply("ok", body={}),
        cell_reply("process_exception", body=b"slip"),
        Message(),
    ],
)
def test_what_is_no_slip_is_as_good_as_none(bad):
    assert _sender(Engine(a=bad, b=site()), "job")(dict.fromkeys("ab", parcel(b"x")), 3.0).keys() == {"b"}


@pytest.mark.parametrize("bad", [None, Shareable(), make_reply(ReturnCode.TIMEOUT), b"1", {}])
def test_what_is_no_slip_in_a_stream_is_as_good_as_none(bad):
    engine = Engine(a=site(), b=site())
    engine.sites["a"]._receive_large = lambda *_: bad
    assert _sender(engine, "job")(dict.fromkeys("ab", parcel(bytes(LARGE))), 3.0).keys() == {"b"}


def test_a_call_that_failed_is_a_loss():
    engine = Engine(a=site(lambda data: bytes(LARGE)))
    engine.send_aux_request = lambda **_: None
    assert _sender(engine, "job")({"a": parcel(b"x")}, 3.0) == {}


def small(data, origin=AGGREGATOR):
    return Message({MessageHeaderKey.ORIGIN: origin}, data)


@pytest.mark.parametrize("origin", [None, "", "server", "site-2.job", "server.other", "server.job.x"])
def test_nobody_but_the_aggregator_of_the_job_is_answered(origin):
    reply = site()._receive_small(small(parcel(b"x"), origin))
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) != "ok"
    assert reply.payload is None


@pytest.mark.parametrize("data", [None, "text", 3, [b"x"], {}])
def test_a_message_without_a_parcel_is_refused(data):
    assert site()._receive_small(small(data)).get_header(MessageHeaderKey.RETURN_CODE) != "ok"
    request = Shareable()
    request[PARCEL] = data
    reply = site()._receive_large("capedjica", request, None)
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA


def test_why_a_site_cannot_answer_stays_at_the_site(tmp_path):
    """Its own log has the words of an error that nobody expected; the aggregator gets none of them."""

    def fail():
        raise RuntimeError("patient 7741 is unreadable")

    desk = Answering(fail)._open_desk(tmp_path)

    said = answered(desk, ASK)
    assert (said.state, said.data) == ("refused", b"it cannot answer; its own log says why")


def test_tasks_are_refused():
    assert (
        Answering(bytes).execute("train", Shareable(), None, None).get_return_code()
        == ReturnCode.TASK_UNKNOWN
    )
