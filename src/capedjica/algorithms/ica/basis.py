"""Public bases that represent smooth maps with fewer numbers, chosen independently of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from capedjica.algorithms.parallel import one_thread
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

Float32Array = NDArray[np.float32]
Coefficients = Callable[[Float32Array], Float32Array]

# Frequencies kept along each side of an image, as a fraction of its pixels: on 30 x 30 the 121 lowest of 900
# keep 99.9% of the energy of maps whose blobs are a few pixels wide.
KEPT: Final = 0.4
# Number of cosines within a mask.
MOST_WAVES: Final = 300
# Fraction of a cosine's energy that must be new.
NEW: Final = 1e-2


def low_pass(image_shape: tuple[int, ...], kept: float = KEPT) -> FloatArray:
    r"""Return the (K, D) orthonormal rows of the discrete cosine transform with the lowest frequencies.

    The cosines with :math:`\sum_i (f_i / (k n_i))^2 < 1` are kept, which gives the same resolution in all
    directions: the corners of a square of frequencies contain a fifth of the numbers and almost none of the
    energy of a round blob.

    Parameters
    ----------
    image_shape : tuple of int
        Number of pixels n_i along each side; the D pixels are in row-major order.
    kept : float
        k, the fraction of the frequencies kept along each side; the constant is always kept.
    """
    if min(image_shape) < 1:
        raise InputError(f"image_shape must contain numbers of at least 1, got {image_shape}")
    waves: FloatArray = reduce(_kron, (_cosines(size, kept) for size in image_shape))
    return waves[_low(image_shape, kept)]


def _low(image_shape: tuple[int, ...], kept: float = KEPT) -> NDArray[np.bool_]:
    """Return which products of the cosines along each side are kept."""
    sides = (np.arange(_n_kept(size, kept)) / (kept * size) for size in image_shape)
    squares = sum(side**2 for side in np.meshgrid(*sides, indexing="ij"))
    return np.ravel(np.asarray(squares)) < 1 - 1e-9


def coefficients(basis: FloatArray | None) -> Coefficients:
    """Return the function that represents a scan (time, D) in a basis (K, D), in single precision.

    Without a basis it returns the scan. With the cosines of an image, it multiplies by those along one side
    and then by those along the other, in a third of the time of the product with all of them.
    """
    if basis is None:
        return _unchanged
    shape = _shape_of_image(basis)
    if shape is None:
        return partial(_product, matrix=basis.T.astype(np.float32))
    height, width = (_cosines(side, KEPT).astype(np.float32) for side in shape)
    return partial(_along_sides, height=height, width=width.T.copy(), low=np.flatnonzero(_low(shape)))


def _shape_of_image(basis: FloatArray) -> tuple[int, int] | None:
    """Return the shape of the image whose cosines these are; None if they are none."""
    n_kept, n_features = basis.shape
    heights = (height for height in range(1, n_features + 1) if n_features % height == 0)
    for shape in ((height, n_features // height) for height in heights):
        if np.count_nonzero(_low(shape)) == n_kept and np.array_equal(low_pass(shape), basis):
            return shape
    return None


def _unchanged(scan: Float32Array) -> Float32Array:
    return scan


def _product(scan: Float32Array, matrix: Float32Array) -> Float32Array:
    return scan @ matrix


def _along_sides(
    scan: Float32Array, height: Float32Array, width: Float32Array, low: NDArray[np.intp]
) -> Float32Array:
    images = scan.reshape(len(scan), height.shape[1], width.shape[0])
    waves = height @ (images @ width)
    return waves.reshape(len(scan), len(height) * width.shape[1])[:, low]


def low_pass_within(mask: NDArray[np.bool_], n_kept: int = MOST_WAVES) -> FloatArray:
    r"""Return (K, D) orthonormal rows that span the smoothest cosines on the D voxels of a mask.

    The cosines are those of the smallest box around the mask, products of one along each side, ordered by
    :math:`\sum_i (f_i / n_i)^2` for frequencies :math:`f_i` on sides of :math:`n_i` voxels, and restricted to
    the mask. There they are no longer orthogonal, so they are orthogonalised successively in this order (with
    L the Cholesky factor of their Gram matrix, the rows are :math:`L^{-1} C`); a cosine that adds almost
    nothing new is skipped. Unlike eigenvectors, such rows are unique and hardly depend on rounding, so that
    all sites obtain the same ones.

    In the brain of the MNI152 template 300 cosines keep 81% of the energy of a Gaussian blob of 20 mm FWHM,
    93% at 25 mm, 98% at 30 mm and 99.8% at 40 mm (means over 60 positions; 100 cosines: 52, 70, 83 and 95%),
    the same with voxels of 3, 4 or 6 mm. The noise of the releases increases with K, hence the limit.

    Parameters
    ----------
    mask : array of bool
        The voxels, in any number of dimensions; D is the number inside, in row-major order.
    n_kept : int
        Initial number of cosines; K is at most this and at most D.
    """
    inside = np.argwhere(mask)
    if not len(inside):
        raise InputError("mask must contain at least one voxel, got none")
    places = inside - inside.min(axis=0)
    sides = tuple(int(side) for side in places.max(axis=0) + 1)
    frequencies = _lowest(sides, min(n_kept, len(inside)))
    rows = np.ones((len(frequencies), len(inside)))
    for side, along, chosen in zip(sides, places.T, frequencies.T, strict=True):
        waves = _cosines(side, 1.0)[: chosen.max() + 1, along]
        for row, frequency in zip(rows, chosen, strict=True):
            row *= waves[frequency]
    with one_thread():
        return _orthonormal(rows)


def _lowest(sides: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """Return (count, n) frequencies, lowest first; ties in the order of the axes."""
    frequencies = np.indices(sides).reshape(len(sides), -1).T
    # Compared as integers: rounding must not break ties.
    common = math.lcm(*sides)
    squares = sum((frequencies[:, i] * (common // side)) ** 2 for i, side in enumerate(sides))
    return frequencies[np.argsort(squares, kind="stable")[:count]]


def _orthonormal(rows: FloatArray) -> FloatArray:
    """Return orthonormal rows with the same span, without those nearly dependent on earlier ones."""
    gram = rows @ rows.T
    kept: list[int] = []
    factor = np.zeros_like(gram)
    for new in range(len(rows)):
        n = len(kept)
        factor[n, :n] = (
            scipy.linalg.solve_triangular(factor[:n, :n], gram[kept, new], lower=True) if n else ()
        )
        rest = gram[new, new] - factor[n, :n] @ factor[n, :n]
        if rest > NEW * gram[new, new]:
            factor[n, n] = math.sqrt(rest)
            kept.append(new)
    n = len(kept)
    orthonormal: FloatArray = scipy.linalg.solve_triangular(factor[:n, :n], rows[kept], lower=True)
    return orthonormal


def _kron(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(np.kron(left, right))


def _n_kept(size: int, kept: float) -> int:
    return max(1, math.ceil(kept * size - 1e-9))


def _cosines(size: int, kept: float) -> FloatArray:
    """Return the first rows of the orthonormal DCT-II of ``size`` points."""
    frequencies = np.arange(_n_kept(size, kept))[:, np.newaxis]
    rows: FloatArray = np.cos(np.pi / size * (np.arange(size) + 0.5) * frequencies) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows
