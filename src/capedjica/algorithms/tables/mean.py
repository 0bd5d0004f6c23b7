r"""Mean of one vector per subject, in one release.

A subject's vector v is clipped to :math:`\|v\| \le C`. Replacing one of M subjects moves the mean by at most
:math:`2C/M`, because two vectors of norm C can point in opposite directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from capedjica.algorithms.analysis import Means, Progress, Result, ResultTable
from capedjica.algorithms.tables.rows import batches, named
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan


@dataclass(frozen=True, eq=False)
class Mean(Result):
    """The mean, and the standard deviation of the noise on each of its coordinates."""

    value: FloatArray
    noise: float
    names: Sequence[str] = ()

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the mean."""
        return {"mean": self.value}

    def tables(self) -> Sequence[ResultTable]:
        """Return a row for each coordinate of the mean."""
        names = named(self.names, len(self.value))
        rows = list(zip(names, map(float, self.value), strict=True))
        caption = f"Mean of the clipped vectors; noise of {self.noise:.3g} (std. dev.) on each number."
        return (ResultTable("mean", caption, ("number", "mean"), rows, "bars"),)


@dataclass(frozen=True)
class MeanOfRows:
    """Mean of rows of ``size`` numbers, each clipped to the norm ``clip``."""

    size: int
    clip: float
    names: tuple[str, ...] = ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the only query."""
        return (Stage(Query("mean of the subjects' vectors", self.size, self.clip)),)

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the row of every subject."""
        return partial(_rows, np.asarray(subjects, dtype=np.float64))

    def estimate(self, means: Means, progress: Progress | None = None) -> Mean:
        """Request the mean."""
        value = means.mean(0)
        return Mean(value, means.released[-1].noise if means.released else math.nan, self.names)


def _rows(rows: FloatArray, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
    return map(rows.__getitem__, batches(*rows.shape))
