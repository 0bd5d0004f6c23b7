"""Exponents of growth: fitted to the larger sizes, beside those in theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.scale.measuring import Row

# Sizes that an exponent is fitted to, the largest ones.
FITTED: Final = 4
# What standard errors of so few points leave out: caches, the first page of a heap, a busy machine.
TOLERANCE: Final = 0.1


@dataclass(frozen=True)
class Quantity:
    """What grows."""

    name: str
    unit: str
    value: Callable[[Row], float]
    best: Callable[[Sequence[float]], float] = min


TIME: Final = Quantity("processor time", "s", lambda row: row.cpu)
SITE_TIME: Final = Quantity("processor time of a site", "s", lambda row: row.site_cpu)
CENTRE_TIME: Final = Quantity("processor time of the aggregator", "s", lambda row: _centre(row))
MEMORY: Final = Quantity("memory", "B", lambda row: row.memory, median)
SITE_BYTES: Final = Quantity("bytes sent by a site", "B", lambda row: row.site_bytes)
BOTH_WAYS: Final = Quantity("bytes sent and received by a site", "B", lambda row: row.total_bytes)
TOTAL_BYTES: Final = Quantity("bytes sent by all", "B", lambda row: row.total_bytes)


def _centre(row: Row) -> float:
    """Return what the sites did not take, where the size is the number of sites."""
    return row.cpu - row.size * row.site_cpu


@dataclass(frozen=True)
class Theory:
    """The exponents between which a quantity grows in theory, and why in a few words."""

    quantity: Quantity
    low: float
    high: float
    why: str

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Fit:
    """A fitted exponent.

    Attributes
    ----------
    exponent, error : float
        Slope of the logarithms, and its standard error.
    sizes, values : tuple
        All sizes, and the best value at each.
    """

    theory: Theory
    exponent: float
    error: float
    sizes: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """Whether the quantity grows as in theory, within two standard errors and the tolerance."""
        slack = 2 * self.error + TOLERANCE
        if self.exponent > self.theory.high + slack:
            return "MORE than in theory"
        return "less than in theory" if self.exponent < self.theory.low - slack else "as in theory"


def fit(rows: Sequence[Row], theory: Theory) -> Fit:
    """Fit the exponent of one quantity over the largest sizes."""
    quantity = theory.quantity
    sizes = sorted({row.size for row in rows})
    values = [quantity.best([quantity.value(row) for row in rows if row.size == size]) for size in sizes]
    exponent, error = slope(sizes[-FITTED:], values[-FITTED:])
    return Fit(theory, exponent, error, tuple(sizes), tuple(values))


def slope(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    r"""Return the least-squares slope of :math:`\log y` over :math:`\log x`, and its standard error.

    .. math:: \hat b = \frac{\sum_i u_i v_i}{\sum_i u_i^2}, \qquad
              s_b^2 = \frac{\sum_i (v_i - \hat b u_i)^2}{(n - 2) \sum_i u_i^2}

    for centred logarithms u of sizes and v of values; NaN with two points.
    """
    u, v = np.log(sizes), np.log(values)
    u, v = u - u.mean(), v - v.mean()
    b = float(u @ v / (u @ u))
    rest = v - b * u
    freedom = len(u) - 2
    return b, math.sqrt(float(rest @ rest) / freedom / float(u @ u)) if freedom > 0 else math.nan
