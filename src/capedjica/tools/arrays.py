"""Type aliases for arrays, and reading of a matrix from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError

FloatArray = NDArray[np.float64]
# The data of one subject, (time, features) or one row, in single or double precision.
Scan = NDArray[np.floating]


def read_matrix(path: Path) -> FloatArray:
    """Return a matrix of finite numbers from a ``.npy`` file; raise InputError for any other content."""
    try:
        with path.open("rb") as file:
            matrix = np.asarray(np.lib.format.read_array(file, allow_pickle=False), dtype=np.float64)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:
        raise InputError(f"{path} is not a complete .npy file with an array of numbers") from None
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(
            f"{path} must contain a matrix (features, components) of finite numbers, got shape {matrix.shape}"
        )
    return matrix
