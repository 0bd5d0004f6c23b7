"""Noise on one core: exact and cryptographic, against an exact peer and against one that is neither."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from rich.console import Console

from benchmarks.framework import Measure, Row, Section, interleaved, rate_row, timed
from benchmarks.peers.exact_noise import ExactNoise
from benchmarks.peers.process import Peer, PeerUnavailableError
from capedjica.securesum.noise import NoiseSource

COUNT: Final = 2_000_000
ORACLE_COUNT: Final = 2_000
OPENDP_COUNT: Final = 20_000
REPETITIONS: Final = 7
SIGMAS: Final = (1.0, 1e6)


def run(console: Console) -> Section:
    """Measure every row; the first call, which compiles, is not timed."""
    source = NoiseSource()
    source.discrete_gaussian(1.0, 1)
    rows = [row for sigma in SIGMAS for row in _in_process(source, sigma)]
    rows += _against_opendp(source, console)
    rows.append(_uniform(source))
    return Section(
        "noise",
        "Discrete Gaussian noise, samples a second on one core",
        rows,
        (
            "numpy: standard_normal times sigma, rounded: neither cryptographic nor a discrete Gaussian.",
            "The aim is at least 5 M samples a second, compilation (once for an installation) left out.",
            "oracle and OpenDP: exact as ours is; a sample of their speed, scaled by the number drawn.",
        ),
    )


def _draw(source: NoiseSource, sigma: float) -> Measure:
    return timed(functools.partial(source.discrete_gaussian, sigma, COUNT))


def _row(what: str, ours: Measure, peer: Measure, count: int, peer_name: str, target: float | None) -> Row:
    ours_seconds, peer_seconds = interleaved(ours, peer, REPETITIONS)
    return rate_row(what, COUNT / ours_seconds, count / peer_seconds, peer_name, target)


def _in_process(source: NoiseSource, sigma: float) -> list[Row]:
    rng, oracle = np.random.default_rng(), ExactNoise()
    what = f"discrete Gaussian, sigma = {sigma:g}"
    rounded = timed(lambda: np.rint(sigma * rng.standard_normal(COUNT)).astype(np.int64))
    exact = timed(lambda: [oracle.discrete_gaussian(sigma) for _ in range(ORACLE_COUNT)])
    return [
        _row(what, _draw(source, sigma), rounded, COUNT, "numpy, rounded normal (not private)", None),
        _row(what, _draw(source, sigma), exact, ORACLE_COUNT, "exact oracle in Python", 100),
    ]


def _against_opendp(source: NoiseSource, console: Console) -> list[Row]:
    what = "discrete Gaussian, sigma = {:g}"
    try:
        with Peer("opendp_noise", "opendp", "opendp>=0.16,<0.17", console) as peer:
            name = f"OpenDP {peer.version} (exact)"
            return [
                _row(
                    what.format(sigma),
                    _draw(source, sigma),
                    peer.measure(f"{sigma:g}"),
                    OPENDP_COUNT,
                    name,
                    10,
                )
                for sigma in SIGMAS
            ]
    except PeerUnavailableError as error:
        rate = COUNT / _draw(source, SIGMAS[-1])()
        return [rate_row(what.format(SIGMAS[-1]), rate, None, f"not measured: {error}")]


def _uniform(source: NoiseSource) -> Row:
    rng = np.random.default_rng()
    peer = timed(lambda: rng.integers(0, 2**64, COUNT, dtype=np.uint64))
    ours = timed(functools.partial(source.uniform, COUNT))
    return _row("uniform words of the ring", ours, peer, COUNT, "numpy, PCG64 (not cryptographic)", None)
