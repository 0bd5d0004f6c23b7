r"""Group comparison by private moments: effects of a contrast on many outcomes, with site as a fixed effect.

Subject i of site s has a contrast g and covariates z in [-1, 1], and outcomes standardised by a public centre
and scale and clipped to :math:`\|y\| \le C`. The model is

.. math:: y_{is} = \alpha_s + \beta g_{is} + \Gamma' z_{is} + e_{is} .                                  (1)

There are three or four releases.

**Variances** of the outcomes. The subjects of a site are paired in the order of enrolment, which is public.
For a pair, the mean of :math:`(y_i - y_j)^2 / 2` is the variance within sites, for any :math:`\alpha_s`. The
vector of a pair is in the row of its first member, and the row of the second is zero: replacing one subject
changes one row. The numbers are not negative, so two rows are at most sqrt(2) times the largest norm apart.
One additional number counts complete pairs, in which no value is missing.

**Covariance of the design**, :math:`S = \mathrm{cov}(g, z)`, from the same pairs, if there are covariates.
The contrast is residualised by :math:`\gamma = S_{zz}^{-1} S_{gz}`, where each entry is replaced by its
posterior mean under a normal prior with the known noise. In mode "public-groups" only :math:`S_{zz}` comes
from pairs. :math:`S_{gz}` is a separate release, the mean of :math:`k z`, with :math:`k = \omega_s (g -
\bar g_s)` public (see below). It uses every participant, has no site means to subtract, and its
sensitivity is that of z alone, so the same share of the budget leaves about a fifth of the variance.

**Effects**: the cross-moment (:class:`capedjica.mechanisms.contract.CrossMoment`) of the outcomes and

.. math:: h = (g - \gamma' z) / w, \qquad w = 1 + \min(\|\gamma\|_1, 2 \sqrt{\gamma' S_{zz} \gamma}) ,   (2)

so that :math:`a = \frac1M \sum_s \sum_i (h_i - \bar h_s) y_i` and
:math:`\hat\beta = a / q` with :math:`q = \frac1M \sum_s \sum_i (h_i - \bar h_s) g_i`. In mode "private", q is
one more number of the same release, with g as one more outcome, multiplied by lambda = min(1, C/3). In mode
"public-groups", the factor :math:`k = \omega_s (g - \bar g_s)` is public and fixed, only
:math:`-\omega_s \gamma' z`, clipped to a public bound, is a score, and q follows from the group sizes and S.

**Errors.** Given the design, and under the null hypothesis, an element of a has the variance

.. math:: v = \sigma^2_y\, S_{hh} / M + \sigma^2 + b^2 .                                               (3)

:math:`\sigma^2_y` is the released variance, of y and not of e: the chance imbalance of z that remains after
adjustment by pairs is as large as without adjustment (the sum over pairs of :math:`(h_i - h_j)(z_i - z_j)`
differs from that of :math:`h_i z_i` by as many independent products), so the variance explained by covariates
belongs to the noise. With public groups the adjustment uses every participant and removes the chance
imbalance too (see below). :math:`S_{hh} = q / w`, or less if gamma is shrunk. sigma is the privacy noise.
b is the residual confounding: :math:`\Gamma'\delta / w`, with Gamma bounded by a public prior
(`COVARIATE_EFFECT`), and delta the part of the covariance of g and z that remains after adjustment. It shifts
all outcomes at once, and in one direction. For a private contrast, whose adjustment is partial, its mean
square is therefore that of the largest covariance that is consistent with the prior or the release
(:class:`_DesignMoments`), and the part does not depend on the noise in it. With public groups it is the mean
square on average over the noise (:attr:`_DesignMoments.likely_gz`). The interval of an effect also includes
the noise on q, by :math:`v / q^2 + \hat\beta^2 \sigma_q^2 / q^2`.

With public groups, a covariate with coefficient c, in standard deviations of the outcome per its own, takes
:math:`c^2` of the sampling variance away and adds :math:`c^2 \delta^2`. What it explains is not released, but
v is linear in :math:`c^2`, so the largest v for :math:`0 \le c \le \Gamma` is at one of the ends:

.. math:: v = \sigma^2_y \bigl(S_{hh} / M + \Gamma^2 \max(0, \delta^2 - S_{hh} / M)\bigr) + \sigma^2 .     (4)

Standard errors with public groups follow from this v.

**Correlated outcomes.** With a public correlation R of the outcomes, the clipped and released vectors are
:math:`A y` with :math:`A = f R^{-1/4}`, and f such that :math:`\operatorname{tr}(A R A) = d`: their typical
norm and C stay the same. :math:`A^{-1}` of the released moments are those of y, with the noise
:math:`\sigma^2 A^{-2}`. Its mean over the outcomes is :math:`(\operatorname{tr} R^{1/2} / d)^2 \le 1` of that
without R, the least of all A; each outcome has its own (:attr:`GroupComparisonAnalysis.noise_factors`). The
guarantee does not depend on R, and a wrong R costs only noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress
from capedjica.algorithms.glm.design import Design
from capedjica.algorithms.glm.findings import Findings
from capedjica.algorithms.state import pack, read_arrays
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.algorithms.tables.rows import clip_rows
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.contract import CrossMoment, Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

VARIANCES_LABEL: Final = "variances of the outcomes"
DESIGN_LABEL: Final = "covariance of the design"
PRODUCTS_LABEL: Final = "covariates by group"
EFFECTS_LABEL: Final = "effects of the contrast"
VARIANCE_SHARE: Final = 0.1
DESIGN_SHARE: Final = 0.1
"""Default share of the budget for the covariance of the design."""
PRODUCTS_PART: Final = 0.7
"""Default fraction of the design share for covariates by group, with public groups; the rest is for S_zz."""
COVARIATE_EFFECT: Final = 0.3
"""Public prior: standard deviations of an outcome per standard deviation of a covariate."""
LARGEST_ADJUSTMENT: Final = 0.1
"""Bound on the adjustment of the coded contrast by covariates, for public groups without another bound."""
PSD_SPREAD: Final = math.sqrt(2)
PRIOR_CORRELATION: Final = 0.4
"""Prior standard deviation of the correlations of a covariate with the contrast, and with another one."""
LEADING: Final = 2
"""Numbers of a row before the design: the fixed factor and the weight of the site."""

_PRIOR_VARIANCE: Final = (0.8, 0.4)
_SMALLEST_VARIANCE: Final = 0.1
# In units of its noise; below it the contrast cannot be distinguished from a constant.
_LEAST_Q: Final = 2.5
_COMPLETE_SPREAD: Final = 0.05
# 1 plus the mean of max(0, x^2 - 1) of a normal number: what noise adds to the square of a typical release.
_TYPICAL_SQUARE: Final = 1 + 2 * math.exp(-0.5) / math.sqrt(2 * math.pi)
_NO_CONTRAST: Final = 2.0**-10
# Of a public correlation: directions with less variance are treated as if they had this much.
_SMALLEST_EIGENVALUE: Final = 0.1


def default_clip(size: int) -> float:
    """Return C = 0.8 sqrt(d), slightly less than the typical norm of standardised outcomes."""
    return 0.8 * math.sqrt(size)


@lru_cache
def attenuation(size: int, clip: float) -> float:
    """Return the mean of min(1, C / norm) for independent normal outcomes with public centre and scale."""
    places = (np.arange(2000) + 0.5) / 2000
    norms = np.sqrt(scipy.stats.chi2.ppf(places, size))
    return float(np.minimum(1.0, clip / norms).mean())


@dataclass(frozen=True, eq=False)
class GroupComparisonAnalysis:
    """A group comparison with all its public parameters.

    The data of a site are rows, one for each subject (:meth:`rows`): two leading numbers (:meth:`leading`),
    the encoded design (:meth:`capedjica.algorithms.glm.design.Design.encode`) and the standardised outcomes,
    (y - center) / scale. A row with NaN contributes zero to every release.

    Parameters
    ----------
    design : Design
        Contrast and covariates.
    scale : tuple of float
        Scale of every outcome, in its own units.
    sizes : mapping from site to int
        Number of subjects M_s of every site.
    clip : float, optional
        C; by default 0.8 sqrt(d).
    names : tuple of str
        Names of the outcomes.
    weights : mapping from site to float
        omega_s in (0, 1], for public groups (:func:`capedjica.algorithms.glm.power.site_weights`); 1 by
        default.
    largest_adjustment : float, optional
        For public groups, the bound on gamma'z; 0 without covariates, by default `LARGEST_ADJUSTMENT`.
    release_variances : bool
        Whether variances are released; if not, they are bounded by 1, according to the public scale.
    design_share, products_part : float
        Share of the budget for the covariance of the design, and the fraction of it for covariates by group,
        with public groups (:func:`capedjica.algorithms.glm.power.with_design_shares`).
    missing : float
        For public groups, the largest fraction of a group at a site whose rows may be missing without bias
        (:attr:`imbalance`).
    covariate_effect : float
        Prior of the effects of covariates, in standard deviations.
    correlation : array (d, d), optional
        Public correlation of the outcomes: it gives them less noise (:attr:`noise_factors`).
    level : float
        Confidence level of the intervals.
    """

    design: Design
    scale: tuple[float, ...]
    sizes: Mapping[str, int]
    clip: float | None = None
    names: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    largest_adjustment: float | None = None
    release_variances: bool = True
    design_share: float = DESIGN_SHARE
    products_part: float = PRODUCTS_PART
    missing: float = 0.0
    covariate_effect: float = COVARIATE_EFFECT
    correlation: FloatArray | None = None
    level: float = 0.95

    def __post_init__(self) -> None:
        sizes = self.design.group_sizes
        if sizes is not None and {name: sum(groups) for name, groups in sizes.items()} != dict(self.sizes):
            raise InputError(
                "group_sizes must add up to the number of subjects of every site: "
                + ", ".join(f"{name} has {n}" for name, n in self.sizes.items())
            )

    # Public quantities

    @property
    def size(self) -> int:
        """Number of outcomes d."""
        return len(self.scale)

    @property
    def n_covariates(self) -> int:
        """Number of encoded values of the covariates."""
        return self.design.size - 1

    @property
    def bound(self) -> float:
        """Clipping bound C."""
        return default_clip(self.size) if self.clip is None else float(self.clip)

    @cached_property
    def _shape(self) -> tuple[FloatArray, FloatArray] | None:
        """A and its inverse, for a public correlation of the outcomes."""
        if self.correlation is None:
            return None
        values, vectors = np.linalg.eigh(self.correlation)
        roots = np.sqrt(np.maximum(values, _SMALLEST_EIGENVALUE))
        factors = np.sqrt(self.size / roots.sum() / roots)
        return (vectors * factors) @ vectors.T, (vectors / factors) @ vectors.T

    @cached_property
    def _noise_covariance(self) -> FloatArray:
        """Covariance of the noise on the moments of the outcomes, in units of that on a released number."""
        covariance: FloatArray = np.eye(self.size) if self._shape is None else self._shape[1] @ self._shape[1]
        return covariance

    @property
    def noise_factors(self) -> FloatArray:
        """Noise on the moment of every outcome, in units of that on a released number."""
        factors: FloatArray = np.sqrt(np.diag(self._noise_covariance))
        return factors

    @property
    def noise_factor(self) -> float:
        """Root mean square of the noise factors: 1 without a public correlation."""
        return math.sqrt(float((self.noise_factors**2).mean()))

    def shaped(self, outcomes: FloatArray) -> FloatArray:
        """Return A y of standardised outcomes (M_s, d), clipped to C."""
        with np.errstate(all="ignore"):
            return clip_rows(outcomes if self._shape is None else outcomes @ self._shape[0], self.bound)

    def unshaped(self, vectors: FloatArray) -> FloatArray:
        """Return the outcomes, or their moments, from those of A y."""
        return vectors if self._shape is None else vectors @ self._shape[1]

    @property
    def public_groups(self) -> bool:
        """Whether membership of the groups is public."""
        return self.design.mode == "public-groups"

    @property
    def contrast_factor(self) -> float:
        """lambda, by which the contrast is multiplied as one more outcome."""
        return min(1.0, self.bound / 3)

    @property
    def adjustment(self) -> float:
        """Largest score with public groups."""
        if not self.n_covariates:
            return 0.0
        return LARGEST_ADJUSTMENT if self.largest_adjustment is None else self.largest_adjustment

    @cached_property
    def variance_clip(self) -> float:
        """Largest norm of a vector of squares: about twice that of a pair whose norms are C."""
        return self.bound**2 * min(2.0, 3 / math.sqrt(self.size))

    @property
    def _pair_mark(self) -> float:
        """Value that marks a complete pair, in the same release as its squares."""
        return 0.3 * self.variance_clip

    @cached_property
    def _design_factors(self) -> FloatArray:
        """Scale factors of the design's values: numbers vary less within their range than categories."""
        return np.array(
            [2.0 if c.kind == "number" else 1.0 for c in self.design.columns for _ in range(c.size)]
        )

    @property
    def _paired_columns(self) -> slice:
        """Columns of the design whose covariance comes from pairs: all, or the covariates alone."""
        return slice(1 if self.public_groups else 0, self.design.size)

    @property
    def _n_paired(self) -> int:
        return self.n_covariates if self.public_groups else self.design.size

    def weight(self, site: str) -> float:
        """Return omega_s."""
        return self.weights.get(site, 1.0)

    def leading(self, site: str, contrast: float) -> FloatArray:
        """Return the leading numbers of a row: the fixed factor omega (g - mean of g), and omega.

        The factor is 0 for private groups.
        """
        if not self.public_groups:
            return np.array([0.0, 1.0])
        return np.array([self.weight(site) * (contrast - self._group_mean(site)), self.weight(site)])

    def rows(self, site: str, design: FloatArray, outcomes: FloatArray) -> FloatArray:
        """Return a site's rows from encoded designs (M_s, 1 + p) and standardised outcomes (M_s, d)."""
        leading = np.tile(self.leading(site, 0.0), (len(design), 1))
        if self.public_groups:
            leading[:, 0] += self.weight(site) * design[:, 0]
        return np.hstack([leading, design, outcomes])

    def _group_mean(self, site: str) -> float:
        first, second = (self.design.group_sizes or {})[site]
        return (second - first) / (first + second)

    def largest_factor(self, site: str) -> float:
        """Return k_s, the largest |omega (g - mean of g)|; almost zero if there is only one group."""
        mean = abs(self._group_mean(site))
        return self.weight(site) * (1 + mean if mean < 1 else _NO_CONTRAST)

    @property
    def imbalance(self) -> float:
        r"""Largest mean of the fixed factors of a site, if a fraction f of either group is missing.

        The factors of a group of n_1 are :math:`2 \omega n_2 / n`. Without f n_1 of them the others add up to
        :math:`2 \omega f n_1 n_2 / n`, and n - f n_1 are left.
        """
        groups = (self.design.group_sizes or {}).items()
        return max(
            2
            * self.weight(name)
            * self.missing
            * one
            * two
            / ((one + two) * (one + two - self.missing * most))
            for name, (one, two) in groups
            for most in (max(one, two),)
        )

    @cached_property
    def _cross(self) -> CrossMoment:
        if not self.public_groups:
            return CrossMoment(1.0)
        fixed = tuple((name, self.largest_factor(name)) for name in self.sizes)
        return CrossMoment(self.adjustment, fixed, self.imbalance)

    @cached_property
    def effects_query(self) -> Query:
        """Query of the cross-moment of the outcomes, and of a private contrast, with the scores."""
        if self.public_groups:
            return Query(EFFECTS_LABEL, self.size, self.bound, cross=self._cross)
        length = math.hypot(self.bound, self.contrast_factor)
        return Query(EFFECTS_LABEL, self.size + 1, length, cross=self._cross)

    @cached_property
    def _kinds(self) -> tuple[str, ...]:
        kinds = [VARIANCES_LABEL] if self.release_variances else []
        if self.n_covariates:
            kinds += [DESIGN_LABEL, PRODUCTS_LABEL] if self.public_groups else [DESIGN_LABEL]
        return (*kinds, EFFECTS_LABEL)

    @property
    def _last_of_design(self) -> str:
        return PRODUCTS_LABEL if self.public_groups else DESIGN_LABEL

    def stages(self) -> tuple[Stage, ...]:
        """Return the queries, and their shares of the budget."""
        by_pairs = 1 - self.products_part if self.public_groups else 1.0
        asked = {
            VARIANCES_LABEL: lambda: Stage(self._variances_query, share=VARIANCE_SHARE),
            DESIGN_LABEL: lambda: Stage(self._design_query, share=self.design_share * by_pairs),
            PRODUCTS_LABEL: lambda: Stage(self._products_query, share=self.design_share * self.products_part),
        }
        before = [asked[kind]() for kind in self._kinds[:-1]]
        return (*before, Stage(self.effects_query, share=1 - math.fsum(stage.share for stage in before)))

    @property
    def _variances_query(self) -> Query:
        longest = math.hypot(self.variance_clip, self._pair_mark)
        return Query(VARIANCES_LABEL, self.size + 1, longest, PSD_SPREAD)

    @property
    def _design_query(self) -> Query:
        # Norm of the squares of a pair: 2 for every level, and about three variances of a number.
        clip = 2.0 * self._n_paired
        if self.public_groups:
            clip = 2.0 * float(self._design_factors[1:].sum())
        # Of one column: a number between 0 and the clip.
        spread = PSD_SPREAD if self._n_paired > 1 else 1.0
        return Query(DESIGN_LABEL, svec_size(self._n_paired), clip, spread)

    @property
    def _products_query(self) -> Query:
        # The largest norm of k z: nothing is clipped.
        largest = max(self.largest_factor(name) for name in self.sizes)
        clip = largest * float(np.linalg.norm(self._design_factors[1:]))
        return Query(PRODUCTS_LABEL, self.n_covariates, clip)

    # At a site

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the statistics of a site, computed from its rows."""
        return _SiteRows(self, _read_rows(subjects, LEADING + self.design.size + self.size))

    # At the aggregator

    def estimate(self, means: Means, progress: Progress | None = None) -> Findings:
        """Request the moments, and return effects with their errors."""
        released = {}
        adjustment = self.no_adjustment
        variances = _Variances(np.ones(self.size), np.full(self.size, np.inf), 1.0)
        for number, kind in enumerate(self._kinds):
            value = means.mean(number, adjustment.state if kind == EFFECTS_LABEL else b"")
            released[kind] = value, means.released[-1].noise
            present = self._among(means.released[-1].sites)
            if kind == VARIANCES_LABEL:
                variances = present._variances(*released[kind])
            elif kind == self._last_of_design:
                adjustment = present._adjust(released, variances.complete)
        n_people = means.released[-1].n_people or sum(self.sizes.values())
        return present._findings(*released[EFFECTS_LABEL], variances, adjustment, n_people)

    def _among(self, sites: Sequence[str]) -> GroupComparisonAnalysis:
        """Return the comparison of the sites that contributed to a release."""
        if not set(sites) < set(self.sizes) or not sites:
            return self
        groups = self.design.group_sizes
        if groups is None:
            return replace(self, sizes={name: self.sizes[name] for name in sites})
        design = replace(self.design, group_sizes={name: groups[name] for name in sites})
        return replace(self, design=design, sizes={name: self.sizes[name] for name in sites})

    @cached_property
    def _pairs_per_person(self) -> float:
        return sum(size // 2 for size in self.sizes.values()) / sum(self.sizes.values())

    def _variances(self, mean: FloatArray, noise: float) -> _Variances:
        r"""Return the variances, shrunk to their mean, their uncertainty, and the fraction of complete pairs.

        For d released variances with known error e (noise, and sampling of n pairs), the variance between
        them minus e^2 is the true variance between outcomes, :math:`\tau^2`; each becomes
        :math:`\bar v + \tau^2 / (\tau^2 + e^2) (v_j - \bar v)`.
        """
        n_pairs = self._pairs_per_person * sum(self.sizes.values())
        per_pair, noise = mean / self._pairs_per_person, noise / self._pairs_per_person
        counted, count_noise = per_pair[0] / self._pair_mark, noise / self._pair_mark
        trust = _COMPLETE_SPREAD**2 / (_COMPLETE_SPREAD**2 + count_noise**2)
        complete = float(np.clip(1 + trust * (counted - 1), 0.2, 1.0))
        values = per_pair[1:] / complete
        middle = max(float(values.mean()), 0.05)
        error = (noise / complete) ** 2 + 2 * middle**2 / n_pairs
        between = max(0.0, float(values.var(ddof=1)) - error) if len(values) > 1 else math.inf
        keep = 1.0 if math.isinf(between) else between / (between + error)
        shrunk = np.maximum(middle + keep * (values - middle), 0.2 * middle)
        uncertainty = np.full(len(values), keep * error + (1 - keep) * error / len(values))
        return _Variances(shrunk, uncertainty, complete)

    def _adjust(
        self, released: Mapping[str, tuple[FloatArray, float]], complete: float, expected: bool = False
    ) -> Adjustment:
        """Return gamma from the released covariance, each entry at its posterior mean, and the remainder.

        It is computed in the units of the release; gamma is then in those of the encoded design. With
        ``expected``, what is released has no noise yet.
        """
        mean, noise = released[DESIGN_LABEL]
        factor = 1 / (self._pairs_per_person * complete)
        paired, paired_noise = unsvec(mean) * factor, noise * factor
        if self.public_groups:
            moments = self._public_moments(*released[PRODUCTS_LABEL], paired, paired_noise, complete)
            moments = moments.typical() if expected else moments
            score = 2 * moments.explained_deviation / self._design_factors[0]
            # Scores beyond the agreed bound would be clipped.
            return self._adjusted(moments, min(1.0, self.adjustment / max(score, 1e-12)), 0.0)
        moments = _DesignMoments.of(
            max(float(paired[0, 0]), 0.05),
            paired[0, 1:],
            paired_noise / math.sqrt(2),
            paired[1:, 1:],
            paired_noise,
        )
        # In units of the encoded contrast.
        score = 2 * moments.explained_deviation / self._design_factors[0]
        return self._adjusted(moments, self._part(moments, noise), score)

    def _public_moments(
        self, products: FloatArray, noise: float, zz: FloatArray, zz_noise: float, complete: float
    ) -> _DesignMoments:
        r"""Return the covariance of the design with public groups, rescaled to weights of 1.

        The effects have the confounding :math:`\sum_s \omega_s \sum_i (g - \bar g_s) z - \gamma' \sum_s
        \omega_s M_s S_{zz}`, which is 0 for :math:`\gamma = S_{zz}^{-1} S_{gz}` if :math:`S_{gz}` is the
        released mean divided by the mean weight of the participants.
        """
        first = self._design_factors[0]
        # The count is of complete pairs; its square root is that of complete participants.
        factor = first / (self.mean_weight * math.sqrt(complete))
        variance_g = self.group_moments[2] * first**2
        return _DesignMoments.of(variance_g, products * factor, noise * factor, zz, zz_noise)

    @property
    def mean_weight(self) -> float:
        """Mean of omega over the participants."""
        total = math.fsum(self.weight(name) * size for name, size in self.sizes.items())
        return total / sum(self.sizes.values())

    def expected_adjustment(
        self, noises: Mapping[str, float], group_variance: float, correlation: float
    ) -> Adjustment:
        """Return the expected adjustment, with covariates distributed as in the priors.

        Parameters
        ----------
        noises : mapping from label to float
            Standard deviation of the noise on the releases about the design.
        group_variance : float
            Variance of the encoded contrast within sites; ignored with public groups.
        correlation : float
            Correlation of the contrast with every covariate.
        """
        if not self.n_covariates:
            return self.no_adjustment
        first, variance = self._design_factors[0], _PRIOR_VARIANCE[0]
        if self.public_groups:
            group_variance = self.group_moments[2]
        gz = np.full(self.n_covariates, correlation * math.sqrt(group_variance * variance))
        covariance = np.diag([group_variance * first**2, *[variance] * self.n_covariates])
        covariance[0, 1:] = covariance[1:, 0] = gz * first
        paired = covariance[self._paired_columns, self._paired_columns] * self._pairs_per_person
        means = {DESIGN_LABEL: svec(paired)}
        if self.public_groups:
            means[PRODUCTS_LABEL] = gz * self.mean_weight
        released = {name: (mean, noises[name]) for name, mean in means.items()}
        return self._adjust(released, 1.0, expected=True)

    @property
    def no_adjustment(self) -> Adjustment:
        """Adjustment of a comparison without covariates."""
        nothing = np.zeros(self.n_covariates)
        return Adjustment(nothing, 1.0, nothing, 0.0, 0.0)

    def _adjusted(self, moments: _DesignMoments, part: float, score: float) -> Adjustment:
        """Return the adjustment by a fraction of gamma; it widens scores by up to ``score``."""
        squares, own = self._design_factors[0] ** 2, part * moments.gamma
        units = self._design_factors[1:] / self._design_factors[0]
        width = 1 + part * min(float(np.abs(moments.gamma * units).sum()), score)
        assumed = moments.likely_gz if self.public_groups else moments.largest_gz
        left = moments.left(part, assumed) + moments.zz_error @ own**2
        return Adjustment(
            own * units,
            width,
            self._in_deviations(moments, left) / width**2,
            float(own @ moments.gz) / squares,
            float(own**2 @ moments.gz_error) / squares**2,
        )

    def _in_deviations(self, moments: _DesignMoments, left: FloatArray) -> FloatArray:
        """Return the squares of remaining covariances, with the covariates in their standard deviations."""
        squares: FloatArray = left / moments.variances / self._design_factors[0] ** 2
        return squares

    def confounding(self, adjustment: Adjustment, sampling: float) -> float:
        """Return b^2 for outcomes of variance 1, or by how much it exceeds what ``sampling`` counts already.

        ``sampling`` is S_hh / M. With public groups it contains what the covariates explain, by (4).
        """
        counted = sampling if self.public_groups else 0.0
        return self.covariate_effect**2 * float(np.maximum(adjustment.left - counted, 0.0).sum())

    def _part(self, moments: _DesignMoments, noise: float) -> float:
        """Return the fraction of gamma by which a private contrast is adjusted.

        Adjustment widens the scores, and thus the noise on effects. The fraction is optimal for covariances
        as large as the prior's. A fraction that depended on the released covariances would leave the most
        confounding where noise hides it, and nothing released would show this.
        """
        square = (self._effects_per_design_noise * noise) ** 2
        deviation = math.sqrt(moments.variance_g) / float(self._design_factors[0])
        widening = 2 * PRIOR_CORRELATION * deviation * math.sqrt(self.n_covariates)

        def risk(part: float) -> float:
            left = moments.left(part, moments.prior_gz)
            remaining = float(self._in_deviations(moments, left).sum())
            return square * (1 + part * widening) ** 2 + self.covariate_effect**2 * remaining

        return min((tenth / 10 for tenth in range(11)), key=risk)

    @cached_property
    def _effects_per_design_noise(self) -> float:
        """Ratio of the noise on effects to that on the covariance of the design, by sensitivity and share."""
        *_, design, effects = self.stages()
        ratio = self.noise_factor * effects.query.sensitivity() / design.query.sensitivity()
        return ratio * math.sqrt(design.share / effects.share)

    def _findings(
        self,
        mean: FloatArray,
        noise: float,
        variances: _Variances,
        adjustment: Adjustment,
        n_people: int,
    ) -> Findings:
        q, q_noise, square = self._denominator(mean, noise, variances.complete, adjustment)
        estimable = q > _LEAST_Q * q_noise and q > 0
        remaining = self.confounding(adjustment, square / n_people)
        sampling = variances.values * square / n_people
        confounding = remaining * variances.values
        null = sampling + (noise * self.noise_factors) ** 2 + confounding
        moments = self.unshaped(mean[: self.size])
        doubt = (variances.uncertainty * (square / n_people + remaining) ** 2) / null**2
        degrees = np.clip(2 / np.maximum(doubt, 1e-12), 3.0, 1e6) if self.release_variances else np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            effects = np.where(estimable, moments / q, np.nan)
            errors = np.where(estimable, np.sqrt(null + (effects * q_noise) ** 2) / q, np.inf)
        units = np.array(self.scale) * self.design.contrast.unit
        return Findings(
            effects=effects * units,
            standard_errors=errors * units,
            statistics=moments / np.sqrt(null),
            degrees=np.broadcast_to(degrees, (self.size,)).astype(np.float64),
            noise=np.where(estimable, noise * self.noise_factors / max(q, 1e-300), np.inf) * units,
            names=self.names,
            attenuation=attenuation(self.size, self.bound),
            estimable=bool(estimable),
            correlation=self._correlation(sampling, noise, null),
            level=self.level,
            confounding=math.sqrt(float(confounding.mean())) / q if estimable else math.inf,
        )

    def _denominator(
        self, mean: FloatArray, noise: float, complete: float, adjustment: Adjustment
    ) -> tuple[float, float, float]:
        """Return q, its standard error, and S_hh, the mean square of the scores within sites."""
        if not self.public_groups:
            q = float(mean[-1]) / self.contrast_factor
            # Sufficient for tests, even if effects cannot be estimated.
            return q, noise / self.contrast_factor, min(max(q, 0.2), 1.0) / adjustment.width
        once, twice, _ = self.group_moments
        # Per subject; ``complete`` counted pairs.
        complete = math.sqrt(complete)
        explained = min(self.mean_weight * adjustment.explained / once, 0.9)
        doubt = self.mean_weight * math.sqrt(adjustment.explained_variance) / once
        q = once * (1 - explained) * complete
        return q, once * doubt * complete, twice * (1 - explained) * complete

    @cached_property
    def group_moments(self) -> tuple[float, float, float]:
        """For public groups, the mean of omega, omega^2 and 1 times (g - mean of g)^2 within sites."""
        total = sum(self.sizes.values())
        squares = {
            name: 4 * first * second / (first + second)
            for name, (first, second) in (self.design.group_sizes or {}).items()
        }
        powers = (
            math.fsum(self.weight(name) ** power * square for name, square in squares.items()) / total
            for power in (1, 2, 0)
        )
        once, twice, plain = powers
        return once, twice, plain

    def _correlation(self, sampling: FloatArray, noise: float, null: FloatArray) -> FloatArray | None:
        """Return the correlation of the estimates: that of the outcomes and that of the noise."""
        if self.correlation is None:
            return None
        deviations = np.sqrt(sampling)
        covariance = np.outer(deviations, deviations) * self.correlation + noise**2 * self._noise_covariance
        mixed: FloatArray = covariance / np.sqrt(np.outer(null, null))
        np.fill_diagonal(mixed, 1.0)
        return mixed


@dataclass(frozen=True, eq=False)
class _Variances:
    """Variances of the outcomes, the variance of each of these, and the fraction of complete pairs."""

    values: FloatArray
    uncertainty: FloatArray
    complete: float


@dataclass(frozen=True, eq=False)
class _DesignMoments:
    """Covariance of the design as released, each entry at its posterior mean, and their variances.

    ``released_gz`` are the covariances of the contrast before this, with normal noise of ``gz_noise``.
    """

    variance_g: float
    variances: FloatArray
    zz: FloatArray
    zz_error: FloatArray
    gz: FloatArray
    gz_error: FloatArray
    released_gz: FloatArray
    gz_noise: float

    @classmethod
    def of(
        cls, variance_g: float, gz: FloatArray, gz_noise: float, zz: FloatArray, zz_noise: float
    ) -> _DesignMoments:
        """Compute the moments from released covariances; off-diagonal entries of zz have noise / sqrt(2)."""
        prior, spread = _PRIOR_VARIANCE
        kept = spread**2 / (spread**2 + zz_noise**2)
        variances = np.maximum(prior + kept * (np.diag(zz) - prior), _SMALLEST_VARIANCE)
        deviations = np.sqrt(variances)
        prior_zz = PRIOR_CORRELATION * np.outer(deviations, deviations)
        own_zz, zz_error = _posterior(zz, prior_zz, zz_noise / math.sqrt(2))
        np.fill_diagonal(own_zz, variances)
        np.fill_diagonal(zz_error, kept * zz_noise**2)
        prior_gz = PRIOR_CORRELATION * math.sqrt(variance_g) * deviations
        own_gz, gz_error = _posterior(gz, prior_gz, gz_noise)
        return cls(variance_g, variances, _positive(own_zz), zz_error, own_gz, gz_error, gz, gz_noise)

    @property
    def prior_gz(self) -> FloatArray:
        """Prior standard deviations of the covariances of the contrast."""
        deviations: FloatArray = PRIOR_CORRELATION * np.sqrt(self.variance_g * self.variances)
        return deviations

    @property
    def largest_gz(self) -> FloatArray:
        """Largest plausible covariances: the prior's, or the released ones minus two of their errors."""
        return np.maximum(self.prior_gz, np.abs(self.released_gz) - 2 * self.gz_noise)

    @property
    def likely_gz(self) -> FloatArray:
        r"""Covariances whose squares are, on average over the noise, at least those of the true ones.

        For a true covariance c, released as r with noise n, the mean of :math:`r^2 - n^2` is :math:`c^2`. If
        the noise exceeds the prior p, :math:`r^2 p^2 / (p^2 + n^2)` is closer; its mean is at least
        :math:`c^2` for :math:`|c| \le p`. The posterior mean square would exceed :math:`c^2` by
        :math:`2 n^2` on average.
        """
        squares = self.released_gz**2
        unbiased = np.maximum(squares - self.gz_noise**2, 0.0)
        kept = self.prior_gz**2 / (self.prior_gz**2 + self.gz_noise**2)
        likely: FloatArray = np.sqrt(np.where(self.gz_noise < self.prior_gz, unbiased, kept * squares))
        return likely

    def typical(self) -> _DesignMoments:
        """Return the moments with :attr:`likely_gz` as large as noise makes its square on average."""
        noisy = np.hypot(self.released_gz, math.sqrt(_TYPICAL_SQUARE) * self.gz_noise)
        return replace(self, released_gz=noisy)

    @cached_property
    def gamma(self) -> FloatArray:
        """Coefficients by which the contrast is residualised."""
        return np.asarray(np.linalg.solve(self.zz, self.gz), dtype=np.float64)

    @property
    def explained_deviation(self) -> float:
        """Standard deviation of gamma'z."""
        return math.sqrt(float(self.gamma @ self.zz @ self.gamma))

    def left(self, part: float, covariance: FloatArray) -> FloatArray:
        r"""Return the mean square of the part of true covariances c that remains after partial adjustment.

        The posterior mean is k (c + noise) with :math:`k = p^2 / (p^2 + n^2)`, so the mean square is
        :math:`(1 - \text{part}\, k)^2 c^2 + (\text{part}\, k n)^2`.
        """
        adjusted = part * self.prior_gz**2 / (self.prior_gz**2 + self.gz_noise**2)
        squares: FloatArray = ((1 - adjusted) * covariance) ** 2 + (adjusted * self.gz_noise) ** 2
        return squares


