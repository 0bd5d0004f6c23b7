r"""What a group comparison can find, from public quantities: for plans, and to choose weights and releases.

With noise of standard deviation n on a mean for each unit of sensitivity, the effects have noise
:math:`\sigma = n \Delta`, and an estimate, in standard deviations of the outcome per unit of the coded
contrast, the standard error :math:`\sqrt{s^2 S_{hh} / M + \sigma^2 + b^2} / q` of (3) in
:mod:`capedjica.algorithms.glm.analysis`. The smallest effect that is found with probability ``power`` by a
test at level alpha is :math:`(z_{1 - \alpha/2} + z_{\text{power}})` times it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from scipy import stats

from capedjica.algorithms.glm.analysis import Adjustment, GroupComparisonAnalysis

_DESIGN_SHARES: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


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


def standard_error(
    analysis: GroupComparisonAnalysis,
    terms: Noise,
    group_variance: float = 0.9,
    correlation: float = 0.0,
) -> float:
    """Return the expected standard error of an effect in standard deviations, per unit of the coded contrast.

    It counts sampling noise, privacy noise, and what imperfect adjustment for covariates may leave, as the
    errors of the findings do.

    Parameters
    ----------
    analysis : GroupComparisonAnalysis
        The comparison.
    terms : Noise
        What it may cost.
    group_variance : float
        Variance of a private contrast within sites: 1 of two equal groups, 0.9 of about one third.
    correlation : float
        Correlation of the contrast with every covariate within sites.
    """
    adjustment = _expected_adjustment(analysis, terms, group_variance, correlation)
    variance = clipped_variance(analysis.size, analysis.bound)
    if analysis.public_groups:
        once, twice, plain = analysis.group_moments
        left = 1 - min(adjustment.explained / plain, 0.9)
        q, square = once * left, twice * left
    else:
        q = (group_variance - adjustment.explained) / adjustment.width
        square = q / adjustment.width
    sampling = variance * square / sum(analysis.sizes.values())
    return math.sqrt(sampling + _effects_noise(analysis, terms) ** 2 + adjustment.confounding * variance) / q


def _effects_noise(analysis: GroupComparisonAnalysis, terms: Noise) -> float:
    share = analysis.stages()[-1].share
    return unit_noise(terms, analysis.sizes, share) * analysis.effects_query.sensitivity()


def _expected_adjustment(
    analysis: GroupComparisonAnalysis, terms: Noise, group_variance: float, correlation: float
) -> Adjustment:
    """Return the adjustment for covariates whose released covariance is exactly as expected."""
    noises = {
        stage.query.label: unit_noise(terms, analysis.sizes, stage.share) * stage.query.sensitivity()
        for stage in analysis.stages()[:-1]
    }
    return analysis.expected_adjustment(noises, group_variance, correlation)


def minimum_detectable_effect(
    analysis: GroupComparisonAnalysis,
    terms: Noise,
    power: float = 0.8,
    alpha: float = 0.05,
    group_variance: float = 0.9,
    correlation: float = 0.0,
) -> float:
    """Return the smallest effect that is found with probability ``power`` by a single test at level alpha."""
    quantiles = stats.norm.isf(alpha / 2) + stats.norm.ppf(power)
    return float(quantiles) * standard_error(analysis, terms, group_variance, correlation)


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
    variance, people = clipped_variance(plain.size, plain.bound), sum(plain.sizes.values())

    def error(weights: Mapping[str, float]) -> float:
        weighted = replace(plain, weights=weights)
        once, twice, _ = weighted.group_moments
        return math.sqrt(variance * twice / people + _effects_noise(weighted, terms) ** 2) / once

    return min(choices, key=error)


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


def design_share(analysis: GroupComparisonAnalysis, terms: Noise) -> float:
    """Return the share for the covariance of the design at which the expected standard error is least.

    A larger share leaves less confounding to allow for, and more noise on the effects.
    """
    if not analysis.n_covariates or terms.mechanism == "none":
        return analysis.design_share
    return min(_DESIGN_SHARES, key=lambda share: standard_error(replace(analysis, design_share=share), terms))


def tuned(analysis: GroupComparisonAnalysis, terms: Noise) -> GroupComparisonAnalysis:
    """Return a comparison with weights, releases and shares chosen from public quantities."""
    weighted = replace(analysis, weights=site_weights(analysis, terms))
    chosen = replace(weighted, release_variances=variances_are_worth_releasing(weighted, terms))
    return replace(chosen, design_share=design_share(chosen, terms))
