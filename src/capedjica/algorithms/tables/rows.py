"""Tables with one subject per row: batches, clipping and public arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from capedjica.algorithms.state import read_arrays
from capedjica.tools.arrays import FloatArray

_BATCH_NUMBERS: Final = 1 << 20


def batches(n_rows: int, width: int) -> Iterator[slice]:
    """Yield all rows in order, in batches of about a million numbers at ``width`` per row."""
    size = max(1, _BATCH_NUMBERS // width)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def clip_rows(rows: FloatArray, bound: float) -> FloatArray:
    """Return the rows clipped to the norm ``bound``.

    Norms exceed the bound only by rounding, by less than 1e-12 of it. A row with NaN or infinity contains NaN
    afterwards, and therefore counts as zero.
    """
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        clipped: FloatArray = rows * (bound / np.maximum(norms, bound))
    return clipped


def public_array(state: bytes, name: str, shape: tuple[int, ...]) -> FloatArray:
    """Return the only array of a public state; anything else is a ProtocolError."""
    return read_arrays(state, **{name: shape})[name]


def named(names: Sequence[str], count: int) -> list[str]:
    """Return the names of the columns; "1", "2" and so on if they have none."""
    return list(names) or [str(number) for number in range(1, count + 1)]
