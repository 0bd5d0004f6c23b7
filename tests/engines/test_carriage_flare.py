"""How parcels are handed to FLARE, which has its own ways of failing."""

from contextlib import nullcontext

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from capedjica.engines.flare.controller import PARCEL, _sender
from capedjica.engines.flare.executor import AnsweringExecutor
from tests.engines.carriers import ASK
from tests.engines.test_carriage import answered


def reply(data):
    made = make_reply(ReturnCode.OK)
    made[PARCEL] = data
    return made


class Engine:
    """FLARE's engine as it behaves: asked for somebody whom it does not know, it asks nobody."""

    def __init__(self, **replies):
        self.replies, self.calls = replies, []

    def new_context(self):
        return nullcontext()

    def get_client_from_name(self, name):
        return name if name in self.replies else None

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
        self.calls.append((sorted(targets), request[PARCEL], timeout))
        if not set(targets) <= self.replies.keys():
            return {}
        return {name: self.replies[name] for name in targets}


def test_a_site_that_is_not_part_of_the_job_does_not_keep_the_others_from_being_asked():
    engine = Engine(a=reply(b"1"), b=reply(b"2"))
    assert _sender(engine)(dict.fromkeys("abc", b"parcel"), 3.0) == {"a": b"1", "b": b"2"}
    assert _sender(engine)({"c": b"parcel"}, 3.0) == {}


def test_equal_parcels_travel_at_once_and_others_by_themselves():
    engine = Engine(a=reply(b"1"), b=reply(b"2"), c=reply(b"3"))
    assert _sender(engine)({"a": b"x", "b": b"y", "c": b"x"}, 3.0) == {"a": b"1", "b": b"2", "c": b"3"}
    assert sorted(engine.calls) == [(["a", "c"], b"x", 3.0), (["b"], b"y", 3.0)]


@pytest.mark.parametrize(
    "bad",
    [None, Shareable(), make_reply(ReturnCode.TIMEOUT), reply(None), reply("text"), reply([1]), b"1", {}],
)
def test_what_is_no_slip_is_as_good_as_none(bad):
    assert _sender(Engine(a=bad, b=reply(b"2")))(dict.fromkeys("ab", b"parcel"), 3.0) == {"b": b"2"}


def test_a_call_that_failed_is_a_loss():
    engine = Engine(a=reply(b"1"))
    engine.send_aux_request = lambda **_: None
    assert _sender(engine)({"a": b"parcel"}, 3.0) == {}


class Answering(AnsweringExecutor):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def open(self, settings):
        return self.answer()

    def close(self):
        pass


@pytest.mark.parametrize("parcel", [None, "text", 3, [b"x"], {}])
def test_a_request_without_a_parcel_is_refused(parcel, tmp_path):
    executor = Answering(lambda: bytes.upper)
    executor._desk = executor._open_desk(tmp_path)
    request = Shareable()
    request[PARCEL] = parcel
    assert executor._receive("capedjica", request, None).get_return_code() == ReturnCode.BAD_REQUEST_DATA


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
