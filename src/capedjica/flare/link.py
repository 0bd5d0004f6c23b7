"""Framed messages over Unix sockets between a process that holds secrets and its carrier.

The process that holds secrets listens; the carrier connects and sends a greeting. Afterwards frames are sent
in both directions: numbered calls and their return values. A frame is a four-byte length and a message,
decoded strictly. A frame that is too long, truncated or of another version closes the connection and has no
other effect.
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
# Longest path of a socket that the system accepts.
_LONGEST_PATH: Final = 107
_LENGTH: Final = struct.Struct(">I")
_CREDENTIALS: Final = struct.Struct("3i")
# Time and size limits of the greeting.
_GREETING_SECONDS: Final = 10.0
_GREETING_BYTES: Final = 4096
# Time limit for sending, after which an unresponsive peer is disconnected.
_SENDING_SECONDS: Final = 60
# How long to retry while the relay of an earlier job may still be connected, and the pause between retries.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.2
# Largest number of concurrent calls, and of connections that have not completed their greeting.
_MOST_CALLS: Final = 16
_MOST_GUESTS: Final = 8
# The user ID shown for users that are unknown in this namespace.
_NOBODY: Final = 65534


class LinkError(ProtocolError):
    """The connection was lost or refused, or the peer violated the protocol."""


class GoneError(LinkError):
    """The peer closed the connection."""


class Greeting(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first frame of a connecting process: version, role and authorisation token."""

    version: int
    role: Annotated[str, Meta(max_length=32)]
    token: Annotated[bytes, Meta(max_length=64)] = b""
    seed: int | None = None


