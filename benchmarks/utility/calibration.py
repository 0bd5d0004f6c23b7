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
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.utility.readable import (
    BRAIN,
    COMPACT,
    EPSILONS,
    FITTED_ABIDE,
    FITTED_GUIDED,
    NOISY,
    QUICK_EPSILONS,
    SCATTERED,
    SPATIAL,
    SUBJECT,
    between,
    study,
)
from benchmarks.utility.shared.problems import FloatArray
from capedjica.algorithms.ica.maps.calibration import between_runs, calibrated
from capedjica.algorithms.ica.maps.networks import Networks, peak_order, pseudo_inverse

RUNS: Final = 5
TOO_HIGH: Final = 2.0
SIMULATED: Final = {COMPACT: 31, NOISY: 32, SCATTERED: 33, BRAIN: 34}
CASES: Final = {
    SUBJECT: (FITTED_ABIDE, *SIMULATED),
    SPATIAL: (FITTED_ABIDE, BRAIN, COMPACT, NOISY),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """The maps of one run.

    Attributes
    ----------
    drawn, turned : array (R,)
        c and t of :mod:`capedjica.algorithms.ica.maps.calibration`.
    recoverable : array (R,) of bool
        Whether each can be told at all: the stability of others is 0.
    actual : array (R,)
        How they correlate with those of other runs.
    """

    drawn: FloatArray
    turned: FloatArray
    recoverable: NDArray[np.bool_]
    actual: FloatArray

    @classmethod
    def of(cls, found: Networks, actual: FloatArray) -> Seen:
        """Return what there is to be seen of a run."""
        assert found.redrawn is not None
        turned = getattr(found.predict, "keywords", {}).get("turned", 1.0)
        both = np.array([found.redrawn, np.broadcast_to(turned, len(found.estimate))])
        # Correlations are in the order of the maps, draws in that of the estimate.
        drawn, own = both[:, peak_order(pseudo_inverse(found.estimate))]
        return cls(drawn, own, found.recoverable, actual)


def fitted(cells: Sequence[Sequence[Seen]], kind: str = SUBJECT) -> tuple[float, ...]:
    """Return the constants of least squares of means over the maps of runs, every cell counting the same.

    What is predicted too high counts twice: maps that are called stable should be. Where nothing is turned,
    as in spatial ICA, there is no gamma to be told: it stays 0.
    """
    told = 3 if kind == SUBJECT else 2

    def gaps(constants: FloatArray) -> list[float]:
        alpha, beta, gamma = np.pad(constants, (0, 3 - told))
        means = [fmean(_gap(run, (alpha, beta, gamma)) for run in cell) for cell in cells]
        return [TOO_HIGH * gap if gap > 0 else gap for gap in means]

    found = least_squares(gaps, np.ones(told), bounds=(0.0, np.inf)).x
    return tuple(np.pad(found, (0, 3 - told)).tolist())


def _gap(run: Seen, constants: tuple[float, float, float]) -> float:
    """Return by how much a prediction is too high, on average over maps."""
    predicted = calibrated(run.drawn, run.turned, constants)
    return float(np.mean(np.where(run.recoverable, predicted, 0.0) - run.actual))


def cells_of(kind: str, folder: Path, quick: bool = False) -> list[list[Seen]]:
    """Run every study several times at every epsilon."""
    cells = []
    for setting in CASES[kind]:
        data = study(setting, kind, folder, SIMULATED.get(setting, 0), quick)
        for epsilon in QUICK_EPSILONS if quick else EPSILONS:
            found = [data.run(epsilon) for _ in range(2 if quick else RUNS)]
            cells.append(list(map(Seen.of, found, between(found, None))))
    return cells


def fitted_guided(folder: Path, quick: bool = False) -> float:
    """Return kappa of least squares of means over maps and runs, every epsilon counting the same."""
    data, told, actual = study(FITTED_GUIDED, SUBJECT, folder, 0, quick), [], []
    for epsilon in QUICK_EPSILONS if quick else EPSILONS:
        found = [data.run(epsilon) for _ in range(2 if quick else RUNS)]
        told.append(float(np.mean([between_runs(one.redrawn) for one in found if one.redrawn is not None])))
        actual.append(float(np.mean(between(found, data.template))))
    return float(np.dot(told, actual) / max(np.dot(told, told), np.finfo(float).tiny))


def main(arguments: list[str] | None = None) -> int:
    """Print the constants of all methods."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.calibration", description=__doc__)
    parser.add_argument("folder", type=Path, help="with timeseries.npz and participants.tsv")
    parser.add_argument("--quick", action="store_true", help="a tiny version, in seconds")
    asked = parser.parse_args(arguments)
    if not (asked.folder / "timeseries.npz").exists():
        print(f"skipped: there is no timeseries.npz in {asked.folder}")
        return 0
    for kind in CASES:
        constants = fitted(cells_of(kind, asked.folder, asked.quick), kind)
        print(f"{kind}: {', '.join(f'{value:.2f}' for value in constants)}")
    print(f"guided: {fitted_guided(asked.folder, asked.quick):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
