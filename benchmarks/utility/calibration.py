"""Fit of the constants of stability: ``python -m benchmarks.utility.calibration FOLDER``.

The constants of :mod:`capedjica.algorithms.ica.maps.calibration` are those of one run of it, rounded. The
data are none of those that the benchmark ``stability`` compares predictions with: other seeds, other sites
of ABIDE.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import nnls

from benchmarks.utility.readable import (
    BRAIN,
    COMPACT,
    EPSILONS,
    FITTED_ABIDE,
    NOISY,
    QUICK_EPSILONS,
    SCATTERED,
    SPATIAL,
    SUBJECT,
    between,
    study,
)
from benchmarks.utility.shared.problems import FloatArray
from capedjica.algorithms.ica.maps.calibration import between_runs
from capedjica.algorithms.ica.maps.networks import Networks, likeness

RUNS: Final = 5
SIMULATED: Final = {COMPACT: 31, NOISY: 32, SCATTERED: 33, BRAIN: 34}
CASES: Final = {
    SUBJECT: (FITTED_ABIDE, *SIMULATED),
    SPATIAL: (FITTED_ABIDE, BRAIN, COMPACT, NOISY),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """Maps of one run, of those that are recoverable.

    Attributes
    ----------
    drawn, turned : array
        c and t of equation (2) of :mod:`capedjica.algorithms.ica.maps.calibration`.
    actual : array
        How they correlate with those of other runs.
    """

    drawn: FloatArray
    turned: FloatArray
    actual: FloatArray

    @classmethod
    def of(cls, found: Networks, actual: FloatArray) -> Seen:
        """Return what there is to be seen of a run."""
        draws = found.draws()
        assert draws is not None
        turned = getattr(found.predict, "keywords", {}).get("turned", 1.0)
        both = np.array([likeness(found.estimate, draws), np.broadcast_to(turned, len(found.estimate))])
        drawn, own = found._ordered(both.T).T
        kept = found.recoverable
        return cls(drawn[kept], own[kept], actual[kept])


def fitted(runs: Sequence[Seen]) -> tuple[float, float, float]:
    """Return alpha, beta and gamma by least squares without negative ones, every run counting the same."""
    rows, lost = [], []
    for run in runs:
        far = 1 - between_runs(run.drawn)
        terms = np.stack([far, 1 - run.drawn, np.sqrt(far * np.clip(1 - run.turned, 0.0, 1.0))], axis=1)
        weight = 1 / np.sqrt(max(len(run.actual), 1))
        rows.append(weight * terms)
        lost.append(weight * (1 - run.actual))
    alpha, beta, gamma = nnls(np.concatenate(rows), np.concatenate(lost))[0]
    return float(alpha), float(beta), float(gamma)


def runs_of(kind: str, folder: Path, quick: bool = False) -> list[Seen]:
    """Run every study several times at every epsilon."""
    runs: list[Seen] = []
    for setting in CASES[kind]:
        data = study(setting, kind, folder, SIMULATED.get(setting, 0), quick)
        for epsilon in QUICK_EPSILONS if quick else EPSILONS:
            found = [data.run(epsilon) for _ in range(2 if quick else RUNS)]
            runs += map(Seen.of, found, between(found, None))
    return runs


def main(arguments: list[str] | None = None) -> int:
    """Print the constants of both methods."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.calibration", description=__doc__)
    parser.add_argument("folder", type=Path, help="with timeseries.npz and participants.tsv")
    parser.add_argument("--quick", action="store_true", help="a tiny version, in seconds")
    asked = parser.parse_args(arguments)
    if not (asked.folder / "timeseries.npz").exists():
        print(f"skipped: there is no timeseries.npz in {asked.folder}")
        return 0
    for kind in CASES:
        constants = fitted(runs_of(kind, asked.folder, asked.quick))
        print(f"{kind}: {', '.join(f'{value:.2f}' for value in constants)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
