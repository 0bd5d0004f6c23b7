"""How the aggregator gets answers from far away: how long to wait for whom, and whom to give up."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from capedjica.errors import ProtocolError
from capedjica.flare.parcels import (
    HOLD_SECONDS,
    TRANSIT_SECONDS,
    VERSION,
    Slip,
    plain,
    read_slip,
    write_parcel,
)
from capedjica.flare.size_limits import MAX_MESSAGE

# Between two attempts at a site that cannot be reached.
_PAUSE_SECONDS: Final = 0.5

Send = Callable[[Mapping[str, bytes], float], Mapping[str, bytes]]

_log = logging.getLogger("capedjica.run")


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
            _log.warning("site %s is given up: %s", name, plain(reason))
        self.lost[name] = plain(reason)
        self._tried[name] = time.monotonic()
        del trips[name]

    def gather(self, names: Iterable[str], ended: Callable[[], bool] = lambda: False) -> None:
        """Wait until all sites have joined, or as long as the patience for it lasts."""
        missing, until = set(names), time.monotonic() + self.patience.joining
        while missing and time.monotonic() < until and not ended():
            number = secrets.token_bytes(8)
            probe = write_parcel(number, None)
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
        return write_parcel(self._number, None if self._delivered else self._question)

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


def _read_slip(data: bytes) -> Slip | None:
    """Return a site's slip; one that cannot be read is as good as none."""
    try:
        slip = read_slip(data)
    except (ValueError, RecursionError):
        return None
    if slip.version != VERSION and slip.state != "refused":
        words = f"it runs capedjica {plain(slip.version)}, the aggregator {VERSION}"
        return Slip(VERSION, "refused", words.encode())
    if len(slip.data) > MAX_MESSAGE:
        words = f"an answer of {len(slip.data):,} bytes is larger than {MAX_MESSAGE:,}"
        return Slip(VERSION, "refused", words.encode())
    return slip
