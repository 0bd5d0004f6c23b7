r"""Power of a group comparison from public quantities, for plans and for the choice of weights and releases.

If the noise on a mean has standard deviation n per unit of sensitivity, the noise on the effects is
:math:`\sigma = n \Delta`. The standard error of an estimate, in standard deviations of the outcome per unit
of the coded contrast, is then :math:`\sqrt{s^2 S_{hh} / M + \sigma^2 + b^2} / q`, by (3) in
:mod:`capedjica.algorithms.glm.analysis`. The smallest effect that a test at level alpha detects with
probability ``power`` is :math:`(z_{1 - \alpha/2} + z_{\text{power}})` times the standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import scipy

from capedjica.algorithms.glm.analysis import PRIOR_CORRELATION, Adjustment, GroupComparisonAnalysis

_DESIGN_SHARES: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
_PRODUCTS_PARTS: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


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
    return float(np.minimum(scipy.stats.chi2.ppf(places, size), clip**2).mean()) / size


def standard_error(
    analysis: GroupComparisonAnalysis,
    terms: Noise,
    group_variance: float = 0.9,
    correlation: float = 0.0,
) -> float:
    """Return the expected standard error of an effect in standard deviations, per unit of the coded contrast.

    It includes sampling noise, privacy noise and the confounding that imperfect adjustment may leave, as do
    the standard errors of the findings.

    Parameters
    ----------
    analysis : GroupComparisonAnalysis
        The comparison.
    terms : Noise
        Terms that determine the noise.
    group_variance : float
        Variance of a private contrast within sites: 1 for two equal groups, 0.9 for groups of about one and
        two thirds.
    correlation : float
        Correlation of the contrast with every covariate within sites.
    """
    adjustment = _expected_adjustment(analysis, terms, group_variance, correlation)
    variance = clipped_variance(analysis.size, analysis.bound)
    if analysis.public_groups:
        once, twice, _ = analysis.group_moments
        left = 1 - min(analysis.mean_weight * adjustment.explained / once, 0.9)
        q, square = once * left, twice * left
    else:
        q = (group_variance - adjustment.explained) / adjustment.width
        square = q / adjustment.width
    sampling = square / sum(analysis.sizes.values())
    remaining = analysis.confounding(adjustment, sampling)
    return math.sqrt(variance * (sampling + remaining) + _effects_noise(analysis, terms) ** 2) / q


def _effects_noise(analysis: GroupComparisonAnalysis, terms: Noise) -> float:
    share = analysis.stages()[-1].share
    noise = unit_noise(terms, analysis.sizes, share) * analysis.effects_query.sensitivity()
    return noise * analysis.noise_factor


def _expected_adjustment(
    analysis: GroupComparisonAnalysis, terms: Noise, group_variance: float, correlation: float
) -> Adjustment:
    """Return the adjustment if the released covariance equals its expectation."""
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
    """Return the smallest effect that a single test at level alpha detects with probability ``power``."""
    quantiles = scipy.stats.norm.isf(alpha / 2) + scipy.stats.norm.ppf(power)
    return float(quantiles) * standard_error(analysis, terms, group_variance, correlation)


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
    variance, people = clipped_variance(plain.size, plain.bound), sum(plain.sizes.values())

    def error(weights: Mapping[str, float]) -> float:
        weighted = replace(plain, weights=weights)
        once, twice, _ = weighted.group_moments
        return math.sqrt(variance * twice / people + _effects_noise(weighted, terms) ** 2) / once

    return min(choices, key=error)


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


def with_design_shares(analysis: GroupComparisonAnalysis, terms: Noise) -> GroupComparisonAnalysis:
    """Return the comparison with the shares for the design that minimise the expected standard error.

    A larger share reduces the confounding that remains, and increases the noise on the effects. With public
    groups the covariates explain as much of the contrast as the prior or the bound on scores allows: what
    remains then depends on the noise on S_zz, too.
    """
    if not analysis.n_covariates or terms.mechanism == "none":
        return analysis
    parts: Sequence[float] = (analysis.products_part,)
    correlation = 0.0
    if analysis.public_groups:
        # Scores are bounded by two standard deviations of what covariates explain.
        explained = min(PRIOR_CORRELATION, analysis.adjustment / 2)
        parts, correlation = _PRODUCTS_PARTS, explained / math.sqrt(analysis.n_covariates)
    choices = [
        replace(analysis, design_share=share, products_part=part)
        for share in _DESIGN_SHARES
        for part in parts
    ]
    return min(choices, key=lambda choice: standard_error(choice, terms, correlation=correlation))


def tuned(analysis: GroupComparisonAnalysis, terms: Noise) -> GroupComparisonAnalysis:
    """Return the comparison with weights, releases and shares chosen from public quantities."""
    weighted = replace(analysis, weights=site_weights(analysis, terms))
    chosen = replace(weighted, release_variances=variances_are_worth_releasing(weighted, terms))
    return with_design_shares(chosen, terms)
