"""What an analysis is to those who run it: what it asks, what a site computes, what becomes of the means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from capedjica.mechanisms.contract import Stage
from capedjica.mechanisms.statistics import Statistics
from capedjica.tools.arrays import FloatArray, Scan

Progress = Callable[[FloatArray, int], None]


class Means(Protocol):
    """Who makes means private: an aggregator with its sites."""

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""

    def publish(self, data: bytes) -> None:
        """Hand public data to all sites."""


@dataclass(frozen=True, eq=False)
class Released:
    """A mean as it was published: its stage, its numbers, and the standard deviation of the noise on each."""

    stage: int
    value: FloatArray
    noise: float


class Replay:
    """Means that were made before."""

    def __init__(self, released: Sequence[Released]) -> None:
        self._coming = iter(released)

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the next mean."""
        released = next(self._coming)
        assert released.stage == stage
        return released.value

    def publish(self, data: bytes) -> None:
        """Tell nobody."""


class Method(Protocol):
    """An analysis with all its public parameters.

    What it does is a function of the means alone, so the same means give the same result: that is how a run
    that was interrupted goes on.
    """

    def stages(self) -> tuple[Stage, ...]:
        """Return everything that may be asked, in order."""

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return what a site computes, from subjects that are read one at a time."""

    def estimate(self, means: Means, progress: Progress | None = None) -> tuple[FloatArray, int]:
        """Return the (R, D) unmixing matrix of centred data and the number of iterations.

        ``progress(unmixing, iteration)`` is called after each iteration.
        """

    def draws(self, released: Sequence[Released]) -> Iterator[FloatArray] | None:
        """Yield (D, R) mixing matrices as they might have come out with other noise; None if not known.

        In the order of the components of :meth:`estimate`, from what was published and the known noise alone.
        """
