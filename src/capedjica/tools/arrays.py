"""Arrays of numbers as type hints name them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
# What one person contributes, (time, features) or one row, in single or double precision as it comes.
Scan = NDArray[np.floating]
