"""The secure sum against Flower's SecAgg+: masking, secret sharing, bytes and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import (
    ROOT,
    Measure,
    Row,
    Section,
    amount_row,
    duration_row,
    interleaved,
    timed,
)
from benchmarks.peers.process import Peer, PeerUnavailableError
from benchmarks.site_memory import LENGTH as MEMORY_LENGTH
from benchmarks.sum_in_process import SumInProcess
from capedjica.securesum import shamir
from capedjica.securesum.masks import agree, apply_masks, pairwise_mask, self_mask
from capedjica.securesum.ring import FixedPoint

PEERS: Final = 9
LENGTH: Final = 400_000
SHAMIR_SITES: Final = 100
SHAMIR_THRESHOLD: Final = 67
SECRETS: Final = 2 * SHAMIR_SITES
REPETITIONS: Final = {"masks": 25, "masked input": 25, "shamir": 5}
TRAFFIC: Final = ((5, 1_000), (20, 1_000), (100, 1_000), (5, 100_000), (20, 100_000), (50, 30_000))


def run(console: Console) -> Section:
    """Measure every row."""
    rows = _against_flower(console)
    console.print("counting the bytes of whole secure sums ...")
    traffic_rows, fits = _traffic()
    rows += [*traffic_rows, *_memory()]
    return Section(
        "securesum",
        "Secure sum",
        rows,
        (
            "masks: ten streams of 400,000 words expanded and added; masked input: quantise and agree too.",
            "Flower expands a 32-bit seed by the Mersenne twister modulo 2^32, ours is AES-256 modulo 2^64.",
            f"Shamir: {SECRETS} secrets of 32 bytes split for 100 sites, 67 shares of each combined, weights",
            "computed afresh; of Flower one secret is timed and multiplied, as each costs it the same.",
            *fits,
        ),
    )


def _against_flower(console: Console) -> list[Row]:
    masking = _Masking()
    ours: dict[str, tuple[str, Measure, int, float]] = {
        "masks": (f"masks for {PEERS} peers, {LENGTH:,} values", timed(masking.masks), 1, 3),
        "masked input": (
            f"masked input for {PEERS} peers, {LENGTH:,} values",
            timed(masking.masked_input),
            1,
            3,
        ),
        "shamir": (f"Shamir, {SHAMIR_SITES} sites, one round", timed(_shamir_round), SECRETS, 50),
    }
    try:
        with Peer("flower_secagg", "flower", "flwr>=1.41,<1.42", console) as peer:
            rows = []
            for task, (what, measure, factor, target) in ours.items():
                mine, theirs = interleaved(measure, peer.measure(task), REPETITIONS[task])
                name = f"Flower {peer.version}" + (f", one secret x {factor}" if factor > 1 else "")
                rows.append(duration_row(what, mine, factor * theirs, name, target))
            return rows
    except PeerUnavailableError as error:
        return [
            duration_row(what, measure(), None, f"not measured: {error}", target)
            for what, measure, _, target in ours.values()
        ]


class _Masking:
    """One site of ten, about to mask its vector."""

    def __init__(self) -> None:
        self._parameters = SumInProcess(PEERS + 1, LENGTH).parameters
        self._grid = FixedPoint(step=2.0**-20, bound=8.0, n_terms=PEERS + 1)
        self._values = np.random.default_rng(0).uniform(-8, 8, LENGTH)
        self._encoded = self._grid.encode(self._values)
        self._seed = os.urandom(32)
        self._private = X25519PrivateKey.generate()
        self._public = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(PEERS)]
        self._shared = self._agree()

    def _agree(self) -> list[bytes]:
        return [agree(self._private, public, "peer") for public in self._public]

    def _add_masks(self, words: NDArray[np.uint64], shared: list[bytes]) -> None:
        me, *peers = self._parameters.roster.names
        streams = [
            pairwise_mask(key, self._parameters, me, peer) for key, peer in zip(shared, peers, strict=True)
        ]
        apply_masks(words, [self_mask(self._seed, self._parameters, me), *streams[::2]], streams[1::2])

    def masks(self) -> None:
        """Expand ten masks and add them to encoded values."""
        self._add_masks(self._encoded.copy(), self._shared)

    def masked_input(self) -> None:
        """Quantise, agree on the keys, expand and add."""
        self._add_masks(self._grid.encode(self._values), self._agree())


def _shamir_round() -> None:
    shamir.lagrange_weights.cache_clear()
    points = range(1, SHAMIR_SITES + 1)
    for _ in range(SECRETS):
        secret = os.urandom(shamir.SECRET_BYTES)
        shares = shamir.split(secret, SHAMIR_THRESHOLD, points)
        held = {point: shares[point] for point in points[:SHAMIR_THRESHOLD]}
        assert shamir.combine(held) == secret


def _traffic() -> tuple[list[Row], list[str]]:
    """Count the bytes of whole sums, beside the plain vectors and the orders of growth."""
    rows, site_bytes, total_bytes = [], [], []
    for n_sites, length in TRAFFIC:
        parties = SumInProcess(n_sites, length)
        parties.run()
        total = parties.sent.total() + parties.received.total()
        site = max(parties.sent[name] + parties.received[name] for name in parties.identities)
        site_bytes.append(site)
        total_bytes.append(total)
        where = f"S = {n_sites}, D = {length:,}"
        rows.append(amount_row(f"bytes of a site, {where}", site, 8 * length, "8 D, the plain vector", "B"))
        rows.append(
            amount_row(
                f"bytes of the aggregator, {where}", total, 8 * n_sites * length, "8 S D, all plain", "B"
            )
        )
    return rows, [
        _fit("a site", "S", "D", [(s, d) for s, d in TRAFFIC], site_bytes),
        _fit("the aggregator", "S^2", "S D", [(s * s, s * d) for s, d in TRAFFIC], total_bytes),
    ]


def _fit(who: str, first: str, second: str, terms: list[tuple[int, int]], counted: list[int]) -> str:
    """Fit bytes = a first + b second in relative error, beside the range of bytes / (first + second)."""
    relative = np.array(terms) / np.array(counted)[:, None]
    (a, b), *_ = np.linalg.lstsq(relative, np.ones(len(counted)), rcond=None)
    worst = np.abs(relative @ np.array([a, b]) - 1).max()
    orders = np.array(counted) / np.array(terms).sum(axis=1)
    return (
        f"bytes of {who}: {a:,.0f} {first} + {b:.2f} {second} within {100 * worst:.0f}% of every count; "
        f"{orders.min():.1f} to {orders.max():.1f} times ({first} + {second})."
    )


def _memory() -> list[Row]:
    command = [sys.executable, "-m", "benchmarks.site_memory"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    peaks: dict[str, float] = json.loads(done.stdout)
    return [
        amount_row(
            f"peak memory of a site ({what}), D = {MEMORY_LENGTH:,}", peak, 1.0, "one vector", "vectors", 4
        )
        for what, peak in peaks.items()
    ]
