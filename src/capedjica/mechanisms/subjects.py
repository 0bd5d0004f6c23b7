"""The site's own sum over its subjects: clipped, rounded to the grid, exact in integers, always defined."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from capedjica.compiled import compiled
from capedjica.mechanisms.release import ReleasePlan

Vectors = NDArray[np.floating]


def sum_subjects(
    vectors: Iterable[Vectors], plan: ReleasePlan, site: str, enrolled: int
) -> tuple[NDArray[np.int64], int]:
    """Add up the subjects' vectors on the grid: F_s of :mod:`capedjica.mechanisms.release`.

    A subject whose vector is not finite contributes zero, and so does one that is missing or could not be
    computed at all: nothing that happens to one person's data raises an error or changes another's part.

    Parameters
    ----------
    vectors : iterable of arrays of shape (k, d)
        The subjects' vectors, a few subjects at a time.
    plan : ReleasePlan
        The grid, the clip and the site's scale.
    site : str
        Name of the site in the plan.
    enrolled : int
        M_s; vectors beyond it are ignored.

    Returns
    -------
    total : array of int64
        The sum.
    n_zero : int
        How many enrolled subjects contributed zero because of their data; never leaves the site.
    """
    total = np.zeros(plan.query.size, dtype=np.int64)
    scale, longest = plan.scale[site] / plan.step, plan.query.clip
    bound = longest * scale + math.sqrt(plan.query.size) / 2
    row, seen, sound = np.empty(plan.query.size), 0, 0
    for batch in _until_error(vectors):
        usable = batch[: enrolled - seen]
        seen += len(usable)
        if usable.ndim == 2 and usable.shape[1] == plan.query.size:
            sound += _add_rows(usable, longest, scale, bound, row, total)
    return total, enrolled - sound


def _until_error(vectors: Iterable[Vectors]) -> Iterable[Vectors]:
    """Yield batches until they end or computing one fails, whatever the reason."""
    try:
        yield from vectors
    except Exception:
        # Which subject failed, and how, may depend on data: it must not show outside the site.
        return


def _add_rows_python(
    rows: Vectors,
    longest: float,
    scale: float,
    bound: float,
    row: NDArray[np.float64],
    total: NDArray[np.int64],
) -> int:
    """Clip each row to the norm ``longest``, scale and round it, and add it if its integers are short enough.

    Returns how many rows were added. The sensitivity rests on the last comparison alone, made on the
    integers, and not on the floating-point arithmetic before it. NaN and infinity never pass it.
    """
    added = 0
    for i in range(rows.shape[0]):
        square = 0.0
        for j in range(rows.shape[1]):
            square += np.float64(rows[i, j]) * np.float64(rows[i, j])
        norm = math.sqrt(square)
        factor = scale * longest / norm if norm > longest else scale
        square = 0.0
        for j in range(rows.shape[1]):
            row[j] = np.rint(np.float64(rows[i, j]) * factor)
            square += row[j] * row[j]
        if math.sqrt(square) <= bound:
            for j in range(rows.shape[1]):
                total[j] += np.int64(row[j])
            added += 1
    return added


_add_rows = compiled(_add_rows_python, fastmath={"reassoc", "contract"})
