"""In-process transport that exchanges the same bytes as a network and can simulate its failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from capedjica.mechanisms.site.answering import Site

Direction = Literal["question", "answer"]


@dataclass(frozen=True)
class Letter:
    """One message in transit.

    Attributes
    ----------
    round : int
        Number of the exchange, from 0; overlapping exchanges of two threads may share it.
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
    """Deliver a letter once, unchanged."""
    return [letter.data]


@dataclass
class InProcessEngine:
    """Transport between the aggregator and the sites of this process, usable from several threads.

    Parameters
    ----------
    sites : dict
        The sites by name. Removing a site simulates a machine that is down; replacing it by another one with
        the same ledger simulates a restart.
    carrier : callable
        Returns the list of bytes to deliver instead of each letter. ``[]`` loses the letter, the same bytes
        twice repeat it, other bytes corrupt it. A letter held back and returned with a later one is delayed
        or out of order. The carrier may also change ``sites``.
    keep_transcript : bool
        Whether to keep every letter, that is, the view of an adversary on the network or of the aggregator.
    """

    sites: dict[str, Site]
    carrier: Carrier = faithful
    keep_transcript: bool = False
    transcript: list[Letter] = field(default_factory=list)
    _round: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver questions to sites and return the first answer of each site that answered."""
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
