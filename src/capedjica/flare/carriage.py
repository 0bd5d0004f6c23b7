"""Questions to sites that may take long to answer, be stopped, or be cut off for a while.

Every question travels in a parcel with a number of its own. A site keeps working on a question while the
aggregator, every few seconds, asks for it again: as long as the site says that it is busy, it is alive. So a
statistic may take an hour and a dead site is still noticed within :attr:`Patience.silence`. A parcel that got
lost is sent again; the site knows it by its number and works on it once.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import ProtocolError
from capedjica.flare.size_limits import MAX_MESSAGE

# All parties of a study run the same version: what they compute must be the same to the last bit.
VERSION: Final = version("capedjica")
# How long a site keeps the aggregator waiting before it says that it is busy.
HOLD_SECONDS: Final = 2.0
# How much longer its answer may be on its way.
TRANSIT_SECONDS: Final = 10.0
# A release is computed while a block of masks is made: more is never under way at once.
_WORKERS: Final = 2
# Answers that may have got lost are kept, until as many newer questions were put.
_KEPT: Final = 4
# Between two attempts at a site that cannot be reached.
_PAUSE_SECONDS: Final = 0.5
_CLOSED: Final = "its part in this run has ended"
_REVOKED: Final = "it gives no answers any more"

Number = Annotated[bytes, Meta(min_length=8, max_length=8)]
Version = Annotated[str, Meta(max_length=64)]
Handle = Callable[[bytes], bytes]
Send = Callable[[Mapping[str, bytes], float], Mapping[str, bytes]]

_log = logging.getLogger("capedjica.run")


class Parcel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A question on its way; without data, only the answer is asked for."""

    version: Version
    number: Number
    data: bytes | None


class Slip(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a site gives back: the answer, that it is not ready, that it was never asked, or why not."""

    version: Version
    state: Literal["done", "busy", "unknown", "refused"]
    data: bytes


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds.

    Parameters
    ----------
    joining : float
        For all sites to join when a run begins.
    silence : float
        Until a site from which nothing is heard is given up.
    greeting, masks, release : float
        For the answer of a site that is alive, by what is asked of it.
    """

    joining: float = 120.0
    silence: float = 60.0
    greeting: float = 120.0
    masks: float = 900.0
    release: float = 7200.0

    def of(self, question: bytes) -> float:
        """Return how long the answer to a message of the protocol may take."""
        if _is_greeting(question):
            return self.greeting
        return self.release if question[2:5] == b"Ask" else self.masks


@dataclass(frozen=True)
class Revocable:
    """Answers that nobody gets any more, not even those that were kept, once they are revoked.

    Attributes
    ----------
    handle : callable
        Bytes in, bytes out; must not raise.
    stands : callable
        Whether an answer may be handed out at this moment; must not raise.
    """

    handle: Handle
    stands: Callable[[], bool]

    def __call__(self, question: bytes) -> bytes:
        """Return the answer to a question."""
        return self.handle(question)


class Desk:
    """A site's end: takes parcels, has them handled, and hands out the answers.

    Parameters
    ----------
    handle : callable, optional
        Bytes in, bytes out; must not raise; asked before every answer whether it still stands if it is
        :class:`Revocable`. None for a site that does not take part.
    refusal : str
        Why it does not.
    hold : float
        How long to wait for an answer before saying that it is not ready.
    """

    def __init__(self, handle: Handle | None, refusal: str = "", hold: float = HOLD_SECONDS) -> None:
        self._handle, self._refusal, self._hold = handle, refusal, hold
        self._stands = handle.stands if isinstance(handle, Revocable) else lambda: True
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="capedjica")
        self._answers: dict[bytes, Future[bytes]] = {}
        self._lock = threading.Lock()

    def receive(self, parcel: bytes) -> bytes:
        """Return the slip for a parcel, whatever its bytes."""
        try:
            given = _parcels.decode(parcel)
        except (ValueError, RecursionError):
            return _slip("refused", b"a parcel that cannot be read")
        if given.version != VERSION:
            return _slip(
                "refused",
                f"this site runs capedjica {VERSION}, the aggregator {_plain(given.version)}".encode(),
            )
        try:
            return self._slip_for(self._answer(given))
        except ProtocolError as error:
            return _slip("refused", str(error).encode())

    def _slip_for(self, answer: Future[bytes] | None) -> bytes:
        if answer is None:
            return _slip("unknown", b"")
        wait([answer], timeout=self._hold)
        if answer.cancelled():
            raise ProtocolError(_CLOSED)
        if not answer.done():
            return _slip("busy", b"")
        # defence: kept-answers-are-revoked-too
        if not self._stands():
            raise ProtocolError(_REVOKED)
        return _slip("done", answer.result())

    def _answer(self, parcel: Parcel) -> Future[bytes] | None:
        """Return the answer under way, and begin it where the question is new."""
        with self._lock:
            known = self._answers.get(parcel.number)
            if known is not None or parcel.data is None:
                return known
            if self._handle is None:
                raise ProtocolError(self._refusal)
            self._forget()
            self._answers[parcel.number] = answer = self._workers.submit(self._handle, parcel.data)
            return answer

    def _forget(self) -> None:
        """Make room for one more; refuse where all that is kept is still being worked on."""
        ready = [number for number, answer in self._answers.items() if answer.done()]
        surplus = len(self._answers) - _KEPT + 1
        if surplus > len(ready):
            raise ProtocolError(f"{len(self._answers)} questions are being worked on: no more at once")
        for number in ready[: max(0, surplus)]:
            del self._answers[number]

    def close(self) -> None:
        """Take no more questions; what is being worked on ends by itself."""
        with self._lock:
            self._handle, self._refusal = None, _CLOSED
        self._workers.shutdown(wait=False, cancel_futures=True)


