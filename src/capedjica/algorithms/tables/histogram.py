r"""Histograms and densities from one private mean.

A person falls into one of n public cells, or elsewhere, and contributes the unit vector of that one of n + 1
places. Two unit vectors are sqrt(2) apart, so replacing one of M people moves the mean, the share of each
place, by at most :math:`\sqrt 2 / M`. The estimated shares are the distribution nearest to the noisy mean,

.. math:: p = \arg\min_{q \ge 0,\, \sum q = 1} \|q - \bar v\| = \max(\bar v - \theta, 0),           (1)

which is the most likely one, since the noise is Gaussian and the same on every cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.tables.rows import batches
from capedjica.mechanisms.contract import Query
from capedjica.tools.arrays import FloatArray


def grid_shape(edges: Sequence[FloatArray]) -> tuple[int, ...]:
    """Return the number of cells along each feature."""
    return tuple(len(axis) - 1 for axis in edges)


def cell_query(edges: Sequence[FloatArray]) -> Query:
    """Return what is asked of every person: the unit vector of their cell; the last one is elsewhere."""
    return Query("share of people in each cell", math.prod(grid_shape(edges)) + 1, 1.0, math.sqrt(2))


def cells(values: FloatArray, edges: Sequence[FloatArray]) -> NDArray[np.intp]:
    """Return the number of each row's cell, the number of cells for elsewhere.

    Cells hold their left edge, and the last one along each feature its right edge too, as in NumPy.
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
    """Return the unit vector of each person's cell, in batches; NaN or infinity counts as zero."""
    size = cell_query(edges).size

    def vectors(part: slice) -> FloatArray:
        rows = np.zeros((part.stop - part.start, size))
        rows[np.arange(len(rows)), cells(values[part], edges)] = 1.0
        rows[~np.isfinite(values[part]).all(axis=1)] = np.nan
        return rows

    return map(vectors, batches(len(values), size))


def nearest_distribution(shares: FloatArray) -> FloatArray:
    """Return p of (1); theta is the last of the running means that leaves its share positive."""
    falling = np.sort(shares)[::-1]
    thetas = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    theta = float(thetas[falling > thetas][-1])
    return np.maximum(shares - theta, 0.0)


def density(shares: FloatArray, edges: Sequence[FloatArray]) -> FloatArray:
    """Return the density in each cell, among people inside the edges; zero if nobody is."""
    volume = np.ones(())
    for axis in edges:
        volume = np.multiply.outer(volume, np.diff(axis))
    inside = float(shares[:-1].sum())
    return shares[:-1].reshape(volume.shape) / (volume * inside) if inside else np.zeros(volume.shape)
