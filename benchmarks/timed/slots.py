"""What those with a clock in hand have in common; for benchmarks only."""

from __future__ import annotations

from typing import Final

import msgspec

TIMES: Final = "times.json"


def slot_of(question: bytes) -> tuple[float, float]:
    """Return the block and the slot that a question is about."""
    _, _, _, block, slot, *_ = msgspec.msgpack.decode(question)
    return block, slot
