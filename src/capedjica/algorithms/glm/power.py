r"""Power of a group comparison from public quantities, for plans and for the choice of weights and releases.

If the noise on a mean has standard deviation n per unit of sensitivity, the noise on the effects is
:math:`\sigma = n \Delta`. The standard error of an estimate, in standard deviations of the outcome per unit
of the coded contrast, is then :math:`\sqrt{s^2 S_{hh} / M + \sigma^2} / q`, by (3) in
:mod:`capedjica.algorithms.glm.analysis`. The smallest effect that a test at level alpha detects with
probability ``power`` is :math:`(z_{1 - \alpha/2} + z_{\text{power}})` times the standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from scipy import stats

from capedjica.algorithms.glm.analysis import GroupComparisonAnalysis


class Noise(Protocol):
    """Source of the noise level: :class:`capedjica.mechanisms.terms.Terms`, or a study."""

    @property
    def mechanism(self) -> str:
        """Mechanism that makes a mean private."""

    def mean_noise(self, subjects: Sequence[int], share: float) -> float:
        """Return the noise on a mean of vectors of norm at most 1, for a share of the budget."""


def unit_noise(terms: Noise, sizes: Mapping[str, int], share: float = 1.0) -> float:
    """Return the noise on a mean per unit of the sensitivity of a sum; 0 without privacy."""
    return terms.mean_noise(list(sizes.values()), share) / 2


def clipped_variance(size: int, clip: float) -> float:
    """Return the expected variance of an outcome after clipping, if public centre and scale are correct."""
    places = (np.arange(2000) + 0.5) / 2000
    return float(np.minimum(stats.chi2.ppf(places, size), clip**2).mean()) / size


def standard_error(analysis: GroupComparisonAnalysis, terms: Noise, group_variance: float = 0.9) -> float:
    """Return the expected standard error of an effect in standard deviations, per unit of the coded contrast.

    Parameters
    ----------
    analysis : GroupComparisonAnalysis
        The comparison.
    terms : Noise
        Terms that determine the noise.
    group_variance : float
        Variance of a private contrast within sites: 1 for two equal groups, 0.9 for groups of about one and
        two thirds.
    """
    people = sum(analysis.sizes.values())
    once, twice = analysis.group_moments[:2] if analysis.public_groups else (group_variance,) * 2
    noise = (
        unit_noise(terms, analysis.sizes, analysis.stages()[-1].share) * analysis.effects_query.sensitivity()
    )
    sampling = clipped_variance(analysis.size, analysis.bound) * twice / people
    return math.sqrt(sampling + noise**2) / once


def minimum_detectable_effect(
    analysis: GroupComparisonAnalysis,
    terms: Noise,
    power: float = 0.8,
    alpha: float = 0.05,
    group_variance: float = 0.9,
) -> float:
    """Return the smallest effect that a single test at level alpha detects with probability ``power``."""
    quantiles = stats.norm.isf(alpha / 2) + stats.norm.ppf(power)
    return float(quantiles) * standard_error(analysis, terms, group_variance)


def site_weights(analysis: GroupComparisonAnalysis, terms: Noise) -> dict[str, float]:
    """Return the weights of sites with public groups that minimize the expected standard error.

    A site where nearly all subjects belong to one group requires more noise (k_s up to 2) for all sites. Its
    weight is lowered to c / k_s if that is below 1, with the best c.
    """
    if not analysis.public_groups:
        return {}
    plain = replace(analysis, weights={})
    factors = {name: plain.largest_factor(name) for name in plain.sizes}
    choices = [
        {name: min(1.0, bound / factor) for name, factor in factors.items()}
        for bound in sorted(set(factors.values()))
    ]
    return min(choices, key=lambda weights: standard_error(replace(plain, weights=weights), terms))


def variances_are_worth_releasing(analysis: GroupComparisonAnalysis, terms: Noise) -> bool:
    """Return whether released variances are better than 1, the bound given by the public scale.

    They are if the noise on their mean over outcomes is less than a quarter of its expected value.
    """
    if terms.mechanism == "none":
        return True
    stage = replace(analysis, release_variances=True).stages()[0]
    pairs = 0.5
    noise = unit_noise(terms, analysis.sizes, stage.share) * stage.query.sensitivity() / pairs
    expected = clipped_variance(analysis.size, analysis.bound)
    return noise / math.sqrt(analysis.size) < 0.25 * expected
