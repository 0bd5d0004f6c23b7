"""Public bases: fewer numbers for the same smooth maps, chosen without looking at data."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError

# Cosines kept along each side of an image, as a part of its pixels: 12 of 30 keep 99.9% of the energy of maps
# whose blobs are a few pixels wide.
KEPT: Final = 0.4


def low_pass(image_shape: tuple[int, int], kept: float = KEPT) -> NDArray[np.float64]:
    """Return the (K, D) orthonormal rows of the discrete cosine transform with the lowest frequencies.

    Parameters
    ----------
    image_shape : tuple of int
        Height and width, D = height * width; pixels in row-major order.
    kept : float
        Part of the frequencies that is kept along each side, at least one.
    """
    height, width = image_shape
    if height < 1 or width < 1:
        raise InputError(f"image_shape must hold two numbers of at least 1, got {image_shape}")
    rows: NDArray[np.float64] = np.kron(_cosines(height, kept), _cosines(width, kept)).astype(np.float64)
    return rows


def _cosines(size: int, kept: float) -> NDArray[np.float64]:
    """Return the first rows of the orthonormal DCT-II of ``size`` points."""
    frequencies = np.arange(max(1, math.ceil(kept * size - 1e-9)))[:, np.newaxis]
    rows: NDArray[np.float64] = np.cos(np.pi / size * (np.arange(size) + 0.5) * frequencies) * math.sqrt(
        2 / size
    )
    rows[0] /= math.sqrt(2)
    return rows
