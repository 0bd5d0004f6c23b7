"""An in-memory ledger that makes the same decisions as the one on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from capedjica.privacy.ledger.books import Books
from capedjica.privacy.ledger.chain import Chain
from capedjica.privacy.ledger.entry import Detail, Entry, Kind
from capedjica.privacy.ledger.ledger import Ledger
from capedjica.privacy.ledger.policy import Policy


class MemoryChain(Chain):
    """Entries and messages in memory, without hashes or head, since no other process can reach them."""

    def __init__(self) -> None:
        self.path = self.head_path = Path(os.devnull)
        self.books = Books()
        self._entries: list[Entry] = []
        self._messages: dict[int, bytes] = {}
        self._pending: list[Entry] = []
        self._pid, self._lock, self._closed = os.getpid(), threading.RLock(), False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one consistent state."""
        with self._exclusive():
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Append all entries, or none if the block raises an error."""
        with self._exclusive():
            self._pending = []
            yield
            for entry in self._pending:
                self.books.apply(entry)
            self._entries += self._pending

    def append(
        self,
        kind: Kind,
        detail: Detail,
        study: bytes | None = None,
        block: int | None = None,
        attempt: int | None = None,
        slot: int | None = None,
        *,
        request: bytes | None = None,
        mu2: float | None = None,
        message: bytes | None = None,
    ) -> None:
        """Append one entry and its message."""
        seq = len(self._entries) + len(self._pending) + 1
        now, text = time.time_ns() // 1000, msgspec.json.encode(detail).decode()
        self._pending.append(Entry(seq, kind, now, study, block, attempt, slot, request, mu2, text, b""))
        if message is not None:
            self._messages[seq] = message

    def entries(self) -> list[Entry]:
        """Return all entries."""
        return list(self._entries)

    def message(self, entry: Entry) -> bytes:
        """Return the message of an entry."""
        return self._messages[entry.seq]

    def signed_head(self) -> bytes:
        """Return an empty head: there is no older copy that could be restored."""
        return b""

    def compare(self, data: bytes, source: str = "") -> int:
        """Accept any head, since it cannot belong to this ledger."""
        return 0

    def verify(self) -> int:
        """Return the number of entries: there is nothing to verify them against."""
        return len(self)

    def close(self) -> None:
        """Refuse any further use; entries stay in memory."""
        self._closed = True

    def __len__(self) -> int:
        return len(self._entries)


def memory_ledger(policy: Policy) -> Ledger:
    """Return a ledger for sites that run in one process, such as simulations."""
    return Ledger(MemoryChain(), policy)
