"""Frames over Unix sockets: how a process that keeps secrets talks to the one that has the network.

The one that keeps secrets listens, the carrier connects and greets. After that frames go both ways: a call
with a number, and what is returned for it. A frame is four bytes of length and a message, decoded strictly;
one that is too long, cut off or of another version ends the connection, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import CapedjicaError, InputError, ProtocolError
from capedjica.flare.wire import SETTINGS

VERSION: Final = 1
# What the system takes for the path of a socket.
_LONGEST_PATH: Final = 107
_LENGTH: Final = struct.Struct(">I")
_CREDENTIALS: Final = struct.Struct("3i")
# For the greeting of whoever connects.
_GREETING_SECONDS: Final = 10.0
_GREETING_BYTES: Final = 4096
# Until the other end takes what is sent: one that stands still is given up.
_SENDING_SECONDS: Final = 60
# How long the relay of an earlier job may still be connected, and how often this is seen after.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.2
# Calls that may be under way at once, and those who may be greeting.
_MOST_CALLS: Final = 16
_MOST_GUESTS: Final = 8
# Whom the system shows in the place of a user that it does not know in here.
_NOBODY: Final = 65534


class LinkError(ProtocolError):
    """The other end is gone, refused, or does not keep to the protocol."""


class GoneError(LinkError):
    """The other end hung up."""


class Greeting(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first frame of whoever connects: the version, as what, and by which right."""

    version: int
    role: Annotated[str, Meta(max_length=32)]
    token: Annotated[bytes, Meta(max_length=64)] = b""
    seed: int | None = None


