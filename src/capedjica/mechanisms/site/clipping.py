"""A site's sum over its subjects: clipped, rounded to the grid, exact in integers and always defined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.compiled import compiled
from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import CrossMoment, Vectors
from capedjica.mechanisms.release import ReleasePlan
from capedjica.tools.arrays import FloatArray

# The grids of a cross-moment: log2 of the length in steps of a vector of norm C, and of the sum of the
# largest factor and score. With this many rows at a time no sum of products exceeds 64 bits:
# 2^24 2^20 2^16 < 2^63.
_VECTOR_BITS: Final = 24
_FACTOR_BITS: Final = 20
_ROWS_AT_A_TIME: Final = 1 << 16


def sum_subjects(
    vectors: Callable[[], Iterable[Vectors]], plan: ReleasePlan, site: str, enrolled: int
) -> tuple[NDArray[np.int64], int]:
    """Return F_s of :mod:`capedjica.mechanisms.release`: the sum of the subjects' vectors, or a cross-moment.

    A subject whose vector is not finite contributes zero, and so does one that is missing or could not be
    computed at all. Nothing here raises an error because of data.

    Parameters
    ----------
    vectors : callable
        Returns the subjects' vectors as arrays of shape (k, d), a few subjects at a time. The call itself
        uses public values only and may refuse them with ProtocolError. An iteration that fails counts as one
        subject that contributes zero, and iteration continues: ``map(f, subjects)`` continues after an error
        in ``f``, whereas a generator ends and **all later subjects contribute zero as well**. One subject
        must not change another subject's contribution, so use ``map`` for code that can fail.
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
        Number of enrolled subjects that contributed zero because of their data; never leaves the site.
    """
    if plan.query.cross is not None:
        return _cross_moment(vectors, plan, plan.query.cross, site, enrolled)
    total = np.zeros(plan.query.size, dtype=np.int64)
    scale, longest = plan.scale[site] / plan.step, plan.query.clip
    bound = _integer_bound(longest * scale, plan.query.size)
    row, seen, sound = np.empty(plan.query.size), 0, 0
    for batch in subject_batches(vectors, plan.query.size):
        usable = batch[: enrolled - seen]
        seen += len(usable)
        sound += _add_rows(usable, longest, scale, bound, row, total)
        if seen == enrolled:
            break
    return total, enrolled - sound


def _integer_bound(longest: float, size: int) -> float:
    """Return the largest norm allowed for a subject's integers, adjusted for double-precision rounding.

    Rounding changes a vector of norm C by at most sqrt(d)/2. The sum of d squares, computed in any order, has
    a relative error of less than (d + 4) 2^-53. The margin subtracted for it is far less than sqrt(d)/2 on
    any grid in use, so no vector of norm C is rejected.
    """
    return (longest + math.sqrt(size) / 2) * (1 - (size + 8) * 2.0**-52)


def subject_batches(vectors: Callable[[], Iterable[Vectors]], size: int) -> Iterator[FloatArray]:
    """Yield arrays of rows until the vectors end; unusable ones, for any reason, as rows of NaN.

    Which subject failed, and how, may depend on data and must not be visible outside the site.
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
    """Clip each row to the norm ``longest``, scale and round it, and add it if its integers are within bound.

    Return the number of rows added. The sensitivity depends only on the last comparison, made on the
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


def _cross_moment(
    vectors: Callable[[], Iterable[Vectors]], plan: ReleasePlan, cross: CrossMoment, site: str, enrolled: int
) -> tuple[NDArray[np.int64], int]:
    r"""Return the cross-moment (1) of :class:`capedjica.mechanisms.contract.CrossMoment` on the grid.

    Factors, scores and vectors are truncated to integers K, T and Y on coarser grids, each within its bound.
    For the n valid rows, with R the bound r on the grid,

    .. math:: n A = n \sum_i (K_i + T_i) Y_i
              - \bigl(\sum_i T_i + \min(nR, \max(-nR, \sum_i K_i))\bigr) \sum_i Y_i

    is exact and rounded once, at the end: the sensitivity (2) of that class holds as for real numbers, and
    the rounding of two such vectors adds at most sqrt(d).
    """
    size, seen, sound = plan.query.size, 0, 0
    products, sum_y, sum_t, sum_k = [0] * size, [0] * size, 0, 0
    grid = _CrossGrid(plan.query.clip, cross, site)
    for batch in subject_batches(vectors, plan.query.row_size):
        usable = batch[: enrolled - seen]
        seen += len(usable)
        for start in range(0, len(usable), _ROWS_AT_A_TIME):
            k, t, y = grid.integers(usable[start : start + _ROWS_AT_A_TIME])
            products = [one + int(more) for one, more in zip(products, (k + t) @ y, strict=True)]
            sum_y = [one + int(more) for one, more in zip(sum_y, y.sum(axis=0), strict=True)]
            sum_t, sum_k = sum_t + int(t.sum()), sum_k + int(k.sum())
            sound += len(t)
        if seen == enrolled:
            break
    n_valid, largest = max(sound, 1), sound * grid.largest_imbalance
    # defence: cross-moment-bounds-the-imbalance
    centre = sum_t + min(largest, max(-largest, sum_k))
    unit = grid.unit * Fraction(plan.scale[site]) / (Fraction(plan.step) * n_valid)
    moments = (
        round((n_valid * product - centre * y) * unit) for product, y in zip(products, sum_y, strict=True)
    )
    return np.array(list(moments), dtype=np.int64), enrolled - sound


class _CrossGrid:
    """Conversion of factors, scores and vectors to integers that respect their bounds."""

    def __init__(self, clip: float, cross: CrossMoment, site: str) -> None:
        fixed = cross.largest_fixed(site)
        self.clip, self.fixed, self.score = clip, fixed, cross.score
        self.vector_step = clip * 2.0**-_VECTOR_BITS
        # A power of two, so division by it is exact.
        self.factor_step = 2.0 ** (math.ceil(math.log2(fixed + cross.score)) - _FACTOR_BITS)
        self.largest_fixed = math.floor(fixed / self.factor_step)
        self.largest_score = math.floor(cross.score / self.factor_step)
        self.largest_imbalance = math.floor(cross.imbalance / self.factor_step)

    @property
    def unit(self) -> Fraction:
        """Real value of one step in a product of two integers."""
        return Fraction(self.factor_step) * Fraction(self.vector_step)

    def integers(self, rows: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return K, T and Y of the valid rows; other rows are omitted, which is equivalent to zero.

        The sensitivity depends only on the comparisons at the end, made on the integers. Rows with NaN or
        infinity are removed before.
        """
        with np.errstate(all="ignore"):
            rows = rows[np.isfinite(rows).all(axis=1)]
            norms = np.linalg.norm(rows[:, 2:], axis=1, keepdims=True)
            sound = np.isfinite(norms[:, 0])
            rows, norms = rows[sound], norms[sound]
            # defence: cross-moment-clips-vectors
            vectors = rows[:, 2:] * np.minimum(1.0, self.clip / np.maximum(norms, self.clip))
            fixed = np.clip(rows[:, 0], -self.fixed, self.fixed)
            score = np.clip(rows[:, 1], -self.score, self.score)
            # Rounded towards zero, so that no norm increases.
            k = np.trunc(fixed / self.factor_step).astype(np.int64)
            t = np.trunc(score / self.factor_step).astype(np.int64)
            y = np.trunc(vectors / self.vector_step).astype(np.int64)
        # defence: cross-moment-bounds-on-integers
        within = (y**2).sum(axis=1) <= 1 << (2 * _VECTOR_BITS)
        within &= (abs(k) <= self.largest_fixed) & (abs(t) <= self.largest_score)
        return k[within], t[within], y[within]
