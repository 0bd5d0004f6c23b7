"""A part of a figure made again, and compared with what is shown.

A change of code that should not change results makes every figure that depends on it stale. Some seeds of
such a figure, made again, show whether results are still the same, in a fraction of the time of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from rich.console import Console
from scipy.stats import t as student

from benchmarks.utility.__main__ import CLAIMS
from benchmarks.utility.shared.report import RESULTS, read_csv
from benchmarks.utility.shared.runs import Options, Row, run_all

# Odds of calling one of a figure's cells different, or their mean, where nothing has changed.
FALSE_ALARM: Final = 0.001
# Differences that nobody would call one: rounding, other sums of the same numbers.
NEGLIGIBLE: Final = 0.003

Cells = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Comparison:
    """How far the part made again is from the figure.

    Attributes
    ----------
    n_cells, n_values : int
        Cells compared, and values made again.
    mean : float
        Mean difference over the cells.
    different : tuple of str
        Cells that differ by more than chance, at odds of 0.001 for all cells together; or "all together".
    """

    n_cells: int
    n_values: int
    mean: float
    different: tuple[str, ...]

    def __str__(self) -> str:
        verdict = (
            f"different: {'; '.join(self.different)}" if self.different else "none differs beyond chance"
        )
        return f"{self.n_values} runs in {self.n_cells} cells made again, mean {self.mean:+.4f}, {verdict}"


def compare(shown: Cells, again: Cells) -> Comparison:
    """Compare values made again with those of a figure, cell by cell and together.

    In a cell the difference of means is divided by the standard deviation of the values shown (Student's t
    with their degrees of freedom, Bonferroni over the cells). The mean over cells is compared with its own
    spread.
    """
    names = [name for name in again if name in shown]
    differences = {name: fmean(again[name]) - fmean(shown[name]) for name in names}
    different = [
        name for name in names if abs(differences[name]) > _bound(shown[name], len(again[name]), len(names))
    ]
    mean = fmean(differences.values())
    if abs(mean) > max(NEGLIGIBLE, _quantile(len(names) - 1) * _standard_error(list(differences.values()))):
        different.append("all together")
    missing = [f"not shown: {name}" for name in again if name not in shown]
    return Comparison(len(names), sum(map(len, again.values())), mean, (*different, *missing))


def _bound(values: Sequence[float], n_again: int, n_cells: int) -> float:
    """Return what a difference in one cell may be; ten times the negligible where there is no spread."""
    if len(values) < 2:
        return 10 * NEGLIGIBLE
    spread = stdev(values) * math.sqrt(1 / len(values) + 1 / n_again)
    return max(NEGLIGIBLE, _quantile(len(values) - 1, n_cells) * spread)


def _quantile(degrees: int, n_tests: int = 1) -> float:
    return float(student.isf(FALSE_ALARM / 2 / n_tests, max(1, degrees)))


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def gain_indices(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Return the gain indices of a benchmark of utility, by cell; rows that have none are left out."""
    cells: dict[str, list[float]] = {}
    for row in rows:
        if math.isnan(row.gain_index):
            continue
        key = (row.setting, row.n_subjects, row.method, row.mechanism, row.epsilon, row.reference)
        cells.setdefault(" ".join(map(str, key)), []).append(row.gain_index)
    return cells


def made_again(name: str, seeds: int, folder: Path | None) -> Comparison:
    """Make some seeds of a benchmark of utility again and compare them with its figure."""
    claim = CLAIMS[name]
    again = run_all(claim.tasks(Options(seeds, folder=folder)), name, Console(stderr=True), claim.timed)
    return compare(gain_indices(read_csv(RESULTS / f"utility-{name}.csv")), gain_indices(again))
