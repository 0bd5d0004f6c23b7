"""What a long line does to packets: each is delayed, some are dropped; without a clock or a socket."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

# Packets on their way at any time; more are dropped, as by a router whose queue is full.
MOST_PACKETS: Final = 20_000
_IPV4_HEADER: Final = 20


def ends(packet: bytes) -> tuple[bytes, bytes] | None:
    """Return the source and destination of an IPv4 packet; None for anything else."""
    if len(packet) < _IPV4_HEADER or packet[0] >> 4 != 4:
        return None
    return packet[12:16], packet[16:20]


@dataclass
class Line:
    """Lines between all pairs of places, each with the same one-way delay and rate of loss.

    The fate of a packet is drawn from the seed, its direction and its number in that direction, so that it
    does not depend on when packets of other directions happen to arrive.

    Parameters
    ----------
    delay : float
        Seconds from one end to the other.
    loss : float
        Probability that a packet is dropped.
    seed : int
        Seed of the losses.
    """

    delay: float
    loss: float
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    _draws: dict[tuple[bytes, bytes], random.Random] = field(default_factory=dict)
    _queue: list[tuple[float, int, bytes, bytes]] = field(default_factory=list)
    _number: int = 0

    def enter(self, packet: bytes, now: float) -> None:
        """Take a packet at time ``now``: drop it, or keep it until it is due."""
        found = ends(packet)
        if found is None:
            self.counts["ignored"] += 1
        elif self._draw(found).random() < self.loss:
            self.counts["dropped"] += 1
        elif len(self._queue) >= MOST_PACKETS:
            self.counts["overflowed"] += 1
        else:
            self._number += 1
            heapq.heappush(self._queue, (now + self.delay, self._number, found[1], packet))

    def _draw(self, direction: tuple[bytes, bytes]) -> random.Random:
        if direction not in self._draws:
            self._draws[direction] = random.Random(f"{self.seed} {direction[0].hex()} {direction[1].hex()}")
        return self._draws[direction]

    def due(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return the destination and the bytes of each packet that has arrived by ``now``, in order."""
        arrived = []
        while self._queue and self._queue[0][0] <= now:
            _, _, destination, packet = heapq.heappop(self._queue)
            arrived.append((destination, packet))
        self.counts["delivered"] += len(arrived)
        return arrived

    def next_due(self) -> float | None:
        """Return when the next packet arrives; None if none is on its way."""
        return self._queue[0][0] if self._queue else None
