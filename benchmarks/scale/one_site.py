"""One site of a secure sum beside peers of whom only the messages exist.

A whole sum of S sites in one process does the work of S sites, S^2 and more. What one hospital has to do can
be measured for far more sites: its peers' messages are made by the same keys and encodings as a site would
make them, and only the time of the one site counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.scale.workloads import Cost
from benchmarks.sum_in_process import MemoryBlockRegister
from capedjica.securesum import shamir
from capedjica.securesum.commitments import survivors_hash
from capedjica.securesum.identity import AGGREGATOR, Identity
from capedjica.securesum.messages import (
    Advertisement,
    Agreement,
    AgreementList,
    KeyList,
    Message,
    ShareList,
    SurvivorList,
    encode,
    encode_payload,
    header,
    sign,
)
from capedjica.securesum.parameters import Roster, SumParameters
from capedjica.securesum.site import _NONCE, SiteSum, _associated_data


class OneSite:
    """One site and the messages of its peers.

    Parameters
    ----------
    n_sites, length : int
        Number of sites, and of words in each vector.
    """

    def __init__(self, n_sites: int, length: int) -> None:
        self.identities = {f"site-{place:04d}": Identity.generate() for place in range(n_sites)}
        roster = Roster.of(identity.public(name) for name, identity in self.identities.items())
        self.parameters = SumParameters(bytes(32), roster, length, block=0)
        self.name, *self.peers = roster.names
        ones = np.ones(length, dtype=np.uint64)
        own = self.identities[self.name]
        self.site = SiteSum(self.parameters, own, self.name, ones, MemoryBlockRegister())
        self.seconds, self.cpu, self.sent, self.received = 0.0, 0.0, 0, 0

    def run(self) -> Cost:
        """Take the site through all rounds."""
        first = self._timed(self.site.start)
        self._ask(KeyList(*self._centre(), (first, *map(self._advertisement, self.peers))))
        self._ask(ShareList(*self._centre(), {peer: self._envelope(peer) for peer in self.peers}))
        everybody = self.parameters.roster.names
        agreement = self._ask(SurvivorList(*self._centre(), everybody))
        self._ask(AgreementList(*self._centre(), (agreement, *map(self._agreement, self.peers))))
        assert self.site.done
        assert self.site.survivors == everybody
        return Cost(self.seconds, self.cpu, self.cpu, self.sent, self.sent + self.received)

    def _ask(self, message: Message) -> bytes:
        data = encode(message)
        self.received += len(data)
        return self._timed(lambda: self.site.receive(data))

    def _timed(self, answer: Callable[[], bytes]) -> bytes:
        wall, cpu = time.perf_counter(), time.process_time()
        given = answer()
        self.seconds += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        self.sent += len(given)
        return given

    def _centre(self) -> tuple[int, bytes, bytes, int, int, str]:
        return header(self.parameters, AGGREGATOR)

    def _signed(self, message: Message) -> bytes:
        return sign(encode_payload(message), self.identities[message.sender])

    def _advertisement(self, peer: str) -> bytes:
        keys = (X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(2))
        return self._signed(Advertisement(*header(self.parameters, peer), *keys))

    def _envelope(self, peer: str) -> bytes:
        """Return two shares, sealed by the key that both sides derive; a site cannot judge their values."""
        assert self.site._secrets is not None
        shares = b"".join(b"\0" + os.urandom(shamir.SHARE_BYTES - 1) for _ in range(2))
        key, about = self.site._secrets.unseal[peer], _associated_data(self.parameters, peer, self.name)
        return AESGCM(key).encrypt(_NONCE, shares, about)

    def _agreement(self, peer: str) -> bytes:
        agreed = survivors_hash(self.parameters, self.parameters.roster.names)
        return self._signed(Agreement(*header(self.parameters, peer), agreed))


def run_one_site(n_sites: int, length: int) -> Cost:
    """Return the cost of one site in a secure sum with so many sites."""
    return OneSite(n_sites, length).run()
