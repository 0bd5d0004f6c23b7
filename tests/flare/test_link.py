"""The socket between a process that keeps secrets and the one that has the network, whoever is at its end."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.flare import link
from capedjica.flare.link import (
    VERSION,
    Call,
    Caller,
    Channel,
    Greeting,
    LinkError,
    Listener,
    Return,
    answer_calls,
    connect,
    owners,
    socket_path,
)
from tests.support.confined import NOBODY, ROOT_ONLY
from tests.support.waiting import wait_for

LIMIT = 1 << 16
GREETING = Greeting(VERSION, "carrier")


class Office:
    """Listens, answers with what it was asked turned around, and keeps what was said of whom."""

    def __init__(self, path, uids=None, handle=lambda data: data[::-1]):
        self.path, self.handle = path, handle
        self.reports, self.ended, self.channels = [], [], []
        self.listener = Listener(
            path, LIMIT, owners() if uids is None else uids, self._admit, self._serve, self.reports.append
        )

    def _admit(self, greeting):
        return "" if greeting.role == "carrier" else "this is for the carrier"

    def _serve(self, channel, greeting):
        self.channels.append(channel)
        try:
            answer_calls(channel, self.handle)
            self.ended.append("")
        except LinkError as error:
            self.ended.append(str(error))

    def close(self):
        self.listener.close()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def office(tmp_path):
    made = Office(tmp_path / "s.carrier")
    yield made
    made.close()


@contextmanager
def caller(path):
    made = Caller(connect(path, GREETING, LIMIT))
    try:
        yield made
    finally:
        made.close()
        made.over.wait(60)


@contextmanager
def raw(path):
    """A line of somebody who does as they please."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(path))
        yield line


def frame(message):
    body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


def received(line):
    """Return all that comes until the other end hangs up."""
    data = bytearray()
    with suppress(ConnectionResetError):
        while piece := line.recv(1 << 16):
            data += piece
    return bytes(data)


def reception(data):
    """Return the words in the only frame of an answer to a greeting."""
    assert struct.unpack(">I", data[:4]) == (len(data) - 4,)
    return msgspec.msgpack.decode(data[4:], type=link.Reception).refusal


def check_serves(office):
    with caller(office.path) as line:
        assert line.call(b"still there?", 60) == b"?ereht llits"


def one_line(text):
    assert text.isprintable(), repr(text)
    return text


# Who does as agreed


def test_calls_and_their_answers(office):
    with caller(office.path) as line:
        for data in (b"", b"ab", bytes(LIMIT - 100)):
            assert line.call(data, 60) == data[::-1]
    wait_for(lambda: office.ended)
    assert (office.ended, office.reports) == ([""], [])


def test_several_threads_call_at_once_and_each_gets_its_own_answer(office):
    with caller(office.path) as line, ThreadPoolExecutor(12) as threads:
        data = [os.urandom(1 + n) for n in range(300)]
        assert list(threads.map(lambda one: line.call(one, 60), data)) == [one[::-1] for one in data]


def test_answers_may_come_in_another_order(tmp_path):
    """The first call is answered when the second one was."""
    second = threading.Event()

    def handle(data):
        if data == b"first":
            assert second.wait(60)
        return data.upper()

    office = Office(tmp_path / "s.carrier", handle=handle)
    try:
        with caller(office.path) as line, ThreadPoolExecutor(1) as other:
            first = other.submit(line.call, b"first", 60)
            assert line.call(b"second", 60) == b"SECOND"
            assert not first.done()
            second.set()
            assert first.result(60) == b"FIRST"
    finally:
        office.close()


def test_an_answer_that_comes_late_is_nobodys(tmp_path):
    may = threading.Event()
    office = Office(
        tmp_path / "s.carrier", handle=lambda data: data if data != b"slow" or may.wait(60) else b""
    )
    try:
        with caller(office.path) as line:
            with pytest.raises(LinkError, match=r"^no answer within 0 s$"):
                line.call(b"slow", 0.01)
            may.set()
            for n in range(20):
                assert line.call(bytes([n]), 60) == bytes([n])
    finally:
        may.set()
        office.close()


# Who does not


