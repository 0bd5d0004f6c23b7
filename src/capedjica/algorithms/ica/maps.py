"""From an unmixing matrix to maps whose order, sign and scale stay the same between runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capedjica.tools.arrays import FloatArray


def pseudo_inverse(matrix: FloatArray) -> FloatArray:
    """Return the Moore-Penrose inverse."""
    inverse: FloatArray = np.linalg.pinv(matrix).astype(np.float64)
    return inverse


def peak_order(mixing: FloatArray) -> NDArray[np.intp]:
    """Return the order of maps by the features at which they peak."""
    return np.argsort(np.argmax(np.abs(mixing), axis=0), kind="stable")


def stable_maps(mixing: FloatArray) -> FloatArray:
    """Scale each map to a largest absolute value of 1, positive, and sort maps by where that peak is."""
    peaks = np.argmax(np.abs(mixing), axis=0)
    heights = mixing[peaks, np.arange(mixing.shape[1])]
    scaled = mixing / np.where(heights == 0, 1.0, heights)
    return np.ascontiguousarray(scaled[:, peak_order(mixing)])


def mixing_of(unmixing: FloatArray) -> FloatArray:
    """Return the (D, R) maps of an (R, D) unmixing matrix, stable between runs that find the same maps."""
    return stable_maps(pseudo_inverse(unmixing))