@dataclass(frozen=True, eq=False)
class Adjustment:
    """gamma and w; what remains of covariances; the variance of g explained by z, and its precision.

    ``left`` are the squares of the covariances of h and z, with z in units of its standard deviation.
    """

    gamma: FloatArray
    width: float
    left: FloatArray
    explained: float
    explained_variance: float

    @property
    def state(self) -> bytes:
        """Public state from which sites compute scores."""
        return pack(gamma=self.gamma, width=[self.width])


class _SiteRows:
    """Statistics of a site: rows for each kind of release."""

    def __init__(self, analysis: GroupComparisonAnalysis, rows: FloatArray) -> None:
        self._analysis = analysis
        first = LEADING + analysis.design.size
        self._leading, self._design = rows[:, :LEADING], rows[:, LEADING:first]
        self._outcomes = analysis.shaped(rows[:, first:])
        broken = ~np.isfinite(np.hstack([rows, self._outcomes]))
        self._complete: NDArray[np.bool_] = np.count_nonzero(broken, axis=1) == 0

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[Scan]:
        kinds = self._analysis._kinds
        if stage >= len(kinds):
            raise ProtocolError(f"stage must be less than {len(kinds)}, got {stage}")
        with np.errstate(all="ignore"):
            if kinds[stage] == EFFECTS_LABEL:
                arrays = read_arrays(state, gamma=(self._analysis.n_covariates,), width=(1,))
                return [self._scores(arrays["gamma"], float(arrays["width"][0]))]
            if kinds[stage] == PRODUCTS_LABEL:
                return [self._products()]
            return [self._variances() if kinds[stage] == VARIANCES_LABEL else self._covariance()]

    def _pairs(self, values: FloatArray) -> FloatArray:
        """Return the difference of every pair divided by sqrt(2), at its first member; zero elsewhere."""
        paired, n_pairs = np.zeros_like(values), len(values) // 2
        first, second = values[0 : 2 * n_pairs : 2], values[1 : 2 * n_pairs : 2]
        paired[0 : 2 * n_pairs : 2] = np.where(self._complete_pairs[:, np.newaxis], first - second, 0.0)
        differences: FloatArray = paired / math.sqrt(2)
        return differences

    @cached_property
    def _complete_pairs(self) -> NDArray[np.bool_]:
        n_pairs = len(self._complete) // 2
        return self._complete[0 : 2 * n_pairs : 2] & self._complete[1 : 2 * n_pairs : 2]

    def _variances(self) -> FloatArray:
        n_pairs, mark = len(self._complete) // 2, np.zeros(len(self._complete))
        mark[0 : 2 * n_pairs : 2] = self._complete_pairs * self._analysis._pair_mark
        squares = self._pairs(self._analysis.unshaped(self._outcomes)) ** 2
        return np.column_stack([mark, clip_rows(squares, self._analysis.variance_clip)])

    def _covariance(self) -> FloatArray:
        paired = self._analysis._paired_columns
        pairs = self._pairs((self._design * self._analysis._design_factors)[:, paired])
        rows, columns = np.triu_indices(pairs.shape[1])
        # svec of all outer products at once.
        squares: FloatArray = pairs[:, rows] * pairs[:, columns] * np.where(rows == columns, 1, math.sqrt(2))
        return squares

    def _products(self) -> FloatArray:
        """Return the covariates times the fixed factor of the group."""
        products: FloatArray = self._leading[:, :1] * (self._design * self._analysis._design_factors)[:, 1:]
        products[~self._complete] = np.nan
        return products

    def _scores(self, gamma: FloatArray, width: float) -> FloatArray:
        """Return rows (k, t, y), with a private contrast as one more outcome."""
        analysis = self._analysis
        explained = self._design[:, 1:] @ gamma
        if analysis.public_groups:
            scores = np.clip(-self._leading[:, 1] * explained, -analysis.adjustment, analysis.adjustment)
            parts = [self._leading[:, 0], scores, self._outcomes]
        else:
            contrast = self._design[:, 0]
            scores = (contrast - explained) / width
            parts = [np.zeros(len(scores)), scores, self._outcomes, analysis.contrast_factor * contrast]
        rows = np.column_stack(parts)
        rows[~self._complete] = np.nan
        return rows


def _read_rows(subjects: Sequence[Scan], width: int) -> FloatArray:
    """Return the row of every subject; NaN if it cannot be read."""
    rows = np.full((len(subjects), width), np.nan)
    for number in range(len(subjects)):
        try:
            rows[number] = np.asarray(subjects[number], dtype=np.float64).reshape(width)
        except Exception:
            # defence: one-row-of-a-design-fails-alone
            rows[number] = np.nan
    return rows


def _posterior(values: FloatArray, prior: FloatArray, noise: float) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean and variance of numbers with prior N(0, prior^2) and known noise."""
    kept = prior**2 / (prior**2 + noise**2)
    return kept * values, kept * noise**2


def _positive(matrix: FloatArray) -> FloatArray:
    """Return a symmetric matrix with its eigenvalues raised to at least a tenth of their mean."""
    values, vectors = np.linalg.eigh(matrix)
    raised: FloatArray = (vectors * np.maximum(values, 0.1 * np.diag(matrix).mean())) @ vectors.T
    return raised