BAD_GREETINGS = {
    "nothing": (b"", "closed without a greeting"),
    "part of a length": (b"\0\0", "a frame was truncated"),
    "cut": (frame(GREETING)[:-1], "a frame was truncated"),
    "too long": (struct.pack(">I", 4097), "a frame of 4,097 bytes was announced, longer than 4,096"),
    "endless": (b"\xff" * 4, "a frame of 4,294,967,295 bytes was announced, longer than 4,096"),
    "garbage": (frame(b"\xc1garbage"), "a frame of 8 bytes cannot be read"),
    "empty": (frame(b""), "a frame of 0 bytes cannot be read"),
    "deep": (frame(b"\x91" * 4000), "a frame of 4000 bytes cannot be read"),
    "a call": (frame(Call(0, b"")), "cannot be read"),
    "more than a greeting": (frame(msgspec.msgpack.encode([1, "carrier", b"", None, 1])), "cannot be read"),
    "http": (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1,195,725,856 bytes was announced"),
    "another version": (
        frame(Greeting(VERSION + 1, "carrier")),
        f"the socket protocol has version {VERSION + 1}, expected {VERSION}",
    ),
    "another role": (frame(Greeting(VERSION, "owner")), "this is for the carrier"),
    "a long role": (frame(Greeting(VERSION, "x" * 33)), "cannot be read"),
}


@pytest.mark.parametrize("how", BAD_GREETINGS)
def test_a_bad_greeting_is_refused_in_one_line_and_the_next_is_served(office, how):
    data, words = BAD_GREETINGS[how]
    with raw(office.path) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        said = reception(received(line))
    assert words in said
    (report,) = wait_for(lambda: office.reports)
    assert one_line(report) == f"refused a connection at {office.path}: {said}"
    check_serves(office)


BAD_FRAMES = {
    "too long": (struct.pack(">I", LIMIT + 1), "a frame of 65,537 bytes was announced, longer than 65,536"),
    "cut": (frame(Call(0, b"x"))[:-1], "a frame was truncated"),
    "part of a length": (b"\0", "a frame was truncated"),
    "garbage": (frame(b"\xc1"), "a frame of 1 bytes cannot be read"),
    "an answer": (frame(Return(0, b"")), "received an unsolicited answer"),
    "a negative number": (frame(msgspec.msgpack.encode(["Call", -1, b""])), "cannot be read"),
    "a huge number": (frame(msgspec.msgpack.encode(["Call", 1 << 62, b""])), "cannot be read"),
    "text": (frame(msgspec.msgpack.encode(["Call", 1, "text"])), "cannot be read"),
    "more fields": (frame(msgspec.msgpack.encode(["Call", 1, b"", 1])), "cannot be read"),
    "a second greeting": (frame(GREETING), "cannot be read"),
}


@pytest.mark.parametrize("how", BAD_FRAMES)
def test_a_bad_frame_ends_the_connection_and_nothing_else(office, how):
    data, words = BAD_FRAMES[how]
    with raw(office.path) as line:
        line.sendall(frame(GREETING) + data)
        line.shutdown(socket.SHUT_WR)
        assert reception(received(line)) == ""
    (reason,) = wait_for(lambda: office.ended)
    assert words in one_line(reason)
    check_serves(office)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.binary(max_size=300), st.booleans())
def test_whatever_comes_the_listener_serves_the_next(office, greeted, data, framed):
    with raw(office.path) as line, suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(frame(GREETING) * greeted + (frame(data) if framed else data))
        line.shutdown(socket.SHUT_WR)
        received(line)
    check_serves(office)
    assert all(text.isprintable() for text in (*office.reports, *office.ended))


def test_more_calls_at_once_than_there_is_room_for_end_the_connection(tmp_path):
    """Sixteen are taken, the seventeenth is not: it does as no relay does."""
    may, begun = threading.Event(), []

    def handle(data):
        begun.append(data)
        assert may.wait(60)
        return data[::-1]

    office = Office(tmp_path / "s.carrier", handle=handle)
    try:
        with raw(office.path) as line:
            line.sendall(frame(GREETING) + b"".join(frame(Call(n, b"")) for n in range(16)))
            wait_for(lambda: len(begun) == 16)
            assert not office.ended
            line.sendall(frame(Call(16, b"")))
            assert reception(received(line)) == ""
        may.set()
        assert wait_for(lambda: office.ended) == ["received more than 16 questions at once"]
        check_serves(office)
    finally:
        may.set()
        office.close()


def test_those_who_never_greet_are_few_and_go_in_time(office, monkeypatch):
    """Who comes when eight stand at the door is turned away; later there is room again."""
    monkeypatch.setattr(link, "_GREETING_SECONDS", 1.0)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(12)]
    try:
        for line in silent:
            line.connect(str(office.path))
        assert received(silent[-1]) == b""
        for line in silent[:8]:
            assert reception(received(line)) == "the connection was lost: timed out"
        check_serves(office)
    finally:
        for line in silent:
            line.close()


