"""A network that loses, repeats, delays and corrupts, in a time that passes only when somebody waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec

from capedjica.flare.parcels import Parcel
from capedjica.mechanisms.messages import (
    VERSION,
    Ask,
    Begin,
    Busy,
    Hello,
    Refusal,
    Reply,
    SlotPlan,
    Status,
    Sum,
    Unknown,
    encode,
    question_hash,
    sign_reply,
)
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster
from capedjica.site.agent.responder import Desk

HASH = bytes(32)
HELLO = encode(Hello(VERSION, HASH, b"", [], b"", bytes(16)))
BEGIN = encode(Begin(VERSION, HASH, 0, ["a", "b"], [SlotPlan(0, 0.5)]))
SUM = encode(Sum(VERSION, HASH, 0, b"words"))
ASK = encode(Ask(VERSION, HASH, 0, 0, ["a", "b"], SlotPlan(0, 0.5), HASH, b"state"))

KEYS = {name: Identity.generate() for name in ("a", "b", "c", "d", "dead", "well", "late", "never")}
# All that a courier needs to know of a contract.
CONTRACT = SimpleNamespace(hash=HASH, roster=Roster.of([key.public(name) for name, key in KEYS.items()]))

# What a parcel takes that arrives, and its reply.
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


def status(name: str) -> Status:
    return Status(VERSION, HASH, name, 0, 0.0, b"", "user")


def said(name: str, hash_: bytes, reply: Reply | bytes | None = None, key: str | None = None) -> bytes:
    """Return what a site says to the question of a hash, signed by its own key or another's."""
    return sign_reply(KEYS[key or name], hash_, status(name) if reply is None else reply)


def answer(name: str, question: bytes) -> bytes:
    """Return a site's answer to a question."""
    return said(name, question_hash(question))


def answers(names: str | list[str], question: bytes) -> dict[str, bytes]:
    return {name: answer(name, question) for name in names}


def busy(name: str, hash_: bytes) -> bytes:
    return said(name, hash_, Busy(VERSION, HASH, name))


def unknown(name: str, hash_: bytes) -> bytes:
    return said(name, hash_, Unknown(VERSION, HASH, name))


def refusal(name: str, hash_: bytes, reason: str) -> bytes:
    return said(name, hash_, Refusal(VERSION, HASH, name, reason))


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

    def __call__(self, name: str, data: bytes) -> bytes | None:
        parcel = read(data)
        self.parcels.append(parcel)
        self.began = self.clock.now if self.began is None else self.began
        if self.gone[0] <= self.clock.now - self.began < self.gone[1]:
            return None
        if parcel.data is None and parcel.hash not in self.asked:
            return unknown(name, parcel.hash)
        ready = self.asked.setdefault(parcel.hash, self.clock.now + self.takes)
        self.clock.sleep(min(self.hold, max(0.0, ready - self.clock.now)))
        return said(name, parcel.hash) if self.clock.now >= ready else busy(name, parcel.hash)

    @property
    def sent(self) -> list[bytes]:
        """The questions that travelled, however often."""
        return [parcel.data for parcel in self.parcels if parcel.data is not None]


class Network:
    """Carries parcels to sites; one from which nothing comes back costs the whole time allowed."""

    def __init__(self, clock: Clock, sites: Mapping[str, Callable[[str, bytes], bytes | None]]) -> None:
        self.clock, self.sites = clock, sites

    def __call__(self, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        until = self.clock.now + seconds
        replies = {name: self.sites[name](name, parcel) for name, parcel in parcels.items()}
        self.clock.sleep(TRIP_SECONDS)
        if None in replies.values():
            self.clock.now = max(self.clock.now, until)
        return {name: reply for name, reply in replies.items() if reply is not None}


class Signer:
    """A party at a desk: signs as a site does, and counts what it worked on."""

    def __init__(
        self, name: str = "a", work: Callable[[bytes], Reply | None] = lambda question: None
    ) -> None:
        self.name, self.work = name, work
        self.ran: Counter[bytes] = Counter()
        self.standing = True
        self.notices: list[object] = []

    def handle(self, question: bytes) -> bytes:
        self.ran[question] += 1
        return said(self.name, question_hash(question), self.work(question))

    def stands(self) -> bool:
        return self.standing

    def reply(self, hash_: bytes, kind: type[Reply], *reason: str) -> bytes:
        return said(self.name, hash_, kind(VERSION, HASH, self.name, *reason))

    def notice(self, notice: object) -> None:
        self.notices.append(notice)


class Faulty:
    """The way to a real desk, on which something happens to each parcel in turn, and then nothing more."""

    def __init__(self, desk: Desk, faults: list[str]) -> None:
        self.desk, self.faults = desk, list(faults)

    def __call__(self, name: str, parcel: bytes) -> bytes | None:
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "lost on the way there":
            return None
        received = self.desk.receive(parcel)
        match fault:
            case "repeated":
                return self.desk.receive(parcel)
            case "cut short":
                return received[: len(received) // 2]
            case "changed":
                return received[:-1] + bytes([received[-1] ^ 1])
            case "lost on the way back":
                return None
            case "emptied":
                return b""
        return received
