"""The paper's descent with privacy, against the same iterations without."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.framework import Row, Section, amount_row, interleaved, timed
from capedjica.algorithms.ica.infomax import Infomax, gradient_query, subject_gradients
from capedjica.algorithms.kernels import PackedSubjects
from capedjica.algorithms.state import unpack
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName, Stage

SITES: Final = 4
SUBJECTS: Final = 256
TIMEPOINTS: Final = 250
COMPONENTS: Final = 20
ITERATIONS: Final = 1000
PARTS: Final = 10


class _Site:
    """A site with data of the reduced size."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        samples = rng.laplace(size=(SUBJECTS * TIMEPOINTS, COMPONENTS)).astype(np.float32)
        self._packed = PackedSubjects(
            samples, np.arange(SUBJECTS + 1, dtype=np.int64) * TIMEPOINTS, TIMEPOINTS
        )

    def __call__(self, stage: int, published: bytes, state: bytes) -> list[NDArray[np.float64]]:
        public = unpack(state)
        return [subject_gradients(self._packed, public["W"], public["b"])]


def run(console: Console) -> Section:
    """Measure both, in turns of a tenth of the iterations."""
    sites = {f"site-{number}": _Site(number) for number in range(SITES)}
    private, free = _study("cape", sites), _study("none", sites)
    steps = ITERATIONS // PARTS
    descents = [Infomax(COMPONENTS, 0.01, tolerance=0.0) for _ in range(2)]

    def iterate(study: EmbeddedStudy, infomax: Infomax) -> None:
        for _ in range(steps):
            infomax.update(study.mean(0, infomax.state))

    private.mean(0, descents[0].state), free.mean(0, descents[1].state)
    ours, peer = interleaved(
        timed(lambda: iterate(private, descents[0])), timed(lambda: iterate(free, descents[1])), PARTS
    )
    rows: list[Row] = [
        amount_row("1,000 iterations with cape", PARTS * ours, PARTS * peer, "'none'", "s", target=1.5)
    ]
    return Section(
        "descent",
        "The paper's descent, 4 sites of 256 subjects, 250 time points, 20 components",
        rows,
        (f"Medians of {PARTS} turns of {steps} iterations each, times {PARTS}; all sites in one process.",),
    )


def _study(mechanism: MechanismName, sites: dict[str, _Site]) -> EmbeddedStudy:
    return EmbeddedStudy(
        "benchmark",
        dict.fromkeys(sites, SUBJECTS),
        sites,
        [Stage(gradient_query(COMPONENTS), ITERATIONS + 1)],
        in_process(epsilon=None if mechanism == "none" else 100.0, mechanism=mechanism),
    )