class Reception(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The answer to it: empty, or why not."""

    version: int
    refusal: Annotated[str, Meta(max_length=500)] = ""


class Call(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A question, and the number under which its answer is expected."""

    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    data: bytes


class Return(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The answer to a call."""

    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    data: bytes


class Channel:
    """One end of a connection; ``limit`` is the bytes of the longest frame."""

    def __init__(self, line: socket.socket, limit: int) -> None:
        self._line, self.limit = line, limit
        self._sending = threading.Lock()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SENDING_SECONDS, 0))

    def send(self, message: Struct) -> None:
        """Send one message; hang up if it cannot be sent."""
        try:
            self.put(message)
        except OSError as error:
            self.close()
            raise GoneError(f"the other end is gone: {error.strerror}") from None

    def put(self, message: Struct) -> None:
        """Send one message; OSError if it cannot be sent, and what came before can still be received."""
        body = msgspec.msgpack.encode(message)
        if len(body) > self.limit:
            raise LinkError(f"a frame of {len(body):,} bytes is longer than {self.limit:,}")
        with self._sending:
            self._line.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, limit: int | None = None) -> bytes | None:
        """Return the next frame; None when the other end has hung up between two."""
        head = self._exactly(_LENGTH.size)
        if not head:
            return None
        (length,) = _LENGTH.unpack(head)
        # defence: frames-over-the-socket-are-limited
        if length > (limit or self.limit):
            raise LinkError(f"a frame of {length:,} bytes was announced, longer than {limit or self.limit:,}")
        body = self._exactly(length)
        if len(body) < length:
            raise LinkError("a frame was cut off")
        return body

    def _exactly(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end, which must not be inside of a length."""
        data = bytearray()
        try:
            while len(data) < size:
                piece = self._line.recv(min(size - len(data), 1 << 20))
                if not piece:
                    break
                data += piece
        except OSError as error:
            raise LinkError(f"the other end is gone: {error.strerror or error}") from None
        if size == _LENGTH.size and 0 < len(data) < size:
            raise LinkError("a frame was cut off")
        return bytes(data)

    def wait(self, seconds: float | None) -> None:
        """Wait so long for a frame; None for ever."""
        self._line.settimeout(seconds)

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


class Caller:
    """Puts questions to the other end, from several threads at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._next = channel, 0
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[bytes]] = {}
        self.over = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="capedjica-link").start()

    def call(self, data: bytes, seconds: float) -> bytes:
        """Return the answer; LinkError if there is none in time, or the other end is gone."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self.over.is_set():
                raise LinkError("the other end is gone")
            number, self._next = self._next, self._next + 1
            self._waiting[number] = answer
        try:
            self._send(Call(number, data))
            return answer.result(seconds)
        except LateError:
            raise LinkError(f"no answer within {seconds:.0f} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _send(self, call: Call) -> None:
        try:
            self._channel.send(call)
        except GoneError:
            # Before the listener finds it out: whoever asks next is to connect again.
            self.over.set()
            raise

    def _listen(self) -> None:
        reason = "the other end is gone"
        try:
            while (body := self._channel.receive()) is not None:
                frame = _read(Call | Return, body)
                if not isinstance(frame, Return):
                    raise LinkError("a call where only answers are expected")
                with self._lock:
                    answer = self._waiting.pop(frame.number, None)
                # One that nobody waits for any more came late.
                if answer is not None:
                    answer.set_result(frame.data)
        except LinkError as error:
            reason = str(error)
        with self._lock:
            self.over.set()
            left, self._waiting = list(self._waiting.values()), {}
        for answer in left:
            answer.set_exception(LinkError(reason))
        self._channel.close()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def answer_calls(channel: Channel, handle: Callable[[bytes], bytes]) -> None:
    """Answer the other end's calls, several at once, until it hangs up; LinkError if it does anything else.

    ``handle`` must not raise.
    """
    room = threading.BoundedSemaphore(_MOST_CALLS)

    def work(call: Call) -> None:
        try:
            with suppress(LinkError):
                channel.send(Return(call.number, handle(call.data)))
        finally:
            room.release()

    with ThreadPoolExecutor(_MOST_CALLS, "capedjica-calls") as workers:
        try:
            while (body := channel.receive()) is not None:
                frame = _read(Call | Return, body)
                if not isinstance(frame, Call):
                    raise LinkError("an answer that nobody asked for")
                if not room.acquire(blocking=False):
                    raise LinkError(f"more than {_MOST_CALLS} questions at once")
                workers.submit(work, frame)
        finally:
            channel.close()


def connect(path: Path, greeting: Greeting, limit: int) -> Channel:
    """Connect to a socket; LinkError with the reason if nobody listens or the greeting is refused."""
    _checked(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # One that stands still lets no more connect once a few wait at its door.
    line.settimeout(_GREETING_SECONDS)
    try:
        line.connect(str(path))
    except OSError as error:
        line.close()
        raise LinkError(f"nobody answers at {path} ({error.strerror or error}): is it running?") from None
    channel = Channel(line, limit)
    try:
        # Who is refused at sight is told so without being heard.
        with suppress(OSError):
            channel.put(greeting)
        body = channel.receive(_GREETING_BYTES)
        if body is None:
            raise LinkError(f"{path} hung up")
        reception = _read(Reception, body)
        if reception.refusal:
            raise LinkError(reception.refusal)
        channel.wait(None)
    except LinkError:
        channel.close()
        raise
    return channel


def connect_carrier(
    folder: Path, greeting: Greeting, limit: int, ended: Callable[[], bool] = lambda: False
) -> Channel:
    """Connect to whom a carrier works for, by the settings in a folder; LinkError if that takes too long."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            path = Path(json.loads((folder / SETTINGS).read_text())["socket"])
            return connect(path, greeting, limit)
        except (CapedjicaError, OSError, ValueError, LookupError, TypeError) as error:
            if time.monotonic() > until or ended():
                raise LinkError(str(error)) from None
        time.sleep(_PAUSE)


class Listener:
    """A socket at which carriers or the owner's commands connect.

    Parameters
    ----------
    path : Path
        Where; a socket that nobody listens at any more is replaced.
    limit : int
        Bytes of the longest frame.
    uids : set of int
        The users who may connect.
    admit : callable
        ``admit(greeting)`` returns why somebody is not admitted, or nothing.
    serve : callable
        ``serve(channel, greeting)`` for each who is admitted, in a thread of its own; must not raise.
    report : callable
        Told in one line whom was refused.
    """

    def __init__(
        self,
        path: Path,
        limit: int,
        uids: set[int],
        admit: Callable[[Greeting], str],
        serve: Callable[[Channel, Greeting], None],
        report: Callable[[str], None],
    ) -> None:
        self.path, self._limit, self._uids = path, limit, uids
        self._admit, self._serve, self._report = admit, serve, report
        self._guests = threading.BoundedSemaphore(_MOST_GUESTS)
        self._socket = _bound(path)
        threading.Thread(target=self._accept, daemon=True, name=f"capedjica-{path.suffix[1:]}").start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:  # closed
                return
            if self._guests.acquire(blocking=False):
                threading.Thread(target=self._receive, args=(line,), daemon=True).start()
            else:
                line.close()

    def _receive(self, line: socket.socket) -> None:
        channel = Channel(line, self._limit)
        try:
            greeting = self._greeted(channel, line)
        except LinkError as error:
            self._refuse(channel, str(error))
            return
        finally:
            self._guests.release()
        self._serve(channel, greeting)

    def _greeted(self, channel: Channel, line: socket.socket) -> Greeting:
        uid = peer_uid(line)
        # defence: peer-credentials
        if uid is not None and uid not in self._uids:
            raise LinkError(f"user {uid} may not connect here; expected {_listed(self._uids)}")
        channel.wait(_GREETING_SECONDS)
        body = channel.receive(_GREETING_BYTES)
        if body is None:
            raise LinkError("hung up without a greeting")
        greeting: Greeting = _read(Greeting, body)
        if greeting.version != VERSION:
            raise LinkError(f"version {greeting.version} of the socket's protocol, expected {VERSION}")
        if refusal := self._admit(greeting):
            raise LinkError(refusal)
        channel.wait(None)
        # Who was admitted and is gone already is served, which ends at once.
        with suppress(LinkError):
            channel.send(Reception(VERSION))
        return greeting

    def _refuse(self, channel: Channel, reason: str) -> None:
        self._report(f"refused a connection at {self.path}: {reason}")
        with suppress(LinkError):
            channel.send(Reception(VERSION, reason[:500]))
        channel.close()

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    _remove_left(_checked(path))
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.bind(str(path))
        # Who may connect is checked by who they are; the folder keeps others out as well.
        path.chmod(0o666)
        line.listen(_MOST_GUESTS)
    except OSError as error:
        line.close()
        raise InputError(f"the socket {path} cannot be made: {error.strerror}") from None
    return line


def _remove_left(path: Path) -> None:
    """Remove a socket that a process left behind; refuse one at which somebody listens."""
    if not path.exists():
        return
    if not path.is_socket():
        raise InputError(f"{path} is in the way: it is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_GREETING_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (BlockingIOError, TimeoutError):  # somebody listens, and stands still
            pass
        except OSError as error:
            raise InputError(f"the socket {path} cannot be made: {error.strerror}") from None
    raise InputError(f"the socket {path} is in use already: another process listens there")


def _checked(path: Path) -> Path:
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise InputError(
            f"the path of a socket has at most {_LONGEST_PATH} bytes, {path} has {length}: set "
            "CAPEDJICA_SOCKETS to a folder with a shorter path"
        )
    return path


def peer_uid(line: socket.socket) -> int | None:
    """Return the user of the process at the other end; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return int(uid)


def owners() -> set[int]:
    """Return the users that the owner of this process may be seen as: root is nobody in some namespaces."""
    return {os.getuid(), 0, _NOBODY}


def _listed(uids: set[int]) -> str:
    return " or ".join(str(uid) for uid in sorted(uids))


def _read(kind: Any, body: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    # defence: strict-frames
    except (ValueError, RecursionError):
        raise LinkError(f"a frame of {len(body)} bytes cannot be read") from None


def socket_path(place: Path, role: str) -> Path:
    """Return where the socket of a role is for the process that works in a folder: short, and not in it."""
    name = hashlib.sha256(os.fsencode(place.resolve())).hexdigest()[:16]
    return _sockets_folder() / f"{name}.{role}"


def _sockets_folder() -> Path:
    """Return a folder of this user's, made where it is missing; others may pass through one of root's."""
    given = os.environ.get("CAPEDJICA_SOCKETS")
    if given:
        folder = Path(given)
    elif os.getuid() == 0:
        folder = Path("/run/capedjica")
    else:
        own = os.environ.get("XDG_RUNTIME_DIR")
        folder = Path(own) / "capedjica" if own else Path(f"/tmp/capedjica-{os.getuid()}")  # noqa: S108 (checked)
    try:
        folder.mkdir(mode=0o711 if os.getuid() == 0 else 0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise InputError(f"{folder}, for sockets, cannot be made: {error.strerror}") from None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(f"{folder}, for sockets, belongs to somebody else or others may write there")
    return folder
