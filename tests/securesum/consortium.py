"""A consortium in one process: real sites and a real aggregator, with sites that go silent when told to."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np

from benchmarks.sum_in_process import MemoryBlockRegister
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster, SumParameters
from capedjica.securesum.site import SiteSum

STUDY = bytes(range(32))
ROUNDS = 5


class Consortium:
    """Sites a, b, c... with random vectors; every call of `sum` is a new attempt."""

    def __init__(self, n_sites, length=3, threshold=None, n_colluding=None, block=0):
        self.identities = {site_name(i): Identity.generate() for i in range(n_sites)}
        roster = Roster.of((i.public(n) for n, i in self.identities.items()), threshold, n_colluding)
        self.parameters = SumParameters(STUDY, roster, length, block)
        self.registers = {name: MemoryBlockRegister() for name in roster.names}
        self.vectors = {name: random_words(length) for name in roster.names}

    @property
    def names(self):
        return self.parameters.roster.names

    @property
    def threshold(self):
        return self.parameters.roster.threshold

    def site(self, name, parameters=None):
        return SiteSum(
            parameters or self.parameters,
            self.identities[name],
            name,
            self.vectors[name],
            self.registers[name],
        )

    def sites(self):
        return {name: self.site(name) for name in self.names}

    def next_attempt(self, blocks=0):
        p = self.parameters
        attempt = 0 if blocks else p.attempt + 1
        self.parameters = SumParameters(p.study_hash, p.roster, p.length, p.block + blocks, attempt)

    def expected(self, survivors):
        return sum((self.vectors[name] for name in survivors), np.zeros_like(self.vectors[self.names[0]]))


def site_name(index):
    return f"site-{index:03d}"


def random_words(length):
    return np.frombuffer(secrets.token_bytes(8 * length), dtype=np.uint64)


def carry(sites, aggregator, lost: Mapping[str, int] = {}, up_to=ROUNDS):
    """Carry messages for rounds 1..up_to; a site with lost[name] = k falls silent before its k-th message.

    Returns what the sites hold for the aggregator in the round after.
    """
    outgoing = {name: site.start() for name, site in sites.items()}
    for number in range(1, up_to + 1):
        for name, data in outgoing.items():
            if lost.get(name, ROUNDS + 1) > number:
                aggregator.receive(data)
        messages = aggregator.advance()
        outgoing = {
            name: sites[name].receive(data)
            for name, data in messages.items()
            if lost.get(name, ROUNDS + 1) > number
        }
    return outgoing
