"""A carrier of the aggregator's that forges: each first reply of s1 to a question is replaced by another.

Python imports this in every process whose PYTHONPATH has this folder; it changes the relay of FLARE's job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.after_import import after_import

RELAY = "capedjica.coordinator.flare.relay"
VICTIM, OTHER = "s1", "s2"


class Forger:
    """Forges in several ways by turns, and counts."""

    def __init__(self, send: Callable) -> None:
        self._send = send
        self._seen: set[bytes] = set()
        self._earlier: list[bytes] = []
        self._turn = 0

    def send(self, engine, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Send parcels, and forge what comes back from the victim where a question comes for the first time."""
        from capedjica.flare.parcels import Parcel, read_parcel

        replies = self._send(engine, parcels, seconds)
        parcel = read_parcel(parcels[VICTIM]) if VICTIM in parcels else None
        true = replies.get(VICTIM)
        if true is None or not isinstance(parcel, Parcel) or not parcel.data or parcel.hash in self._seen:
            return replies
        self._seen.add(parcel.hash)
        forged = self._forgery(true, replies.get(OTHER, b""))
        self._earlier.append(true)
        return replies | ({VICTIM: forged} if forged else {})

    def _forgery(self, true: bytes, others: bytes) -> bytes:
        forgeries = {
            "garbage": b"\x00" * 100,
            "cut short": true[:-1],
            "another's": others,
            "first": self._earlier[0] if self._earlier else b"",
            "latest": self._earlier[-1] if self._earlier else b"",
            "altered": bytes([*true[:-1], true[-1] ^ 1]),
        }
        kind = list(forgeries)[self._turn % len(forgeries)]
        self._turn += 1
        # In the job's folder, which is the only place that it may write to.
        with open(Path.home() / "forged.txt", "a") as told:
            told.write(f"{kind}\n" if forgeries[kind] else "")
        return forgeries[kind]


def _forge(relay) -> None:
    relay._send = Forger(relay._send).send


after_import(RELAY, _forge)
