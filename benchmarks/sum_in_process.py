"""Whole secure sums in one process, over the real bytes of the protocol."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import ProtocolError
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster, SumParameters
from capedjica.securesum.site import SiteSum


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


@dataclass
class SumInProcess:
    """All parties of one secure sum, and the bytes that each site sent and received.

    Parameters
    ----------
    n_sites, length : int
        Number of sites, and of words in each vector.
    """

    n_sites: int
    length: int
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.identities = {f"site-{place:03d}": Identity.generate() for place in range(self.n_sites)}
        roster = Roster.of(identity.public(name) for name, identity in self.identities.items())
        self.parameters = SumParameters(bytes(32), roster, self.length, block=0)
        self.aggregator = AggregatorSum(self.parameters)

    def site(self, name: str, vector: NDArray[np.uint64]) -> SiteSum:
        """Make the site called ``name``."""
        return SiteSum(self.parameters, self.identities[name], name, vector, MemoryBlockRegister())

    def collect(self, answers: dict[str, bytes]) -> dict[str, bytes]:
        """Hand one round of answers to the aggregator and return its next requests."""
        for name, answer in answers.items():
            self.sent[name] += len(answer)
            self.aggregator.receive(answer)
        requests = self.aggregator.advance()
        for name, request in requests.items():
            self.received[name] += len(request)
        return requests

    def run(self) -> None:
        """Run the sum of ones and check it."""
        ones = np.ones(self.length, dtype=np.uint64)
        sites = {name: self.site(name, ones) for name in self.identities}
        requests = self.collect({name: site.start() for name, site in sites.items()})
        while not self.aggregator.done:
            requests = self.collect({name: sites[name].receive(data) for name, data in requests.items()})
        assert np.all(self.aggregator.result == self.n_sites)