def test_an_end_that_stops_reading_is_given_up(office, monkeypatch):
    """It asks and takes no answer: the one who answers is not kept for ever, and serves the next."""
    monkeypatch.setattr(link, "_SENDING_SECONDS", 1)
    with raw(office.path) as line:
        line.sendall(frame(GREETING))
        with suppress(OSError):
            for n in range(1000):
                line.sendall(frame(Call(n, bytes(LIMIT - 100))))
        wait_for(lambda: office.ended)
    assert one_line(office.ended[0])
    check_serves(office)


# The end that calls


def answered_by(path, *frames):
    """Listen as somebody who takes one guest and sends them these bytes."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve():
        with listening, listening.accept()[0] as line:
            line.recv(1 << 16)
            line.sendall(b"".join(frames))
            line.shutdown(socket.SHUT_WR)
            received(line)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "closed the connection"),
        (frame(b"\xc1"), "a frame of 1 bytes cannot be read"),
        (struct.pack(">I", 4097), "a frame of 4,097 bytes was announced"),
        (frame(link.Reception(VERSION, "not today")), "not today"),
    ],
)
def test_a_reception_that_is_none_is_an_error_in_words(tmp_path, data, words):
    thread = answered_by(tmp_path / "s", data)
    with pytest.raises(LinkError, match=words) as error:
        connect(tmp_path / "s", GREETING, LIMIT)
    one_line(str(error.value))
    thread.join(60)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(Call(0, b"")),
        frame(b"\xc1"),
        struct.pack(">I", LIMIT + 1),
        frame(Return(0, b""))[:-1],
    ],
    ids=["gone", "a call", "garbage", "too long", "cut"],
)
def test_who_calls_is_told_when_the_other_end_is_gone_or_strange(tmp_path, data):
    thread = answered_by(tmp_path / "s", frame(link.Reception(VERSION)), data)
    line = Caller(connect(tmp_path / "s", GREETING, LIMIT))
    assert line.over.wait(60)
    with pytest.raises(LinkError, match="the connection was lost"):
        line.call(b"x", 60)
    thread.join(60)


def test_an_answer_with_another_number_is_nobodys(tmp_path):
    thread = answered_by(tmp_path / "s", frame(link.Reception(VERSION)), frame(Return(7, b"evil")))
    with caller(tmp_path / "s") as line, pytest.raises(LinkError):
        line.call(b"x", 60)
    thread.join(60)


def test_a_frame_that_is_too_long_is_not_sent(office):
    with caller(office.path) as line:
        with pytest.raises(LinkError, match=r"a frame of 65,5\d\d bytes is longer than the limit of 65,536"):
            line.call(bytes(LIMIT), 60)
        assert line.call(b"ab", 60) == b"ba"


# Who it is


def test_another_user_is_refused_whatever_they_say(tmp_path):
    """Here the one who asks is the wrong one: the socket expects somebody else."""
    office = Office(tmp_path / "s.carrier", uids={os.getuid() + 1})
    try:
        with pytest.raises(LinkError, match=rf"user {os.getuid()} may not connect here; expected") as error:
            connect(office.path, GREETING, LIMIT)
        one_line(str(error.value))
        assert len(office.reports) == 1
    finally:
        office.close()


_CONNECTING = """
import os, sys
from pathlib import Path
from capedjica.flare.link import VERSION, Greeting, LinkError, connect
os.chdir(sys.argv[2])
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
try:
    connect(Path("s.carrier"), Greeting(VERSION, "carrier"), 1000).close()
    print("admitted")
