"""Large messages at a site: how many, how large, and what is said when one fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHUNK_SIZE, StreamHeaderKey

from capedjica.flare.size_limits import MAX_FRAME
from capedjica.site.flare import streams


@pytest.fixture
def tasks(monkeypatch):
    """FLARE's own table of what is under way, empty."""
    monkeypatch.setattr(RxTask, "rx_task_map", {})
    monkeypatch.setattr(RxTask, "find_or_create_task", RxTask.find_or_create_task)
    streams._limit_streams(RxTask)
    return RxTask.rx_task_map


def piece(stream=1, place=0, size=0, data=b"", **more):
    headers = {
        MessageHeaderKey.ORIGIN: "server",
        StreamHeaderKey.STREAM_ID: stream,
        StreamHeaderKey.SEQUENCE: place,
        StreamHeaderKey.SIZE: size,
    }
    named = {getattr(StreamHeaderKey, key): value for key, value in more.items()}
    return Message(headers | named, data)


def arrives(*what, **more):
    return RxTask.find_or_create_task(piece(*what, **more), None)


def test_few_streams_are_open_at_once(tasks):
    """For each, memory is put aside; those that never come to an end are never forgotten by FLARE."""
    opened = [arrives(number) for number in range(100)]
    assert sum(task is not None for task in opened) == len(tasks) == streams.MAX_STREAMS
    assert arrives(0) is opened[0]
    opened[0].completed = opened[1].failed = True
    assert [arrives(number) is None for number in range(200, 203)] == [False, False, True]


def test_streams_that_begin_at_once_are_counted_one_by_one(tasks, monkeypatch):
    begun = threading.Barrier(8)

    def begin(first):
        begun.wait()
        return [arrives(first + number) for number in range(50)]

    with ThreadPoolExecutor(8) as together:
        list(together.map(begin, range(0, 8000, 1000)))
    assert len(tasks) == streams.MAX_STREAMS


@pytest.mark.parametrize(
    "what",
    [
        {"size": 1.5},
        {"size": -1},
        {"size": MAX_FRAME + 1},
        {"size": True},
        {"place": -1},
        {"place": 51},
        {"place": "0"},
        {"stream": [1]},
        {"stream": None},
        {"data": bytes(STREAM_CHUNK_SIZE + 1)},
    ],
)
def test_a_piece_of_a_message_that_no_study_sends_is_refused(tasks, what):
    largest = {"size": MAX_FRAME, "place": MAX_FRAME // STREAM_CHUNK_SIZE, "data": bytes(STREAM_CHUNK_SIZE)}
    assert streams.is_modest(piece(**largest))
    assert arrives(**what) is None
    assert not tasks


def test_nothing_is_kept_because_its_sender_says_so(tasks):
    """FLARE would keep a message that has been read for an hour."""
    assert arrives(RELIABLE=True, RETRY_TIMEOUT=3600.0, RETRY_WAIT=5.0).reliable is False


def test_that_a_stream_failed_is_said_without_a_reason(monkeypatch):
    said = []
    monkeypatch.setattr(RxTask, "_send_error", lambda task, words, kind=None: said.append(words))
    streams._say_no_more_than_that_it_failed(RxTask)
    RxTask(1, "server", None)._send_error("<BlobHandler object at 0x7f3b96d05250>", "StreamError")
    assert said == ["the message did not arrive"]
