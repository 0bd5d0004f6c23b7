"""A private release on the real protocol, against plainly adding up the same numbers."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import Row, Section, amount_row, interleaved, timed
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName, Query, Stage

SIZE: Final = 400
SUBJECTS: Final = 10
RELEASES: Final = 200
BLOCK_WORDS: Final = SIZE * RELEASES
REPETITIONS: Final = 15


def run(console: Console) -> Section:
    """Measure every row."""
    rows: list[Row] = []
    for n_sites in (4, 100):
        console.print(f"{n_sites} sites ...")
        rows += _online(n_sites)
        rows.append(_offline(n_sites))
    return Section(
        "release",
        "A release of 400 values",
        rows,
        (
            f"{SUBJECTS} subjects a site; all parties in one thread, so the time is the sum of theirs.",
            "online: question and answer of each site, its sum, noise and ledger (in memory), and the mean.",
            "plain summation: the sites' sums added as float64 arrays; 'none': the protocol without privacy.",
            f"offline: the secure sum of the masks of {RELEASES} releases, per value that one site masks.",
        ),
    )


def _study(n_sites: int, mechanism: MechanismName) -> EmbeddedStudy:
    rng = np.random.default_rng(1)
    data = {f"site-{number}": rng.standard_normal((SUBJECTS, SIZE)) for number in range(n_sites)}

    return EmbeddedStudy(
        "benchmark",
        dict.fromkeys(data, SUBJECTS),
        {name: partial(_all_rows, rows) for name, rows in data.items()},
        [Stage(Query("values", SIZE, 1.0), RELEASES)],
        in_process(epsilon=None if mechanism == "none" else 10.0, mechanism=mechanism),
    )


def _all_rows(
    rows: NDArray[np.float64], stage: int, published: bytes, state: bytes
) -> list[NDArray[np.float64]]:
    return [rows]


def _online(n_sites: int) -> list[Row]:
    """Time one release of an open block."""
    private, open_ = _study(n_sites, "cape"), _study(n_sites, "none")
    private.mean(0), open_.mean(0)
    sums = np.random.default_rng(2).standard_normal((n_sites, SIZE))
    ours, plain = interleaved(timed(lambda: private.mean(0)), timed(lambda: sums.sum(axis=0)), REPETITIONS)
    again, without = interleaved(timed(lambda: private.mean(0)), timed(lambda: open_.mean(0)), REPETITIONS)
    return [
        amount_row(f"online, {n_sites} sites", 1e3 * ours, 1e3 * plain, "plain summation", "ms"),
        amount_row(f"online, {n_sites} sites", 1e3 * again, 1e3 * without, "'none'", "ms"),
    ]


def _offline(n_sites: int) -> Row:
    """Time the making of a block: what comes before the first answer, less one release."""
    study = _study(n_sites, "cape")
    vectors = np.random.default_rng(3).standard_normal((n_sites, BLOCK_WORDS))
    block, plain = interleaved(
        timed(lambda: study.aggregator._open_block(0)), timed(lambda: vectors.sum(axis=0)), 3
    )
    values = n_sites * BLOCK_WORDS
    return amount_row(
        f"offline, {n_sites} sites", 1e9 * block / values, 1e9 * plain / values, "plain summation", "ns/value"
    )
