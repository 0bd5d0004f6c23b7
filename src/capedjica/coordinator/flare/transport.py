"""Exchange of messages with remote sites: time limits, retries, and lost sites."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
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

# Pause between two attempts to reach a site.
_PAUSE_SECONDS: Final = 0.5

Send = Callable[[Mapping[str, bytes], float], Mapping[str, bytes]]

_log = logging.getLogger("capedjica.run")


@dataclass(frozen=True)
class Patience:
    """Time limits, in seconds.

    Parameters
    ----------
    joining : float
        For all sites to join when a run starts.
    silence : float
        After which a silent site counts as lost.
    greeting, masks, release : float
        For the answer of a responding site, by kind of request.
    """

    joining: float = 120.0
    silence: float = 60.0
    greeting: float = 120.0
    masks: float = 900.0
    release: float = 7200.0

    def of(self, question: bytes) -> float:
        """Return the time limit for the answer to a message of the protocol."""
        if is_greeting(question):
            return self.greeting
        return self.release if question[2:5] == b"Ask" else self.masks


@dataclass
class Courier:
    """Exchange of messages over a network that may lose or forge some of them.

    A reply that is not signed by the site for exactly this request is discarded, and the site is asked again.

    Parameters
    ----------
    contract : Contract
        Contract with the public keys of the sites.
    send : callable
        ``send(parcels, seconds)`` carries one parcel to each site and returns the replies that arrived in
        time; it raises CarrierLostError if the carrier itself is lost, which is not a site's fault.
    patience : Patience
        Time limits.
    lost : dict
        Reasons why sites count as lost, by name. Such a site is only asked from time to time whether it is
        back.
    """

    contract: Contract
    send: Send
    patience: Patience = Patience()
    lost: dict[str, str] = field(default_factory=dict)
    _tried: dict[str, float] = field(default_factory=dict)

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send requests to sites and return the answers received."""
        for question in questions.values():
            if len(question) > MAX_MESSAGE:
                raise ProtocolError(
                    f"a message has {len(question):,} bytes; at most {MAX_MESSAGE:,} are allowed"
                )
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
        """Return whether to check if a lost site is back; each check may delay the others."""
        now = time.monotonic()
        if not is_greeting(question) or now - self._tried.get(name, 0.0) < self.patience.silence:
            return False
        self._tried[name] = now
        return True

    def _round(self, trips: dict[str, _Trip], answers: dict[str, bytes]) -> None:
        """Send each pending request once."""
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
            # A refusal is passed to the caller; if it answers a greeting, the site does not participate.
            if isinstance(reply, Refusal) and is_greeting(trip.question):
                self._give_up(name, reply.reason)
            else:
                self.lost.pop(name, None)
        del trips[name]

    def _read(self, name: str, trip: _Trip, data: bytes) -> Reply | None:
        """Return the reply of a site; None if it is forged or cannot be decoded."""
        try:
            if len(data) > MAX_MESSAGE:
                raise ProtocolError(f"an answer has {len(data):,} bytes; at most {MAX_MESSAGE:,} are allowed")
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
            _log.warning("site %s counts as lost: %s", name, printable(reason))
        self.lost[name] = printable(reason)
        self._tried[name] = time.monotonic()

    def gather(self, names: Collection[str], connected: Collection[str] | None = None) -> None:
        """Wait until all sites, or all connected sites, have joined; others may join meanwhile."""
        missing, until = set(names), time.monotonic() + self.patience.joining
        awaited = names if connected is None else connected
        while not missing.isdisjoint(awaited) and time.monotonic() < until:
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
        """Send a notice without a reply to all sites that can be reached."""
        with suppress(ProtocolError):
            self.send(dict.fromkeys(sorted(names), notice), TRANSIT_SECONDS)


class _Trip:
    """One request to one site, until it is answered or the site counts as lost."""

    def __init__(self, question: bytes, patience: Patience) -> None:
        self.question, self.hash = question, question_hash(question)
        self.doubt: str | None = None
        self._patience, self._allowed = patience, patience.of(question)
        self._last = time.monotonic()
        self._until, self._delivered = self._last + self._allowed, False

    def parcel(self) -> bytes:
        return write_parcel(self.question, self.hash if self._delivered else None)

    def heard(self, reply: Reply | None) -> None:
        """Record a reply, or its absence; in that case the request itself may have been lost."""
        self._delivered = isinstance(reply, Busy)
        if reply is not None:
            self._last, self.doubt = time.monotonic(), None

    def excuse(self) -> None:
        """Restart the time limits: the carrier was lost, and the site must first join another job."""
        now, joining = time.monotonic(), self._patience.joining
        self._last = now + max(0.0, joining - self._patience.silence)
        self._until, self._delivered = now + joining + self._allowed, False

    def over(self, was_lost: bool) -> str | None:
        """Return why the site counts as lost; None to keep waiting."""
        now = time.monotonic()
        if not self._delivered and (was_lost or now - self._last > self._patience.silence):
            return self.doubt or "no reply"
        return "time limit exceeded" if now > self._until else None