@dataclass
class Courier:
    """The aggregator's end: an exchange of messages over a network that loses some.

    Parameters
    ----------
    send : callable
        ``send(parcels, seconds)`` carries one parcel to each site and returns the slips that came in time.
    patience : Patience
        How long to wait.
    lost : dict
        Why a site was given up, by its name. It is asked for nothing but whether it is back, now and then.
    """

    send: Send
    patience: Patience = Patience()
    lost: dict[str, str] = field(default_factory=dict)
    _tried: dict[str, float] = field(default_factory=dict)

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Put questions to sites and return the answers of those that answered."""
        for question in questions.values():
            if len(question) > MAX_MESSAGE:
                raise ProtocolError(f"a message of {len(question):,} bytes is larger than {MAX_MESSAGE:,}")
        # The same question to several sites is the same parcel, which is packed once.
        number = secrets.token_bytes(8)
        trips = {
            name: _Trip(question, number, self.patience)
            for name, question in questions.items()
            if name not in self.lost or self._is_due(name, question)
        }
        answers: dict[str, bytes] = {}
        while trips:
            self._round(trips, answers)
        return answers

    def _is_due(self, name: str, question: bytes) -> bool:
        """Whether to see if a site that was given up is back: each attempt may cost the others a while."""
        now = time.monotonic()
        if not _is_greeting(question) or now - self._tried.get(name, 0.0) < self.patience.silence:
            return False
        self._tried[name] = now
        return True

    def _round(self, trips: dict[str, _Trip], answers: dict[str, bytes]) -> None:
        """Ask all that are left once."""
        parcels = {name: trip.parcel() for name, trip in trips.items()}
        slips = self.send(parcels, HOLD_SECONDS + TRANSIT_SECONDS)
        for name in parcels:
            self._take(name, trips, slips.get(name), answers)
        if trips and not any(name in slips for name in trips):
            time.sleep(_PAUSE_SECONDS)

    def _take(
        self, name: str, trips: dict[str, _Trip], data: bytes | None, answers: dict[str, bytes]
    ) -> None:
        trip = trips[name]
        slip = None if data is None else _read_slip(data)
        if slip is not None and slip.state == "done":
            answers[name] = slip.data
            self.lost.pop(name, None)
            del trips[name]
        elif slip is not None and slip.state == "refused":
            self._give_up(name, trips, slip.data.decode(errors="replace"))
        else:
            trip.heard(slip)
            reason = trip.over(name in self.lost)
            if reason is not None:
                self._give_up(name, trips, reason)

    def _give_up(self, name: str, trips: dict[str, _Trip], reason: str) -> None:
        if name not in self.lost:
            _log.warning("site %s is given up: %s", name, _plain(reason))
        self.lost[name] = _plain(reason)
        self._tried[name] = time.monotonic()
        del trips[name]

    def gather(self, names: Iterable[str], ended: Callable[[], bool] = lambda: False) -> None:
        """Wait until all sites have joined, or as long as the patience for it lasts."""
        missing, until = set(names), time.monotonic() + self.patience.joining
        while missing and time.monotonic() < until and not ended():
            number = secrets.token_bytes(8)
            probe = _encode(Parcel(VERSION, number, None))
            slips = self.send(dict.fromkeys(sorted(missing), probe), TRANSIT_SECONDS)
            missing -= set(slips)
            if missing:
                time.sleep(_PAUSE_SECONDS)
        for name in missing:
            self.lost[name] = "did not join"
            _log.warning("site %s did not join", name)


class _Trip:
    """One question to one site, until it is answered or given up."""

    def __init__(self, question: bytes, number: bytes, patience: Patience) -> None:
        now = time.monotonic()
        self._question, self._number = question, number
        self._silence, self._last = patience.silence, now
        self._until = now + patience.of(question)
        self._delivered = False

    def parcel(self) -> bytes:
        return _encode(Parcel(VERSION, self._number, None if self._delivered else self._question))

    def heard(self, slip: Slip | None) -> None:
        """Note a sign of life, or that there was none: then the question itself may have got lost."""
        self._delivered = slip is not None and slip.state == "busy"
        if slip is not None:
            self._last = time.monotonic()

    def over(self, was_lost: bool) -> str | None:
        """Return why not to wait any longer, if so."""
        now = time.monotonic()
        if not self._delivered and (was_lost or now - self._last > self._silence):
            return "nothing was heard from it"
        return "it took too long" if now > self._until else None


def _is_greeting(question: bytes) -> bool:
    # A message begins with the head of its array and the head of the string that is its tag.
    return question[2:7] == b"Hello"


_encoder: Final = msgspec.msgpack.Encoder()
_parcels: Final = msgspec.msgpack.Decoder(Parcel)
_slips: Final = msgspec.msgpack.Decoder(Slip)


def _encode(parcel: Parcel) -> bytes:
    return _encoder.encode(parcel)


def _slip(state: Literal["done", "busy", "unknown", "refused"], data: bytes) -> bytes:
    return _encoder.encode(Slip(VERSION, state, data))


def _read_slip(data: bytes) -> Slip | None:
    """Return a site's slip; one that cannot be read is as good as none."""
    try:
        slip = _slips.decode(data)
    except (ValueError, RecursionError):
        return None
    if slip.version != VERSION and slip.state != "refused":
        words = f"it runs capedjica {_plain(slip.version)}, the aggregator {VERSION}"
        return Slip(VERSION, "refused", words.encode())
    if len(slip.data) > MAX_MESSAGE:
        words = f"an answer of {len(slip.data):,} bytes is larger than {MAX_MESSAGE:,}"
        return Slip(VERSION, "refused", words.encode())
    return slip


def _plain(text: str) -> str:
    """Return a peer's words as a person may see them: short, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:200])
