"""How the aggregator gets answers from far away: how long to wait for whom, and whom to give up."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from capedjica.coordinator.flare.carrier import CarrierLostError
from capedjica.errors import ProtocolError
from capedjica.flare.parcels import HOLD_SECONDS, TRANSIT_SECONDS, write_parcel
from capedjica.flare.wire import MAX_MESSAGE
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import (
    Busy,
    ForgedReplyError,
    Refusal,
    Reply,
    Unknown,
    is_greeting,
    question_hash,
    read_reply,
)
from capedjica.tools.text import printable

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
        if is_greeting(question):
            return self.greeting
        return self.release if question[2:5] == b"Ask" else self.masks


@dataclass
class Courier:
    """The aggregator's end: an exchange of messages over a network that loses some, and forges some.

    What comes in a site's name and is not signed by it, for the question that was put, is as good as nothing:
    the site is asked again.

    Parameters
    ----------
    contract : Contract
        It has the keys of the sites.
    send : callable
        ``send(parcels, seconds)`` carries one parcel to each site and returns what came back in time;
        CarrierLostError if the carrier itself is lost, which is not a site's fault.
    patience : Patience
        How long to wait.
    lost : dict
        Why a site was given up, by its name. It is asked for nothing but whether it is back, now and then.
    """

    contract: Contract
    send: Send
    patience: Patience = Patience()
    lost: dict[str, str] = field(default_factory=dict)
    _tried: dict[str, float] = field(default_factory=dict)

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Put questions to sites and return the answers of those that answered."""
        for question in questions.values():
            if len(question) > MAX_MESSAGE:
                raise ProtocolError(f"a message of {len(question):,} bytes is larger than {MAX_MESSAGE:,}")
        trips = {
            name: _Trip(question, self.patience)
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
        if not is_greeting(question) or now - self._tried.get(name, 0.0) < self.patience.silence:
            return False
        self._tried[name] = now
        return True

    def _round(self, trips: dict[str, _Trip], answers: dict[str, bytes]) -> None:
        """Ask all that are left once."""
        parcels = {name: trip.parcel() for name, trip in trips.items()}
        try:
            replies = self.send(parcels, HOLD_SECONDS + TRANSIT_SECONDS)
        except CarrierLostError:
            for trip in trips.values():
                trip.excuse()
            return
        for name in parcels:
            self._take(name, trips, replies.get(name), answers)
        if trips and not any(name in replies for name in trips):
            time.sleep(_PAUSE_SECONDS)

    def _take(
        self, name: str, trips: dict[str, _Trip], data: bytes | None, answers: dict[str, bytes]
    ) -> None:
        trip = trips[name]
        reply = None if data is None else self._read(name, trip, data)
        if data is None or reply is None or isinstance(reply, Busy | Unknown):
            trip.heard(reply)
            reason = trip.over(name in self.lost)
            if reason is None:
                return
            self._give_up(name, reason)
        else:
            answers[name] = data
            # A refusal is for whoever asked; one of a site that takes no part is remembered here.
            if isinstance(reply, Refusal) and is_greeting(trip.question):
                self._give_up(name, reply.reason)
            else:
                self.lost.pop(name, None)
        del trips[name]

    def _read(self, name: str, trip: _Trip, data: bytes) -> Reply | None:
        """Return what a site said; None for what it did not say, or what cannot be read."""
        try:
            if len(data) > MAX_MESSAGE:
                raise ProtocolError(f"an answer of {len(data):,} bytes is larger than {MAX_MESSAGE:,}")
            return read_reply(data, self.contract, name, trip.hash)
        # defence: forged-replies-are-discarded
        except ForgedReplyError as error:
            if trip.doubt is None:
                _log.warning("%s; it is asked again", error)
            trip.doubt = str(error)
        except ProtocolError as error:
            trip.doubt = str(error)
        return None

    def _give_up(self, name: str, reason: str) -> None:
        if name not in self.lost:
            _log.warning("site %s is given up: %s", name, printable(reason))
        self.lost[name] = printable(reason)
        self._tried[name] = time.monotonic()

    def gather(self, names: Iterable[str]) -> None:
        """Wait until all sites have joined, or as long as the patience for it lasts."""
        missing, until = set(names), time.monotonic() + self.patience.joining
        while missing and time.monotonic() < until:
            hash_ = question_hash(secrets.token_bytes(16))
            probe = write_parcel(b"", hash_)
            try:
                replies = self.send(dict.fromkeys(sorted(missing), probe), TRANSIT_SECONDS)
            except CarrierLostError:
                until = time.monotonic() + self.patience.joining
                continue
            missing -= {name for name, data in replies.items() if self._is_there(name, data, hash_)}
            if missing:
                time.sleep(_PAUSE_SECONDS)
        for name in missing:
            self.lost[name] = "did not join"
            _log.warning("site %s did not join", name)

    def _is_there(self, name: str, data: bytes, hash_: bytes) -> bool:
        try:
            read_reply(data, self.contract, name, hash_)
        except ProtocolError:
            return False
        return True

    def tell(self, names: Iterable[str], notice: bytes) -> None:
        """Tell sites something to which there is no reply, as far as they can be reached."""
        with suppress(ProtocolError):
            self.send(dict.fromkeys(sorted(names), notice), TRANSIT_SECONDS)


class _Trip:
    """One question to one site, until it is answered or given up."""

    def __init__(self, question: bytes, patience: Patience) -> None:
        self.question, self.hash = question, question_hash(question)
        self.doubt: str | None = None
        self._patience, self._allowed = patience, patience.of(question)
        self._last = time.monotonic()
        self._until, self._delivered = self._last + self._allowed, False

    def parcel(self) -> bytes:
        return write_parcel(self.question, self.hash if self._delivered else None)

    def heard(self, reply: Reply | None) -> None:
        """Note a sign of life, or that there was none: then the question itself may have got lost."""
        self._delivered = isinstance(reply, Busy)
        if reply is not None:
            self._last, self.doubt = time.monotonic(), None

    def excuse(self) -> None:
        """Begin to count anew: nothing could be heard, and its site has to join another job first."""
        now, joining = time.monotonic(), self._patience.joining
        self._last = now + max(0.0, joining - self._patience.silence)
        self._until, self._delivered = now + joining + self._allowed, False

    def over(self, was_lost: bool) -> str | None:
        """Return why not to wait any longer, if so."""
        now = time.monotonic()
        if not self._delivered and (was_lost or now - self._last > self._patience.silence):
            return self.doubt or "nothing was heard from it"
        return "it took too long" if now > self._until else None
