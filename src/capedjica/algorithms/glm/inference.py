"""Tests and confidence intervals for many effects, from their estimates and standard errors."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import scipy

from capedjica.tools.arrays import FloatArray

# Number of draws for the quantile of simultaneous intervals with a public correlation; error below 1%.
_DRAWS: Final = 20_000


def two_sided_p(statistic: FloatArray, df: FloatArray) -> FloatArray:
    """Return two-sided p-values of Student's t; 1 where the statistic is NaN."""
    p: FloatArray = np.nan_to_num(2 * scipy.stats.t.sf(np.abs(statistic), df), nan=1.0)
    return p


def benjamini_hochberg(p: FloatArray) -> FloatArray:
    """Return q-values: the false discovery rate at which each effect is found (Benjamini, Hochberg 1995)."""
    order, n = np.argsort(p), len(p)
    raised = p[order] * n / np.arange(1, n + 1)
    q = np.empty(n)
    q[order] = np.minimum(1.0, np.minimum.accumulate(raised[::-1])[::-1])
    return q


def benjamini_yekutieli(p: FloatArray) -> FloatArray:
    """Return q-values that are valid under any dependence (Benjamini, Yekutieli 2001)."""
    harmonic = math.fsum(1 / rank for rank in range(1, len(p) + 1))
    return np.minimum(1.0, benjamini_hochberg(p) * harmonic)


def bonferroni(p: FloatArray) -> FloatArray:
    """Return Bonferroni-adjusted p-values, which control the familywise error rate."""
    return np.minimum(1.0, p * len(p))


def intervals(effects: FloatArray, errors: FloatArray, quantile: FloatArray | float) -> FloatArray:
    """Return intervals (d, 2): effects minus and plus a multiple of the errors; infinite if undefined."""
    with np.errstate(invalid="ignore"):
        width = quantile * errors
        ends = np.column_stack([effects - width, effects + width])
    nowhere = ~np.isfinite(ends).all(axis=1)
    ends[nowhere] = -np.inf, np.inf
    return ends


def two_sided_quantile(level: float, df: FloatArray) -> FloatArray:
    """Return the quantile of Student's t for a two-sided interval."""
    quantile: FloatArray = np.asarray(scipy.stats.t.ppf(0.5 + level / 2, df))
    return quantile


def simultaneous_quantile(level: float, df: FloatArray, correlation: FloatArray | None) -> FloatArray:
    """Return the quantile of simultaneous intervals: Bonferroni's, or that of a public correlation."""
    careful = two_sided_quantile(1 - (1 - level) / len(df), df)
    if correlation is None:
        return careful
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(len(df)), correlation, _DRAWS)
    largest = np.quantile(np.abs(draws).max(axis=1), level)
    # From the normal quantile to Student's t.
    exact: FloatArray = np.asarray(scipy.stats.t.isf(scipy.stats.norm.sf(largest), df))
    return np.minimum(careful, exact)


def global_p(statistic: FloatArray, p: FloatArray, correlation: FloatArray | None) -> float:
    """Return the p-value of the global null: chi-square with a public correlation, else Bonferroni."""
    if correlation is None or not np.isfinite(statistic).all():
        return float(bonferroni(p).min())
    square = float(statistic @ np.linalg.solve(correlation, statistic))
    return float(scipy.stats.chi2.sf(square, len(p)))


def shrunken(effects: FloatArray, errors: FloatArray) -> FloatArray:
    r"""Return effects shrunk by :math:`\max(0, 1 - (d-2) / \sum z^2)` (James and Stein, positive part).

    Effects selected because they are large are overestimated on average; shrinkage corrects this.
    """
    if len(effects) < 3 or not np.isfinite(errors).all():
        return effects
    total = float(((effects / errors) ** 2).sum())
    return effects * max(0.0, 1 - (len(effects) - 2) / total) if total else effects


def selected_level(level: float, selected: int, total: int) -> float:
    """Return the level of intervals of selected effects: 1 - R (1 - level) / d (FCR, 2005)."""
    return 1 - max(1, selected) * (1 - level) / total
