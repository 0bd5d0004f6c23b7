"""Results of a group comparison: effects, standard errors that include privacy noise, tests, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy

from capedjica.algorithms.analysis import Result, ResultTable
from capedjica.algorithms.glm import inference
from capedjica.algorithms.tables.rows import named
from capedjica.tools.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Findings(Result):
    """Effects of the contrast on every outcome, per unit of the contrast, in the units of the outcomes.

    Effects are coefficients of *clipped* outcomes; ``attenuation`` is the factor by which these are smaller.

    Attributes
    ----------
    effects, standard_errors : array (d,)
        Estimates, and their standard errors: sampling, privacy noise and imperfect adjustment combined.
    statistics : array (d,)
        Estimates in units of their standard deviation under the null hypothesis.
    degrees : array (d,)
        Degrees of freedom of Student's t.
    noise : array (d,)
        Standard deviation of an effect due to privacy noise alone.
    names : sequence of str
        Names of the outcomes.
    attenuation : float
        Attenuation expected from public quantities: 1 if outcomes are rarely clipped.
    estimable : bool
        Whether the released moments show that the contrast varies within sites; if not, effects are NaN.
    correlation : array (d, d), optional
        Correlation of the estimates, from a public correlation of the outcomes.
    level : float
        Confidence level of the intervals.
    confounding : float
        Standard deviation that imperfect adjustment adds, in standardised outcomes per unit of the coded
        contrast; it is part of the standard errors.
    """

    with_tabs: ClassVar[bool] = True

    effects: FloatArray
    standard_errors: FloatArray
    statistics: FloatArray
    degrees: FloatArray
    noise: FloatArray
    names: Sequence[str] = ()
    attenuation: float = 1.0
    estimable: bool = True
    correlation: FloatArray | None = None
    level: float = 0.95
    confounding: float = 0.0

    @cached_property
    def p_values(self) -> FloatArray:
        """Two-sided p-values of the individual tests."""
        return inference.two_sided_p(self.statistics, self.degrees)

    @cached_property
    def q_values(self) -> FloatArray:
        """q-values by the procedure of Benjamini and Hochberg."""
        return inference.benjamini_hochberg(self.p_values)

    @cached_property
    def q_values_any_dependence(self) -> FloatArray:
        """q-values by the procedure of Benjamini and Yekutieli."""
        return inference.benjamini_yekutieli(self.p_values)

    @cached_property
    def p_values_bonferroni(self) -> FloatArray:
        """Bonferroni-adjusted p-values."""
        return inference.bonferroni(self.p_values)

    @cached_property
    def intervals(self) -> FloatArray:
        """Confidence interval of each effect, shape (d, 2)."""
        quantile = inference.two_sided_quantile(self.level, self.degrees)
        return inference.intervals(self.effects, self.standard_errors, quantile)

    @cached_property
    def simultaneous_intervals(self) -> FloatArray:
        """Simultaneous confidence intervals, shape (d, 2)."""
        quantile = inference.simultaneous_quantile(self.level, self.degrees, self.correlation)
        return inference.intervals(self.effects, self.standard_errors, quantile)

    @cached_property
    def selected_intervals(self) -> FloatArray:
        """Intervals (d, 2) of effects with a q-value of at most 1 - level, adjusted for selection."""
        selected = int((self.q_values <= 1 - self.level).sum())
        level = inference.selected_level(self.level, selected, len(self.effects))
        quantile = inference.two_sided_quantile(level, self.degrees)
        return inference.intervals(self.effects, self.standard_errors, quantile)

    @cached_property
    def shrunken_effects(self) -> FloatArray:
        """Effects shrunk towards zero, for those selected because they are large."""
        return inference.shrunken(self.effects, self.standard_errors)

    @cached_property
    def global_p_value(self) -> float:
        """P-value of the global null hypothesis of no effect."""
        return inference.global_p(self.statistics, self.p_values, self.correlation)

    def equivalence_p_values(self, margin: float) -> FloatArray:
        """Return p-values of equivalence: effects are within ``margin`` of zero (two one-sided tests)."""
        with np.errstate(invalid="ignore"):
            ratio = (margin - np.abs(self.effects)) / self.standard_errors
        p: FloatArray = np.nan_to_num(scipy.stats.t.sf(ratio, self.degrees), nan=1.0)
        return p

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the results of all outcomes as arrays."""
        return {
            "effects": self.effects,
            "standard_errors": self.standard_errors,
            "p_values": self.p_values,
            "q_values": self.q_values,
            "intervals": self.intervals,
        }

    def tables(self) -> Sequence[ResultTable]:
        """Return a row for each outcome."""
        columns = (
            "outcome",
            "effect",
            "standard error",
            "of it by privacy noise",
            "low",
            "high",
            "p",
            "q",
            "q (any dependence)",
            "p (Bonferroni)",
            "shrunken effect",
        )
        numbers = (
            self.effects,
            self.standard_errors,
            self.noise,
            self.intervals[:, 0],
            self.intervals[:, 1],
            self.p_values,
            self.q_values,
            self.q_values_any_dependence,
            self.p_values_bonferroni,
            self.shrunken_effects,
        )
        names = named(self.names, len(self.effects))
        rows = list(zip(names, *(map(float, column) for column in numbers), strict=True))
        caption = (
            f"Effects per unit of the contrast, with {self.level:.0%} intervals that include sampling and "
            f"privacy noise. They refer to clipped outcomes, about {self.attenuation:.2f} of the unclipped."
        )
        return (ResultTable("effects", caption, columns, rows, "bars"),)
