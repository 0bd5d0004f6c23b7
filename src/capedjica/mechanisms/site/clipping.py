"""The site's own sum over its subjects: clipped, rounded to the grid, exact in integers, always defined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from capedjica.compiled import compiled
from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import Vectors
from capedjica.mechanisms.release import ReleasePlan
from capedjica.tools.arrays import FloatArray


def sum_subjects(
    vectors: Callable[[], Iterable[Vectors]], plan: ReleasePlan, site: str, enrolled: int
) -> tuple[NDArray[np.int64], int]:
    """Add up the subjects' vectors on the grid: F_s of :mod:`capedjica.mechanisms.release`.

    A subject whose vector is not finite contributes zero, and so does one that is missing or could not be
    computed at all. Nothing here raises an error because of data.

    Parameters
    ----------
    vectors : callable
        Returns the subjects' vectors as arrays of shape (k, d), a few subjects at a time. The call itself
        looks at public values only and may refuse them with ProtocolError. A step that fails counts as one
        subject of zero, and the next step is taken: ``map(f, subjects)`` goes on after an error of ``f``,
        while a generator has ended and **all later subjects become zero with it**. One subject must not
        change another's part, so what can fail belongs into a ``map``.
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
    bound = _integer_bound(longest * scale, plan.query.size)
    row, seen, sound = np.empty(plan.query.size), 0, 0
    for batch in _batches(vectors, plan.query.size):
        usable = batch[: enrolled - seen]
        seen += len(usable)
        sound += _add_rows(usable, longest, scale, bound, row, total)
        if seen == enrolled:
            break
    return total, enrolled - sound


def _integer_bound(longest: float, size: int) -> float:
    """Return the largest norm of a subject's integers, as the comparison in double precision sees it.

    Rounding moves a vector of norm C by at most sqrt(d)/2. The sum of d squares, computed in any order, is
    off by less than (d + 4) 2^-53 of itself; what is subtracted for it is far less than sqrt(d)/2 on any
    grid in use, so no vector of norm C is lost.
    """
    return (longest + math.sqrt(size) / 2) * (1 - (size + 8) * 2.0**-52)


def _batches(vectors: Callable[[], Iterable[Vectors]], size: int) -> Iterator[FloatArray]:
    """Yield arrays of rows until the vectors end; what cannot be used, for whatever reason, as rows of NaN.

    Which subject failed, and how, may depend on data: it must not show outside the site.
    """
    try:
        batches = iter(vectors())
    except ProtocolError:
        raise
    # defence: no-error-depends-on-data
    except Exception:
        return
    while True:
        try:
            batch = np.asarray(next(batches), dtype=np.float64)
        except StopIteration:
            return
        except Exception:
            # defence: one-subject-fails-alone
            batch = np.empty(0)
        n_rows = len(batch) if batch.ndim == 2 else 1
        yield batch if batch.shape == (n_rows, size) else np.full((n_rows, size), np.nan)


def _add_rows_python(
    rows: FloatArray,
    longest: float,
    scale: float,
    bound: float,
    row: FloatArray,
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
            square += rows[i, j] * rows[i, j]
        norm = math.sqrt(square)
        # defence: clip-on-integers
        factor = scale * longest / norm if norm > longest else scale
        square = 0.0
        for j in range(rows.shape[1]):
            row[j] = np.rint(rows[i, j] * factor)
            square += row[j] * row[j]
        # defence: bound-on-integers
        if math.sqrt(square) <= bound:
            for j in range(rows.shape[1]):
                total[j] += np.int64(row[j])
            added += 1
    return added


_add_rows = compiled(_add_rows_python, fastmath={"reassoc", "contract"})
