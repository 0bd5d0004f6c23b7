r"""Varimax initialisation: the rotation that makes published maps most concentrated (Kaiser 1958).

Brain networks are local, so an orthogonal W whose maps :math:`B = A W'` have few large values is near the
independent components before any further release. It is post-processing of what was published, without
privacy cost, and only the initial value: the point of convergence does not depend on it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from capedjica.tools.arrays import FloatArray

STARTS: Final = 4
MAX_ITERATIONS: Final = 500
# An initial value need not be exact.
TOLERANCE: Final = 1e-6


def varimax(maps: FloatArray) -> FloatArray:
    r"""Return the orthogonal (R, R) matrix W of the most concentrated maps, the best of several starts.

    It maximises

    .. math:: f(W) = \sum_{dr} b_{dr}^4 - \frac1D \sum_r \Bigl(\sum_d b_{dr}^2\Bigr)^2 , \qquad B = A W' .

    Each step is the orthogonal matrix nearest to the gradient, which never lowers f.

    Parameters
    ----------
    maps : array (D, R)
        A. The starts are the same for all maps, so the result is a function of them.
    """
    rng = np.random.default_rng(0)
    size = maps.shape[1]
    starts = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(STARTS)]
    return max((_climb(maps, start) for start in starts), key=lambda end: end[0])[1]


def _climb(maps: FloatArray, W: FloatArray) -> tuple[float, FloatArray]:
    """Return the maximum reached from one start, and its location."""
    height = -np.inf
    for _ in range(MAX_ITERATIONS):
        rotated = maps @ W.T
        power = rotated**2
        last, height = height, float((power**2).sum() - (power.sum(axis=0) ** 2).sum() / len(maps))
        W = nearest_rotation((rotated * (power - power.mean(axis=0))).T @ maps)
        if abs(height - last) < TOLERANCE * abs(height):
            break
    return height, W


def nearest_rotation(matrix: FloatArray) -> FloatArray:
    """Return the orthogonal matrix nearest to a square one."""
    left, _, right = np.linalg.svd(matrix)
    nearest: FloatArray = left @ right
    return nearest
