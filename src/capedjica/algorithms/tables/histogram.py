r"""Histograms and densities from one private mean.

A subject falls into one of n public bins, or outside all of them, and contributes the corresponding unit
vector of length n + 1. Two unit vectors are sqrt(2) apart, so replacing one of M subjects moves the mean, the
fraction in each bin, by at most :math:`\sqrt 2 / M`. The estimated fractions are the distribution nearest to
the noisy mean,

.. math:: p = \arg\min_{q \ge 0,\, \sum q = 1} \|q - \bar v\| = \max(\bar v - \theta, 0),           (1)

which is the most likely one, because the noise is Gaussian with the same variance in every bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress, Result, ResultTable
from capedjica.algorithms.tables.rows import batches, named
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan


def grid_shape(edges: Sequence[FloatArray]) -> tuple[int, ...]:
    """Return the number of bins along each feature."""
    return tuple(len(axis) - 1 for axis in edges)


def cell_query(edges: Sequence[FloatArray]) -> Query:
    """Return the query of a subject's unit vector; its last element is outside all bins."""
    return Query("share of people in each cell", math.prod(grid_shape(edges)) + 1, 1.0, math.sqrt(2))


def cells(values: FloatArray, edges: Sequence[FloatArray]) -> NDArray[np.intp]:
    """Return the index of each row's bin; the number of bins stands for outside.

    Bins include their left edge; the last bin along each feature also includes its right edge, as in NumPy.
    """
    shape = grid_shape(edges)
    places = np.empty((len(edges), len(values)), dtype=np.intp)
    for place, axis, column in zip(places, edges, values.T, strict=True):
        place[:] = np.searchsorted(axis, column, side="right") - 1
        place[column == axis[-1]] -= 1
    inside = ((places >= 0) & (places < np.array(shape)[:, np.newaxis])).all(axis=0)
    numbers = np.ravel_multi_index(tuple(places), shape, mode="clip")
    return np.where(inside, numbers, math.prod(shape))


def person_cells(values: FloatArray, edges: Sequence[FloatArray]) -> Iterator[FloatArray]:
    """Return the unit vector of each subject's bin, in batches; a row with NaN or infinity counts as zero."""
    size = cell_query(edges).size

    def vectors(part: slice) -> FloatArray:
        rows = np.zeros((part.stop - part.start, size))
        rows[np.arange(len(rows)), cells(values[part], edges)] = 1.0
        rows[~np.isfinite(values[part]).all(axis=1)] = np.nan
        return rows

    return map(vectors, batches(len(values), size))


def nearest_distribution(shares: FloatArray) -> FloatArray:
    """Return p of (1); theta is the last running mean that leaves its own element positive."""
    falling = np.sort(shares)[::-1]
    thetas = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    theta = float(thetas[falling > thetas][-1])
    return np.maximum(shares - theta, 0.0)


def density(shares: FloatArray, edges: Sequence[FloatArray]) -> FloatArray:
    """Return the density in each bin among subjects inside the edges; zero if there are none."""
    volume = np.ones(())
    for axis in edges:
        volume = np.multiply.outer(volume, np.diff(axis))
    inside = float(shares[:-1].sum())
    return shares[:-1].reshape(volume.shape) / (volume * inside) if inside else np.zeros(volume.shape)


@dataclass(frozen=True, eq=False)
class Shares(Result):
    """Fractions and counts of subjects in each bin.

    Attributes
    ----------
    mean : array
        Noisy fraction of subjects in each bin, in row-major order of the features; the last number is the
        fraction outside.
    edges : tuple of arrays
        Bin edges along each feature.
    n_people : int
        Number of subjects.
    share_noise : float
        Standard deviation of the noise on each fraction.
    names : sequence of str
        Names of the features.
    """

    mean: FloatArray
    edges: tuple[FloatArray, ...]
    n_people: int
    share_noise: float
    names: Sequence[str] = ()

    @property
    def counts(self) -> FloatArray:
        """Noisy number of subjects in each bin: unbiased, and therefore possibly negative."""
        return self.n_people * self.mean[:-1].reshape(grid_shape(self.edges))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each count."""
        return self.n_people * self.share_noise

    @property
    def shares(self) -> FloatArray:
        """Estimated fraction of all subjects in each bin, never negative."""
        return nearest_distribution(self.mean)[:-1].reshape(grid_shape(self.edges))

    @property
    def density(self) -> FloatArray:
        """Estimated density among subjects inside the edges."""
        return density(nearest_distribution(self.mean), self.edges)

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return counts, shares and densities."""
        return {"counts": self.counts, "shares": self.shares, "density": self.density}

    def tables(self) -> Sequence[ResultTable]:
        """Return a row for each bin."""
        ranges = ([f"{low:g} to {high:g}" for low, high in pairwise(axis)] for axis in self.edges)
        numbers = zip(self.counts.flat, self.shares.flat, self.density.flat, strict=True)
        rows = [
            (" / ".join(cell), *map(float, values))
            for cell, values in zip(product(*ranges), numbers, strict=True)
        ]
        columns = (" / ".join(named(self.names, len(self.edges))), "people", "share", "density")
        caption = (
            f"Participants in each bin, with noise of {self.noise:.3g} (std. dev.) on each count. Shares are "
            "the nearest distribution; densities refer to participants inside the edges."
        )
        return (ResultTable("histogram", caption, columns, rows, "bars"),)


@dataclass(frozen=True, eq=False)
class HistogramOfRows:
    """Histogram of rows between public edges along each feature."""

    edges: tuple[FloatArray, ...]
    names: tuple[str, ...] = ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the single query."""
        return (Stage(cell_query(self.edges)),)

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the unit vector of every subject's bin."""
        return partial(_cells, np.asarray(subjects, dtype=np.float64), self.edges)

    def estimate(self, means: Means, progress: Progress | None = None) -> Shares:
        """Request the fractions."""
        mean = means.mean(0)
        last = means.released[-1]
        return Shares(mean, self.edges, last.n_people, last.noise, self.names)


def _cells(
    rows: FloatArray, edges: Sequence[FloatArray], stage: int, published: bytes, state: bytes
) -> Iterable[FloatArray]:
    return person_cells(rows, edges)
