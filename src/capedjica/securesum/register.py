"""Which sums a site has already taken part in: the promise never to answer twice in one block."""

from __future__ import annotations

from typing import Protocol


class BlockRegister(Protocol):
    """The memory that outlives a restart.

    A site claims (block, attempt) before its first message leaves. As the secrets of a sum live in memory
    only, a site that restarts cannot continue a sum, and as a claim is granted once, it cannot begin it
    again with other keys and the same input.
    """

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Record (block, attempt) durably; raise ProtocolError unless it exceeds all claimed before."""
