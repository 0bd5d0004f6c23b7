"""Public parameters of a secure sum, agreed on before the first message: the roster and the block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from capedjica.errors import InputError, ProtocolError
from capedjica.securesum.identity import PublicIdentity

PROTOCOL_VERSION: Final = 1
HASH_BYTES: Final = 32
COUNTER_LIMIT: Final = 2**63


def framed(*parts: bytes) -> bytes:
    """Concatenate ``parts``, each preceded by its length, so that different lists give different bytes."""
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def default_threshold(n_sites: int) -> int:
    """Return t = floor(2S/3) + 1."""
    return 2 * n_sites // 3 + 1


def suitable_threshold(n_sites: int, n_colluding: int) -> int:
    """Return the default threshold, or the least t with 2t > S + S_C if that is larger."""
    return max(default_threshold(n_sites), least_threshold(n_sites, n_colluding))


def least_threshold(n_sites: int, n_colluding: int) -> int:
    """Return the least t with 2t > S + S_C."""
    return (n_sites + n_colluding) // 2 + 1


def default_colluding(n_sites: int) -> int:
    """Return S_C = max(1, ceil(S/3) - 1), since every site is a potential adversary."""
    return max(1, -(-n_sites // 3) - 1)


@dataclass(frozen=True)
class Roster:
    """The sites of a study in their agreed order, and how many of them may fail or collude.

    A site answers each round once. Splitting the S - S_C honest sites into two groups that each gather t
    answers with the help of the S_C colluding sites is only possible if 2t <= S + S_C. Such a threshold is
    refused: an aggregator could otherwise present a site as lost to one group and as surviving to the other.

    Parameters
    ----------
    sites : tuple of PublicIdentity
        Names and pinned keys, at least two.
    threshold : int
        t, the number of sites that must answer each round.
    n_colluding : int
        S_C, the number of sites that may collude with the aggregator.
    """

    sites: tuple[PublicIdentity, ...]
    threshold: int
    n_colluding: int

    def __post_init__(self) -> None:
        self._check_sites()
        n_sites, t, colluding = len(self.sites), self.threshold, self.n_colluding
        if not 0 <= colluding < n_sites:
            raise InputError(
                f"n_colluding must lie between 0 and {n_sites - 1} for {n_sites} sites, got {colluding}"
            )
        if not 2 <= t <= n_sites:
            raise InputError(f"threshold must lie between 2 and the number of sites {n_sites}, got {t}")
        # defence: threshold
        if 2 * t <= n_sites + colluding:
            raise InputError(
                f"threshold {t} is too low for {n_sites} sites of which {colluding} may collude: "
                f"2t > S + S_C needs at least {(n_sites + colluding) // 2 + 1}"
            )

    def _check_sites(self) -> None:
        if len(self.sites) < 2:
            raise InputError(f"a secure sum needs at least two sites, got {len(self.sites)}")
        for what, values in (
            ("name", [site.name for site in self.sites]),
            ("public key", [site.public_key for site in self.sites]),
        ):
            if len(set(values)) != len(values):
                raise InputError(f"two sites of the roster have the same {what}; each must be unique")

    @classmethod
    def of(
        cls, sites: Iterable[PublicIdentity], threshold: int | None = None, n_colluding: int | None = None
    ) -> Roster:
        """Return a roster, with the default threshold and number of colluding sites if not given."""
        ordered = tuple(sites)
        return cls(
            ordered,
            default_threshold(len(ordered)) if threshold is None else threshold,
            default_colluding(len(ordered)) if n_colluding is None else n_colluding,
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in the agreed order."""
        return tuple(site.name for site in self.sites)

    @cached_property
    def points(self) -> Mapping[str, int]:
        """The evaluation point of each site's share of a secret: its position in the roster, from 1."""
        return {name: place for place, name in enumerate(self.names, start=1)}

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of names and keys in order, the threshold and the number of colluding sites."""
        limits = (self.threshold.to_bytes(8), self.n_colluding.to_bytes(8))
        sites = (part for site in self.sites for part in (site.name.encode(), site.public_key))
        return hashlib.sha256(framed(b"capedjica/roster", *limits, *sites)).digest()

    def site(self, name: str) -> PublicIdentity:
        """Return the site with this name, which may come from an untrusted message."""
        if name not in self.points:
            raise ProtocolError(f"there is no site {name[:80]!r} in the roster")
        return self.sites[self.points[name] - 1]

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return ``names`` in the order of the roster."""
        wanted = set(names)
        return tuple(name for name in self.names if name in wanted)


@dataclass(frozen=True)
class SumParameters:
    """The public values of one secure sum.

    Parameters
    ----------
    study_hash : bytes
        32-byte hash of everything that the sites approved.
    roster : Roster
        The participating sites.
    length : int
        Number of words in each site's vector.
    block, attempt : int
        Number of this sum within the study; (block, attempt) only increases.
    """

    study_hash: bytes
    roster: Roster
    length: int
    block: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if len(self.study_hash) != HASH_BYTES:
            raise InputError(f"study_hash must have {HASH_BYTES} bytes, got {len(self.study_hash)}")
        if self.length < 1:
            raise InputError(f"length of the vectors to be summed must be at least 1, got {self.length}")
        for what, value in (("block", self.block), ("attempt", self.attempt)):
            if not 0 <= value < COUNTER_LIMIT:
                raise InputError(f"{what} must lie between 0 and 2^63 - 1, got {value}")

    @cached_property
    def context(self) -> bytes:
        """The context to which every key, commitment and associated data of this sum is bound."""
        counters = (PROTOCOL_VERSION.to_bytes(8), self.block.to_bytes(8), self.attempt.to_bytes(8))
        return framed(b"capedjica/securesum", *counters, self.study_hash, self.roster.hash)
