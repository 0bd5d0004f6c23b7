"""Fixed-point encoding of real numbers in the ring Z/2^64, in which masks cancel exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

# A quarter of the ring: a sum below it in absolute value is decoded unambiguously.
SUM_LIMIT: Final = 2**62


def to_ring(integers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the residues modulo 2^64 of signed integers (two's complement), without a copy."""
    return integers.view(np.uint64)


def lift(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the representatives in [-2^63, 2^63) of residues modulo 2^64, without a copy."""
    return words.view(np.int64)


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The public grid on which real numbers are added as integers modulo 2^64.

    A number v with abs(v) <= bound becomes q = rint(v / step), so abs(q) <= bound/step + 1/2 (the division
    is correctly rounded, with an error far below the remaining margin of 1/2). A sum of ``n_terms`` such
    integers stays below ``n_terms (bound/step + 1)``, and the grid is refused unless this is below 2^62.
    Whether a sum can wrap around depends on public values only, never on data.

    Parameters
    ----------
    step : float
        Distance between neighbouring points of the grid.
    bound : float
        Largest absolute value that may be encoded.
    n_terms : int
        Largest number of encoded values in one sum.
    """

    step: float
    bound: float
    n_terms: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.step) and self.step > 0):
            raise InputError(f"step must be a positive number, got {self.step}")
        if not (math.isfinite(self.bound) and self.bound >= 0):
            raise InputError(f"bound must be a finite number >= 0, got {self.bound}")
        if self.n_terms < 1:
            raise InputError(f"n_terms must be at least 1, got {self.n_terms}")
        if not self.n_terms * (self.bound / self.step + 1) < SUM_LIMIT:
            raise InputError(
                f"the sum of {self.n_terms} values up to {self.bound:g} on a grid of step {self.step:g} "
                "could reach 2^62 and wrap around; use a larger step"
            )

    def encode(self, values: ArrayLike) -> NDArray[np.uint64]:
        """Return ``rint(values / step)`` modulo 2^64; refuse NaN, infinity and values above the bound."""
        reals = np.asarray(values, dtype=np.float64)
        # This also refuses NaN, for which every comparison is false.
        if not np.all(np.abs(reals) <= self.bound):
            raise InputError(
                f"a value to be summed is not finite or exceeds the public bound {self.bound:g}: "
                "the sum could wrap around"
            )
        return to_ring(np.rint(reals / self.step).astype(np.int64))

    def decode(self, words: NDArray[np.uint64]) -> FloatArray:
        """Return ``step`` times the centred lift of ``words``."""
        return lift(words) * np.float64(self.step)
