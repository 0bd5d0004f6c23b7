"""Arrays of numbers: as type hints name them, and a matrix from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError

FloatArray = NDArray[np.float64]
# What one person contributes, (time, features) or one row, in single or double precision as it comes.
Scan = NDArray[np.floating]


def read_matrix(path: Path) -> FloatArray:
    """Return a matrix of finite numbers from a ``.npy`` file; InputError says what else was found."""
    try:
        with path.open("rb") as file:
            matrix = np.asarray(np.lib.format.read_array(file, allow_pickle=False), dtype=np.float64)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:
        raise InputError(f"{path} is not an array of numbers in a whole .npy file") from None
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(
            f"{path} must hold a matrix (features, components) of finite numbers, got shape {matrix.shape}"
        )
    return matrix
