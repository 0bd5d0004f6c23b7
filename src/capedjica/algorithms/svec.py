r"""Isometric representation of symmetric matrices as vectors (``svec``).

Off-diagonal entries occur twice in a matrix and once in the vector, so they are multiplied by sqrt(2):
:math:`\|A\|_F = \|\mathrm{svec}(A)\|`. Noise of variance v on every entry of the vector has
variance v on the diagonal of the matrix and v/2 off the diagonal.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray, Scan


def svec_size(size: int) -> int:
    """Return D(D+1)/2, the length of the vector of a (D, D) matrix."""
    return size * (size + 1) // 2


def svec(matrix: Scan) -> FloatArray:
    """Return the upper triangle row by row, with off-diagonal entries multiplied by sqrt(2).

    A stack of matrices (n, D, D) gives a row for each.
    """
    places, factors = _layout(matrix.shape[-1])
    return matrix.reshape(*matrix.shape[:-2], -1)[..., places] * factors


def unsvec(vector: Scan) -> FloatArray:
    """Return the symmetric matrix of a vector; the inverse of :func:`svec`."""
    size = (math.isqrt(8 * len(vector) + 1) - 1) // 2
    if svec_size(size) != len(vector):
        raise InputError(f"vector must have D(D+1)/2 entries for some D, got {len(vector)}")
    places, factors = _layout(size)
    matrix = np.zeros(size * size)
    matrix[places] = vector / factors
    upper = matrix.reshape(size, size)
    return upper + np.triu(upper, 1).T


@lru_cache(maxsize=4)
def _layout(size: int) -> tuple[NDArray[np.intp], FloatArray]:
    """Return the positions of the upper triangle in a (D, D) matrix, and their factors."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, np.where(rows == columns, 1.0, math.sqrt(2))
