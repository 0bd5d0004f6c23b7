"""A private median: subjects are asked, step by step, on which side of a middle they are.

A subject says 0 or 1, so two subjects are at most 1 apart: clip 1, spread 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from capedjica.extending import Query, Result, ResultTable, RowsTable, Stage, pack, read_arrays


@dataclass(frozen=True, eq=False)
class Median(Result):
    value: float

    def tables(self):
        return [ResultTable("median", "The median.", ["number", "median"], [("1", self.value)])]


@dataclass(frozen=True)
class MedianOfRows:
    low: float
    high: float
    steps: int = 8

    def stages(self):
        return (Stage(Query("share above the middle", 1, 1.0, spread=1.0), self.steps),)

    def site(self, subjects):
        return partial(_above, np.asarray(subjects)[:, 0])

    def estimate(self, means, progress=None):
        low, high = self.low, self.high
        for _ in range(self.steps):
            middle = (low + high) / 2
            above = means.mean(0, pack(middle=[middle]))[0] > 0.5
            low, high = (middle, high) if above else (low, middle)
        return Median((low + high) / 2, n_iter=self.steps)


def _above(values, stage, published, state):
    return [(values > read_arrays(state, middle=(1,))["middle"]).astype(float)[:, np.newaxis]]


class MedianTable(RowsTable, frozen=True, kw_only=True):
    """The median of the first number of every participant, between public bounds."""

    kind: Literal["median"] = "median"
    low: float
    high: float
    steps: int = 8

    def open(self, setting):
        return self.on_scans(MedianOfRows(self.low, self.high, self.steps), setting)
