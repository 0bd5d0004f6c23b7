"""Which sums a site has already taken part in: the promise never to answer twice in one block."""

from __future__ import annotations

import threading
from typing import Protocol

from capedjica.errors import ProtocolError


class BlockRegister(Protocol):
    """The memory that outlives a restart.

    A site claims (block, attempt) before its first message leaves. As the secrets of a sum live in memory
    only, a site that restarts cannot continue a sum, and as a claim is granted once, it cannot begin it
    again with other keys and the same input.
    """

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Record (block, attempt) durably; raise ProtocolError unless it exceeds all claimed before."""


class MemoryBlockRegister:
    """A register for sites that live and die with their process."""

    def __init__(self) -> None:
        self._latest: dict[bytes, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Record (block, attempt); raise ProtocolError unless it exceeds all claimed before."""
        with self._lock:
            latest = self._latest.get(study_hash)
            if latest is not None and (block, attempt) <= latest:
                raise ProtocolError(
                    f"block {block}, attempt {attempt} was claimed before: the latest is block {latest[0]}, "
                    f"attempt {latest[1]}, and these only grow"
                )
            self._latest[study_hash] = (block, attempt)
