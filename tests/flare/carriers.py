"""A network that loses, repeats, delays and corrupts, in a time that passes only when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from capedjica.flare.parcels import VERSION, Parcel, Slip
from capedjica.mechanisms.messages import Ask, Begin, Hello, SlotPlan, Sum, encode
from capedjica.site.flare.desk import Desk

HASH = bytes(32)
HELLO = encode(Hello(2, HASH, b"", [], b"", bytes(16)))
BEGIN = encode(Begin(2, HASH, 0, ["a", "b"], [SlotPlan(0, 0.5)]))
SUM = encode(Sum(2, HASH, 0, b"words"))
ASK = encode(Ask(2, HASH, 0, 0, ["a", "b"], SlotPlan(0, 0.5), HASH, b"state"))

# What a parcel takes that arrives, and its slip.
TRIP_SECONDS = 0.02


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def read(parcel: bytes) -> Parcel:
    return msgspec.msgpack.decode(parcel, type=Parcel)


def slip(state: str, data: bytes = b"", version: str = VERSION) -> bytes:
    return msgspec.msgpack.encode(Slip(version, state, data))


@dataclass
class Worker:
    """A site that takes a while to answer, in the time of the clock, and may be cut off in between.

    Parameters
    ----------
    clock : Clock
        The time.
    takes : float
        Seconds from a question to its answer.
    gone : tuple of float
        From when until when, counted from the first parcel, nothing reaches it or comes back.
    """

    clock: Clock
    takes: float = 0.0
    gone: tuple[float, float] = (0.0, 0.0)
    hold: float = 2.0
    began: float | None = None
    asked: dict[bytes, float] = field(default_factory=dict)
    parcels: list[Parcel] = field(default_factory=list)

    def __call__(self, data: bytes) -> bytes | None:
        parcel = read(data)
        self.parcels.append(parcel)
        self.began = self.clock.now if self.began is None else self.began
        if self.gone[0] <= self.clock.now - self.began < self.gone[1]:
            return None
        if parcel.data is None and parcel.number not in self.asked:
            return slip("unknown")
        ready = self.asked.setdefault(parcel.number, self.clock.now + self.takes)
        self.clock.sleep(min(self.hold, max(0.0, ready - self.clock.now)))
        return slip("done", b"answer") if self.clock.now >= ready else slip("busy")

    @property
    def sent(self) -> list[bytes]:
        """The questions that travelled, however often."""
        return [parcel.data for parcel in self.parcels if parcel.data is not None]


class Network:
    """Carries parcels to sites; one from which nothing comes back costs the whole time allowed."""

    def __init__(self, clock: Clock, sites: Mapping[str, Callable[[bytes], bytes | None]]) -> None:
        self.clock, self.sites = clock, sites
        self.log: list[tuple[float, tuple[str, ...]]] = []

    def __call__(self, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        until = self.clock.now + seconds
        self.log.append((self.clock.now, tuple(parcels)))
        slips = {name: self.sites[name](parcel) for name, parcel in parcels.items()}
        self.clock.sleep(TRIP_SECONDS)
        if None in slips.values():
            self.clock.now = max(self.clock.now, until)
        return {name: slip for name, slip in slips.items() if slip is not None}


class Faulty:
    """The way to a real desk, on which something happens to each parcel in turn, and then nothing more."""

    def __init__(self, desk: Desk, faults: list[str]) -> None:
        self.desk, self.faults = desk, list(faults)

    def __call__(self, parcel: bytes) -> bytes | None:
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "lost on the way there":
            return None
        received = self.desk.receive(parcel)
        if fault == "repeated":
            return self.desk.receive(parcel)
        if fault == "cut short":
            return received[: len(received) // 2]
        return None if fault == "lost on the way back" else received