class Reception(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The answer to a greeting: the reason for a refusal, or empty."""

    version: int
    refusal: Annotated[str, Meta(max_length=500)] = ""


class Call(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A question with a number that identifies its answer."""

    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    data: bytes


class Return(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The answer to a call."""

    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    data: bytes


class Channel:
    """One end of a connection; ``limit`` is the largest frame size in bytes."""

    def __init__(self, line: socket.socket, limit: int) -> None:
        self._line, self.limit = line, limit
        self._sending = threading.Lock()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SENDING_SECONDS, 0))

    def send(self, message: Struct) -> None:
        """Send one message; close the connection if it cannot be sent."""
        try:
            self.put(message)
        except OSError as error:
            self.close()
            raise GoneError(f"the connection was lost: {error.strerror}") from None

    def put(self, message: Struct) -> None:
        """Send one message; raise OSError if it cannot be sent (earlier frames can still be received)."""
        body = msgspec.msgpack.encode(message)
        if len(body) > self.limit:
            raise LinkError(f"a frame of {len(body):,} bytes is longer than the limit of {self.limit:,}")
        with self._sending:
            self._line.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, limit: int | None = None) -> bytes | None:
        """Return the next frame; None if the peer closed the connection between two frames."""
        head = self._exactly(_LENGTH.size)
        if not head:
            return None
        (length,) = _LENGTH.unpack(head)
        # defence: frames-over-the-socket-are-limited
        if length > (limit or self.limit):
            raise LinkError(f"a frame of {length:,} bytes was announced, longer than {limit or self.limit:,}")
        body = self._exactly(length)
        if len(body) < length:
            raise LinkError("a frame was truncated")
        return body

    def _exactly(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the connection, but never part of a length."""
        data = bytearray()
        try:
            while len(data) < size:
                piece = self._line.recv(min(size - len(data), 1 << 20))
                if not piece:
                    break
                data += piece
        except OSError as error:
            raise LinkError(f"the connection was lost: {error.strerror or error}") from None
        if size == _LENGTH.size and 0 < len(data) < size:
            raise LinkError("a frame was truncated")
        return bytes(data)

    def wait(self, seconds: float | None) -> None:
        """Set the timeout for receiving, in seconds; None to wait indefinitely."""
        self._line.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


class Caller:
    """Sends questions to the peer, from several threads at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._next = channel, 0
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[bytes]] = {}
        self.over = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="capedjica-link").start()

    def call(self, data: bytes, seconds: float) -> bytes:
        """Return the answer; raise LinkError if there is none in time or the connection was lost."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self.over.is_set():
                raise LinkError("the connection was lost")
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
            # Set before the listener notices, so that the next caller reconnects.
            self.over.set()
            raise

    def _listen(self) -> None:
        reason = "the connection was lost"
        try:
            while (body := self._channel.receive()) is not None:
                frame = _read(Call | Return, body)
                if not isinstance(frame, Return):
                    raise LinkError("received a call where only answers are expected")
                with self._lock:
                    answer = self._waiting.pop(frame.number, None)
                # An answer without a waiting caller came too late.
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
        """Close the connection."""
        self._channel.close()


def answer_calls(channel: Channel, handle: Callable[[bytes], bytes]) -> None:
    """Answer the peer's calls concurrently until it closes the connection; LinkError on a violation.

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
                    raise LinkError("received an unsolicited answer")
                if not room.acquire(blocking=False):
                    raise LinkError(f"received more than {_MOST_CALLS} questions at once")
                workers.submit(work, frame)
        finally:
            channel.close()


def connect(path: Path, greeting: Greeting, limit: int) -> Channel:
    """Connect to a socket; raise LinkError if no process listens or the greeting is refused."""
    _checked(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # An unresponsive process accepts no further connections once its backlog is full.
    line.settimeout(_GREETING_SECONDS)
    try:
        line.connect(str(path))
    except OSError as error:
        line.close()
        raise LinkError(f"no process answers at {path} ({error.strerror or error}); is it running?") from None
    channel = Channel(line, limit)
    try:
        # A refusal by user ID is sent before the greeting is read.
        with suppress(OSError):
            channel.put(greeting)
        body = channel.receive(_GREETING_BYTES)
        if body is None:
            raise LinkError(f"the process at {path} closed the connection")
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
    """Connect a carrier to its process, given by the settings in a folder; LinkError after a timeout."""
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
    """A socket to which carriers or the owner's commands connect.

    Parameters
    ----------
    path : Path
        Path of the socket; a stale socket without a listener is replaced.
    limit : int
        Largest frame size in bytes.
    uids : set of int
        The user IDs that may connect.
    admit : callable
        ``admit(greeting)`` returns the reason for a refusal, or "".
    serve : callable
        ``serve(channel, greeting)`` is called for each admitted connection in its own thread; must not raise.
    report : callable
        Called with one line of text for each refused connection.
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
            raise LinkError("the connection was closed without a greeting")
        greeting: Greeting = _read(Greeting, body)
        if greeting.version != VERSION:
            raise LinkError(f"the socket protocol has version {greeting.version}, expected {VERSION}")
        if refusal := self._admit(greeting):
            raise LinkError(refusal)
        channel.wait(None)
        # An admitted peer that has already disconnected is still served, which ends immediately.
        with suppress(LinkError):
            channel.send(Reception(VERSION))
        return greeting

    def _refuse(self, channel: Channel, reason: str) -> None:
        self._report(f"refused a connection at {self.path}: {reason}")
        with suppress(LinkError):
            channel.send(Reception(VERSION, reason[:500]))
        channel.close()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    _remove_left(_checked(path))
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.bind(str(path))
        # Access is checked by the user ID of the peer, and by the permissions of the folder.
        path.chmod(0o666)
        line.listen(_MOST_GUESTS)
    except OSError as error:
        line.close()
        raise InputError(f"the socket {path} cannot be created: {error.strerror}") from None
    return line


def _remove_left(path: Path) -> None:
    """Remove a stale socket; refuse one that has a listener."""
    if not path.exists():
        return
    if not path.is_socket():
        raise InputError(f"{path} exists and is not a socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_GREETING_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (BlockingIOError, TimeoutError):  # a process listens but does not respond
            pass
        except OSError as error:
            raise InputError(f"the socket {path} cannot be created: {error.strerror}") from None
    raise InputError(f"the socket {path} is already in use: another process listens there")


def _checked(path: Path) -> Path:
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise InputError(
            f"the path of a socket must have at most {_LONGEST_PATH} bytes, {path} has {length}; set "
            "CAPEDJICA_SOCKETS to a folder with a shorter path"
        )
    return path


def peer_uid(line: socket.socket) -> int | None:
    """Return the user ID of the peer process; None if the system does not provide it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return int(uid)


def owners() -> set[int]:
    """Return the IDs under which this process's owner or root may appear (in some namespaces, ``nobody``)."""
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
    """Return the socket path of a role for the process that works in a folder: short, outside that folder."""
    name = hashlib.sha256(os.fsencode(place.resolve())).hexdigest()[:16]
    return _sockets_folder() / f"{name}.{role}"


def _sockets_folder() -> Path:
    """Return this user's folder for sockets, created if missing; other users may traverse root's."""
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
        raise InputError(f"the folder for sockets, {folder}, cannot be created: {error.strerror}") from None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"the folder for sockets, {folder}, belongs to another user or is writable by others; set "
            "CAPEDJICA_SOCKETS to a private folder"
        )
    return folder
