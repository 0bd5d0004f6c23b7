r"""What a group comparison can find, from public quantities: for plans, and to choose weights and releases.

With noise of standard deviation n on a mean for each unit of sensitivity, the effects have noise
:math:`\sigma = n \Delta`, and an estimate, in standard deviations of the outcome per unit of the coded
contrast, the standard error :math:`\sqrt{s^2 S_{hh} / M + \sigma^2} / q` of (3) in
:mod:`capedjica.algorithms.glm.analysis`. The smallest effect that is found with probability ``power`` by a
test at level alpha is :math:`(z_{1 - \alpha/2} + z_{\text{power}})` times it.
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
    """What says how much noise there will be: :class:`capedjica.mechanisms.terms.Terms`, or a study."""

    @property
    def mechanism(self) -> str:
        """How a mean is made private."""

    def mean_noise(self, subjects: Sequence[int], share: float) -> float:
        """Return the noise on a mean of vectors of norm at most 1, from a share of the budget."""


def unit_noise(terms: Noise, sizes: Mapping[str, int], share: float = 1.0) -> float:
    """Return the noise on a mean for each unit of the sensitivity of a sum; 0 without privacy."""
    return terms.mean_noise(list(sizes.values()), share) / 2


def clipped_variance(size: int, clip: float) -> float:
    """Return the expected variance of an outcome after clipping, if the public centre and scale are right."""
    places = (np.arange(2000) + 0.5) / 2000
    return float(np.minimum(stats.chi2.ppf(places, size), clip**2).mean()) / size


def standard_error(analysis: GroupComparisonAnalysis, terms: Noise, group_variance: float = 0.9) -> float:
    """Return the expected standard error of an effect in standard deviations, per unit of the coded contrast.

    Parameters
    ----------
    analysis : GroupComparisonAnalysis
        The comparison.
    terms : Noise
        What it may cost.
    group_variance : float
        Variance of a private contrast within sites: 1 of two equal groups, 0.9 of about one third.
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
    """Return the smallest effect that is found with probability ``power`` by a single test at level alpha."""
    quantiles = stats.norm.isf(alpha / 2) + stats.norm.ppf(power)
    return float(quantiles) * standard_error(analysis, terms, group_variance)


def site_weights(analysis: GroupComparisonAnalysis, terms: Noise) -> dict[str, float]:
    """Return the weights of sites with public groups at which the expected standard error is least.

    A site where nearly all belong to one group needs more noise than others (k_s up to 2), for all. Its
    weight is lowered to c / k_s where that is below 1, with the best c.
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
    """Tell whether released variances are better than 1, the bound that the public scale gives.

    They are where the noise on their mean over outcomes is less than a quarter of what it is to be.
    """
    if terms.mechanism == "none":
        return True
    stage = replace(analysis, release_variances=True).stages()[0]
    pairs = 0.5
    noise = unit_noise(terms, analysis.sizes, stage.share) * stage.query.sensitivity() / pairs
    expected = clipped_variance(analysis.size, analysis.bound)
    return noise / math.sqrt(analysis.size) < 0.25 * expected
