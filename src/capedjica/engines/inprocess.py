"""All parties in one process, exchanging the bytes that a network would carry, and able to fail like one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from capedjica.mechanisms.site.answering import Site

Direction = Literal["question", "answer"]


@dataclass(frozen=True)
class Letter:
    """One message on its way.

    Attributes
    ----------
    round : int
        Number of the exchange, from 0; exchanges of two threads that overlap may share it.
    site : str
        The site it goes to or comes from.
    direction : {"question", "answer"}
        From the aggregator, or to it.
    data : bytes
        The message itself.
    """

    round: int
    site: str
    direction: Direction
    data: bytes


Carrier = Callable[[Letter], list[bytes]]


def faithful(letter: Letter) -> list[bytes]:
    """Deliver a letter once, as it is."""
    return [letter.data]


@dataclass
class InProcessEngine:
    """Carries messages between the aggregator and sites of this process, from several threads if need be.

    Parameters
    ----------
    sites : dict
        The sites by name. A site taken out is a machine that is down; another one put in its place, with
        the same ledger, is a restart.
    carrier : callable
        Decides what becomes of each letter: the list of what is delivered in its place. ``[]`` loses it,
        twice the same repeats it, other bytes corrupt it. A letter kept back and returned with a later
        one is late, or out of order. The carrier may also change ``sites``.
    keep_transcript : bool
        Whether to keep every letter: what an adversary on the wire, or the aggregator, sees.
    """

    sites: dict[str, Site]
    carrier: Carrier = faithful
    keep_transcript: bool = False
    transcript: list[Letter] = field(default_factory=list)
    _round: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver questions to sites and return the first answer of each that has one."""
        answers: dict[str, bytes] = {}
        for name, question in questions.items():
            for data in self._carry(Letter(self._round, name, "question", question)):
                if name not in self.sites:
                    continue
                for answer in self._carry(Letter(self._round, name, "answer", self.sites[name].handle(data))):
                    answers.setdefault(name, answer)
        with self._counting:
            self._round += 1
        return answers

    def _carry(self, letter: Letter) -> list[bytes]:
        with self._counting:
            if self.keep_transcript:
                self.transcript.append(letter)
        return self.carrier(letter)