except LinkError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
@pytest.mark.parametrize("expected", [True, False])
def test_a_process_of_another_user_is_known_by_its_user(tmp_path, expected):
    """Of the right one too: a carrier with a user of its own."""
    tmp_path.chmod(0o755)
    office = Office(tmp_path / "s.carrier", uids={NOBODY if expected else 0})
    try:
        command = [sys.executable, "-c", _CONNECTING, str(NOBODY), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        words = "admitted" if expected else f"user {NOBODY} may not connect here; expected 0"
        assert done.stdout.strip() == words
        assert len(office.reports) == (not expected)
    finally:
        office.close()


# Where it is


def test_nobody_listens(tmp_path):
    with pytest.raises(
        LinkError, match=r"no process answers at .*absent \(No such file.*\); is it running\?"
    ):
        connect(tmp_path / "absent", GREETING, LIMIT)
    office = Office(tmp_path / "s.carrier")
    office.close()
    assert not office.path.exists()


def test_a_path_that_is_too_long_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / ("x" * 108)
    for attempt in (lambda: Office(path), lambda: connect(path, GREETING, LIMIT)):
        with pytest.raises(InputError, match=r"at most 107 bytes, .* has \d+; set CAPEDJICA_SOCKETS to a"):
            attempt()


def test_the_longest_path_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    office = Office(Path("x" * 107))
    try:
        check_serves(office)
    finally:
        office.close()


def test_a_socket_that_is_in_use_is_left_alone(office):
    with pytest.raises(InputError, match="is already in use: another process listens there"):
        Office(office.path)
    check_serves(office)


def test_a_socket_of_one_who_stands_still_is_in_use(tmp_path):
    """However many wait there already: nobody is kept waiting for ever."""
    path = tmp_path / "s.carrier"
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(path))
        frozen.listen(0)
        waiting = socket.socket(socket.AF_UNIX)
        with waiting:
            waiting.connect(str(path))
            with pytest.raises(InputError, match="is already in use"):
                Office(path)
            with pytest.raises(LinkError, match="no process answers at"):
                connect(path, GREETING, LIMIT)


_LEAVING = """
import sys, time
from pathlib import Path
from capedjica.flare.link import Listener
Listener(Path(sys.argv[1]), 1000, set(), lambda g: "", lambda c, g: None, print)
print("listening", flush=True)
time.sleep(600)
"""


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path):
    path = tmp_path / "s.carrier"
    process = subprocess.Popen([sys.executable, "-c", _LEAVING, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "listening\n"
        with pytest.raises(InputError, match="already in use"):
            Office(path)
        process.send_signal(signal.SIGKILL)
    assert path.exists()
    office = Office(path)
    try:
        check_serves(office)
    finally:
        office.close()


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path):
    with pytest.raises(
        InputError, match=r"the socket .* cannot be created: No such file or directory"
    ) as error:
        Office(tmp_path / "absent" / "s.carrier")
    one_line(str(error.value))


def test_sockets_are_short_apart_and_not_in_the_folders_they_are_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPEDJICA_SOCKETS", str(tmp_path / "sockets"))
    places = [tmp_path / ("x" * 200), tmp_path / "y"]
    paths = [socket_path(place, role) for place in places for role in ("carrier", "owner")]
    assert len(set(paths)) == 4
    assert {path.parent for path in paths} == {tmp_path / "sockets"}
    assert all(len(path.name) < 30 for path in paths)
    monkeypatch.chdir(tmp_path)
    assert socket_path(Path("y"), "owner") == paths[3]


def test_a_folder_of_sockets_that_others_write_to_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "sockets"
    folder.mkdir()
    monkeypatch.setenv("CAPEDJICA_SOCKETS", str(folder))
    assert socket_path(tmp_path, "owner").parent == folder
    folder.chmod(0o777)
    with pytest.raises(InputError, match="belongs to another user or is writable by others"):
        socket_path(tmp_path, "owner")
    monkeypatch.setenv("CAPEDJICA_SOCKETS", str(tmp_path / "file" / "sockets"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"for sockets, .* cannot be created: Not a directory"):
        socket_path(tmp_path, "owner")


def test_where_sockets_are_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("CAPEDJICA_SOCKETS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    expected = Path("/run/capedjica") if os.getuid() == 0 else tmp_path / "capedjica"
    assert socket_path(tmp_path, "owner").parent == expected


def test_where_the_system_does_not_tell_users_the_folder_alone_keeps_others_out(office, monkeypatch):
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    assert link.peer_uid(SimpleNamespace()) is None
    check_serves(office)


def test_a_channel_says_who_is_gone():
    one, other = socket.socketpair()
    channel = Channel(one, LIMIT)
    other.close()
    with pytest.raises(LinkError, match="the connection was lost"):
        channel.send(GREETING)
    with pytest.raises(LinkError, match="the connection was lost"):
        channel.receive()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 900, b"\x93\xa4Call\x01", b"\xff" * 100])
def test_a_frame_that_cannot_be_read_is_an_error_of_the_link(body):
    own, other = socket.socketpair()
    with own, other:
        other.sendall(struct.pack(">I", len(body)) + body)
        with pytest.raises(LinkError, match="cannot be read"):
            answer_calls(Channel(own, LIMIT), lambda data: data)
