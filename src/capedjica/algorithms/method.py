"""What an analysis is to those who run it: what it asks, what a site computes, what becomes of the means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capedjica.mechanisms.contract import Stage
from capedjica.mechanisms.site import Statistics

FloatArray = NDArray[np.float64]
Subject = NDArray[np.floating]
Progress = Callable[[FloatArray, int], None]


class Means(Protocol):
    """Who makes means private: an aggregator with its sites."""

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""

    def publish(self, data: bytes) -> None:
        """Hand public data to all sites."""


class Method(Protocol):
    """An analysis with all its public parameters.

    What it does is a function of the means alone, so the same means give the same result: that is how a run
    that was interrupted goes on.
    """

    def stages(self) -> tuple[Stage, ...]:
        """Return everything that may be asked, in order."""

    def site(self, subjects: Sequence[Subject]) -> Statistics:
        """Return what a site computes, from subjects that are read one at a time."""

    def estimate(self, means: Means, progress: Progress | None = None) -> tuple[FloatArray, int]:
        """Return the (R, D) unmixing matrix of centred data and the number of iterations.

        ``progress(unmixing, iteration)`` is called after each iteration.
        """
