r"""Cleaning of series in time, equal to :func:`nilearn.signal.clean`.

Everything but the division by a standard deviation is linear in the series of a feature and the same for all
features: detrending, filters, the removal of confounds, and the interpolation and removal of volumes. It is a
matrix L (T', T), found by letting nilearn clean the identity, and :math:`L X = L (X - 1 x_0') + (L 1) x_0'`
with :math:`x_0` the first time point, so that small differences are not lost next to large values. A mean
and a linear trend are removed without a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.extraction.kernels import Float32Array, remove_trend
from capedjica.data.extraction.reduction import Changes
from capedjica.data.extraction.volumes import NotStreamedError
from capedjica.tools.arrays import FloatArray, Scan

# Larger matrices (134 MB) take more work than nilearn.
_LONGEST: Final = 4096
# Columns multiplied at once.
_BLOCK: Final = 8192
# Standard deviations below this count as 1, as in nilearn.
_SMALLEST: Final = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Cleaning:
    """Cleaning of one recording.

    Attributes
    ----------
    detrend, standardize : bool
        Remove a linear trend; divide by the standard deviation.
    low_pass, high_pass, t_r : float, optional
        Cut-off frequencies in Hz, and the repetition time in seconds.
    confounds : ndarray of shape (T, n), optional
        Confounds to remove.
    kept : ndarray of int, optional
        Volumes that are kept.
    """

    detrend: bool
    standardize: bool
    low_pass: float | None = None
    high_pass: float | None = None
    t_r: float | None = None
    confounds: Any = None
    kept: NDArray[np.int64] | None = None

    def operator(self, n_volumes: int) -> FloatArray | None:
        """Return L for a number of volumes; None if at most a mean and a trend are removed."""
        filters = self.low_pass is not None or self.high_pass is not None
        if self.confounds is None and self.kept is None:
            if not filters:
                return None
            return _filter(_checked(n_volumes), self.detrend, self.low_pass, self.high_pass, self.t_r)
        return _operator(
            _checked(n_volumes),
            self.detrend,
            self.low_pass,
            self.high_pass,
            self.t_r,
            confounds=self.confounds,
            sample_mask=self.kept,
        )

    def apply(self, series: Changes, operator: FloatArray | None) -> Scan:
        """Return the cleaned series (time, features); overwrites ``series``."""
        cleaned = series.changes
        if operator is not None:
            cleaned = _multiplied(operator, series, centred=self.standardize)
            if self.standardize:
                remove_trend(cleaned, False, True, _SMALLEST)
        elif (self.detrend or self.standardize) and len(cleaned) > 1:
            remove_trend(cleaned, self.detrend, self.standardize, _SMALLEST)
        else:
            with np.errstate(over="ignore"):
                cleaned += series.first.astype(np.float32)
        return cleaned


def _checked(n_volumes: int) -> int:
    if not 1 < n_volumes <= _LONGEST:
        raise NotStreamedError
    return n_volumes


def _operator(n_volumes: int, detrend: bool, low: Any, high: Any, t_r: Any, **more: Any) -> FloatArray:
    from nilearn.signal import clean

    options = {"detrend": detrend, "low_pass": low, "high_pass": high, "t_r": t_r, **more}
    matrix: FloatArray = clean(np.eye(n_volumes), standardize=None, **options)
    if len(matrix) < 2:
        raise NotStreamedError
    return matrix


_filter = lru_cache(maxsize=2)(_operator)


def _multiplied(operator: FloatArray, series: Changes, centred: bool) -> Float32Array:
    """Return L X in the memory of X; a part that is constant in time is skipped if ``centred``."""
    constant = operator.sum(axis=1)
    if centred:
        constant -= constant.mean()
    out = series.changes[: len(operator)]
    for first in range(0, out.shape[1], _BLOCK):
        columns = slice(first, first + _BLOCK)
        # In double precision: confounds and filters may leave little of a series.
        product = operator @ series.changes[:, columns].astype(np.float64)
        product += constant[:, np.newaxis] * series.first[columns]
        out[:, columns] = product
    return out
