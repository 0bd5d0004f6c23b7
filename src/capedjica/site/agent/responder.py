"""The site's end of the transport: receives parcels, processes each question once and keeps the answers."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from capedjica.errors import ProtocolError
from capedjica.flare.parcels import HOLD_SECONDS, Notice, Parcel, read_parcel
from capedjica.mechanisms.messages import VERSION, Busy, Refusal, Unknown, is_refusal, question_hash
from capedjica.site.agent.study_session import SiteParty

# At most one release and one block of masks are computed at a time.
_WORKERS: Final = 2
# Number of answers kept in case they were lost in transit.
_KEPT: Final = 4
_CLOSED: Final = "its part in this run has ended"
_REVOKED: Final = "it no longer answers"


class Desk:
    """Receives parcels, passes their questions to the party and returns the answers.

    The methods of the party must not raise. ``hold`` is the time in seconds to wait for an answer before
    replying that the site is busy.
    """

    def __init__(self, party: SiteParty, hold: float = HOLD_SECONDS) -> None:
        self._party, self._hold = party, hold
        self._closed = False
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="capedjica")
        self._answers: dict[bytes, Future[bytes]] = {}
        self._lock = threading.Lock()

    def receive(self, data: bytes) -> bytes:
        """Return a signed reply to a parcel; empty for a notice or bytes that are not a parcel."""
        try:
            parcel = read_parcel(data)
        except ProtocolError:
            return b""
        if isinstance(parcel, Notice):
            self._party.notice(parcel)
            return b""
        try:
            return self._reply(parcel)
        except ProtocolError as error:
            return self._party.reply(parcel.hash, Refusal, str(error))

    def _reply(self, parcel: Parcel) -> bytes:
        if parcel.version != VERSION:
            raise ProtocolError(
                f"this site speaks version {VERSION} of the protocol, the aggregator {parcel.version}"
            )
        answer = self._answer(parcel)
        if answer is None:
            return self._party.reply(parcel.hash, Unknown)
        wait([answer], timeout=self._hold)
        if answer.cancelled():
            raise ProtocolError(_CLOSED)
        if not answer.done():
            return self._party.reply(parcel.hash, Busy)
        # defence: kept-answers-are-revoked-too
        if not self._party.stands():
            raise ProtocolError(_REVOKED)
        return answer.result()

    def _answer(self, parcel: Parcel) -> Future[bytes] | None:
        """Return the pending or finished answer; start it if the question is new."""
        with self._lock:
            known = self._answers.get(parcel.hash)
            if parcel.data is None or (known is not None and not _was_refused(known)):
                return known
            if question_hash(parcel.data) != parcel.hash:
                raise ProtocolError("the question does not match the hash in its parcel")
            if self._closed:
                raise ProtocolError(_CLOSED)
            self._answers.pop(parcel.hash, None)
            self._forget()
            self._answers[parcel.hash] = answer = self._workers.submit(self._party.handle, parcel.data)
            return answer

    def _forget(self) -> None:
        """Make room for one more answer; refuse if all kept answers are still in progress."""
        ready = [hash_ for hash_, answer in self._answers.items() if answer.done()]
        surplus = len(self._answers) - _KEPT + 1
        if surplus > len(ready):
            raise ProtocolError(f"{len(self._answers)} questions are in progress; no more are accepted")
        for hash_ in ready[: max(0, surplus)]:
            del self._answers[hash_]

    def close(self) -> None:
        """Accept no more questions; answers in progress are completed."""
        with self._lock:
            self._closed = True
        self._workers.shutdown(wait=False, cancel_futures=True)


def _was_refused(answer: Future[bytes]) -> bool:
    """Return whether the answer is a refusal; a repeated question is then processed again."""
    return answer.done() and not answer.cancelled() and is_refusal(answer.result())
