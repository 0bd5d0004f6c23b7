r"""Varimax initialisation: the rotation that makes published maps most concentrated (Kaiser 1958).

Brain networks are local, so an orthogonal W whose maps :math:`B = A W'` have few large values is near the
independent components before any further release. It is post-processing of what was published, without
privacy cost, and only the initial value: the point of convergence does not depend on it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.parallel import InParallel, compiled
from capedjica.tools.arrays import FloatArray

STARTS: Final = 4
MAX_ITERATIONS: Final = 500
# An initial value need not be exact.
TOLERANCE: Final = 1e-6
# Features on which starts are compared: with more, as with voxels, the best start is refined on all.
ENOUGH_FEATURES: Final = 4096
_TILE: Final = 256  # rows whose rotation stays in the cache


def some_features(n_features: int) -> NDArray[np.intp]:
    """Return indices of features that represent all: a public random choice if there are many."""
    chosen = np.random.default_rng(0).permutation(n_features)[:ENOUGH_FEATURES]
    return np.sort(chosen)


def varimax(maps: FloatArray, near: FloatArray | None = None) -> FloatArray:
    r"""Return the orthogonal (R, R) matrix W of the most concentrated maps, the best of several starts.

    It maximises

    .. math:: f(W) = \sum_{dr} b_{dr}^4 - \frac1D \sum_r \Bigl(\sum_d b_{dr}^2\Bigr)^2 , \qquad B = A W' .

    Each step is the orthogonal matrix nearest to the gradient, which never lowers f.

    Parameters
    ----------
    maps : array (D, R)
        A. The starts are the same for all maps, so the result is a function of them.
    near : array (R, R), optional
        The only start, if W is approximately known.
    """
    maps = np.ascontiguousarray(maps, dtype=np.float64)
    if near is not None:
        return _climb(maps, near)[1]
    some, size, rng = maps[some_features(len(maps))], maps.shape[1], np.random.default_rng(0)
    starts = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(STARTS)]
    best = max(InParallel(partial(_climb, some), starts), key=lambda end: end[0])[1]
    return best if len(some) == len(maps) else _climb(maps, best)[1]


def _climb(maps: FloatArray, W: FloatArray) -> tuple[float, FloatArray]:
    r"""Return the maximum reached from one start, and its location.

    With :math:`M = A'A`, sums of squares are the diagonal of :math:`W M W'`, and the gradient, up to a
    factor, is :math:`(B^{\circ 3})' A - \frac1D \operatorname{diag}(W M W') W M`.
    """
    height, moments = -np.inf, maps.T @ maps
    for _ in range(MAX_ITERATIONS):
        turned = W @ moments
        squares = np.sum(turned * W, axis=1)
        fourth, cubes = _fourth_and_cubes(maps, np.ascontiguousarray(W.T))
        last, height = height, float(fourth - (squares**2).sum() / len(maps))
        W = nearest_rotation(cubes - (squares / len(maps))[:, np.newaxis] * turned)
        if abs(height - last) < TOLERANCE * abs(height):
            break
    return height, W


@compiled
def _fourth_and_cubes(maps: FloatArray, transposed: FloatArray) -> tuple[float, FloatArray]:
    """Return the sum of fourth powers of B = A W', and the product of its cubes with A, a tile at a time."""
    size, fourth = maps.shape[1], 0.0
    memory, product, cubes = np.empty((_TILE, size)), np.empty((size, size)), np.zeros((size, size))
    for start in range(0, len(maps), _TILE):
        tile = maps[start : start + _TILE]
        rotated = memory[: len(tile)]
        np.dot(tile, transposed, rotated)
        flat = rotated.ravel()
        for k in range(len(flat)):
            power = flat[k] * flat[k]
            fourth += power * power
            flat[k] *= power
        np.dot(rotated.T, tile, product)
        cubes += product
    return fourth, cubes


def nearest_rotation(matrix: FloatArray) -> FloatArray:
    """Return the orthogonal matrix nearest to a square one."""
    left, _, right = np.linalg.svd(matrix)
    nearest: FloatArray = left @ right
    return nearest
