"""How a site answers from far away: it takes parcels, works on each question once, and keeps the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from capedjica.errors import ProtocolError
from capedjica.flare.parcels import HOLD_SECONDS, VERSION, Parcel, plain, read_parcel, write_slip

# A release is computed while a block of masks is made: more is never under way at once.
_WORKERS: Final = 2
# Answers that may have got lost are kept, until as many newer questions were put.
_KEPT: Final = 4
_CLOSED: Final = "its part in this run has ended"
_REVOKED: Final = "it gives no answers any more"

Handle = Callable[[bytes], bytes]


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
            given = read_parcel(parcel)
        except (ValueError, RecursionError):
            return write_slip("refused", b"a parcel that cannot be read")
        if given.version != VERSION:
            return write_slip(
                "refused",
                f"this site runs capedjica {VERSION}, the aggregator {plain(given.version)}".encode(),
            )
        try:
            return self._slip_for(self._answer(given))
        except ProtocolError as error:
            return write_slip("refused", str(error).encode())

    def _slip_for(self, answer: Future[bytes] | None) -> bytes:
        if answer is None:
            return write_slip("unknown", b"")
        wait([answer], timeout=self._hold)
        if answer.cancelled():
            raise ProtocolError(_CLOSED)
        if not answer.done():
            return write_slip("busy", b"")
        # defence: kept-answers-are-revoked-too
        if not self._stands():
            raise ProtocolError(_REVOKED)
        return write_slip("done", answer.result())

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
