r"""What a study will release, how noisy it will be and what it will cost, before anything is computed.

The paper's method (capePCA, then capeDJICA) makes 1 + 2J releases, each a private mean over subjects:

================  ============  ========  =================================  ======================
stage             numbers       releases  one subject's statistic            moves the mean by
================  ============  ========  =================================  ======================
capePCA           D(D+1)/2      1         second moment, samples clipped     sqrt(2) C / M, C = 1
gradient of W     R^2           J         mean of clipped gradients          2 B_G / M, B_G = 30
gradient of b     R             J         mean of clipped gradients          2 B_h / M, B_h = sqrt(30)
================  ============  ========  =================================  ======================

Sites are weighted by their subjects, w_s = M_s/M, so w_s times the sensitivity of site s is the same
everywhere and every site pays the same mu. At equal mu the variance of a mean, against that of a trusted
curator who holds all data (*pooled*), is

=============  =============================================
pooled         1
cape           S/S_H with uniform masks, S/(S+1) (1 + S/S_H) with the paper's
conventional   S
local          (M / M_s)^2 for site s alone
=============  =============================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from capedjica.errors import InputError
from capedjica.privacy import (
    ACCOUNTANTS,
    Cape,
    Release,
    accountant,
    calibrate,
    gaussian_epsilon,
    gaussian_mu,
    paper,
    validate,
)
from capedjica.privacy.cape import Mask
from capedjica.securesum.parameters import default_threshold

B_G = 30.0
B_H = math.sqrt(B_G)
PCA_CLIP = 1.0
# Part of mu^2 for the one release of capePCA; the rest is shared evenly by the 2J gradient releases.
PCA_SHARE = 0.3
# Part of mu^2 left unspent so that rounding never brings a total above the epsilon asked for.
HEADROOM = 1e-12
# A budget beyond these is a slip of the keyboard, and no plan.
LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9
# The delta inside the square root of the paper's noise calibration (its Section V, "Performance Index").
PAPER_NOISE_DELTA = 1e-2


@dataclass(frozen=True)
class Setting:
    """The public numbers of a study.

    Parameters
    ----------
    subjects : sequence of int
        M_s, the number enrolled at each site.
    n_components, n_features : int
        R and D.
    delta : float
        Of the total guarantee.
    n_colluding : int or "third"
        S_C, sites that may side with the aggregator.
    n_iterations : int
        J, the most iterations of the gradient descent.
    mask : {"uniform", "paper"}
        Masks as wide as the ring, or the paper's Gaussian ones.
    """

    subjects: tuple[int, ...]
    n_components: int = 20
    n_features: int = 900
    delta: float = 1e-5
    n_colluding: int | str = "third"
    n_iterations: int = 1000
    mask: Mask = "uniform"

    def __post_init__(self) -> None:
        if len(self.subjects) < 2:
            raise InputError(
                f"sites must be at least 2, got {len(self.subjects)}: CAPE hides a site among others"
            )
        for site, size in enumerate(self.subjects):
            validate.count(f"subjects of site {site}", size)
        object.__setattr__(self, "subjects", tuple(map(int, self.subjects)))
        validate.count("components", self.n_components, minimum=2)
        validate.count("features", self.n_features)
        validate.count("iterations", self.n_iterations)
        validate.probability("delta", self.delta)
        if self.n_components > self.n_features:
            raise InputError(
                f"components must be at most the features, {self.n_features}; got {self.n_components}"
            )
        parse_mask(self.mask)
        object.__setattr__(self, "n_colluding", validate.colluding(self.n_colluding, self.n_sites))

    @property
    def n_sites(self) -> int:
        """S."""
        return len(self.subjects)

    @property
    def n_subjects(self) -> int:
        """M."""
        return sum(self.subjects)

    @property
    def weights(self) -> list[float]:
        """w_s = M_s / M."""
        total = self.n_subjects
        return [size / total for size in self.subjects]


def parse_mask(text: str) -> Mask:
    """Return the name of a kind of masks, checked."""
    if text == "uniform":
        return "uniform"
    if text == "paper":
        return "paper"
    raise InputError(f"mask must be 'uniform' or 'paper', got {text!r}")


def spread_subjects(subjects: Sequence[int], n_sites: int) -> tuple[int, ...]:
    """Return subjects per site: one number is divided as evenly as it goes, several are taken as they are."""
    validate.count("sites", n_sites, minimum=2)
    if len(subjects) == 1:
        total = validate.count("subjects", subjects[0], minimum=n_sites)
        return tuple(total // n_sites + (site < total % n_sites) for site in range(n_sites))
    if len(subjects) != n_sites:
        raise InputError(
            f"subjects must be one number or one per site, {n_sites}; got {len(subjects)} numbers"
        )
    return tuple(subjects)


@dataclass(frozen=True)
class Stage:
    """One kind of release: a mean of vectors of ``n_values`` numbers, made ``n_releases`` times.

    ``spread`` is how far one subject moves the mean in units of C/M: 2, or sqrt(2) for positive
    semidefinite matrices. ``mu`` is exact, per release. ``noise`` is the standard deviation of each
    number of the mean, ``noise_norm`` the typical length of the noise vector, sqrt(n_values) noise, in
    units of the clip C, which is the longest that a mean of clipped statistics can be: above 1 one release
    has more noise than signal. ``epsilon`` is that of all releases of the stage.
    """

    name: str
    statistic: str
    n_values: int
    n_releases: int
    clip: float
    spread: float
    mu: float = math.nan
    noise: float = math.nan
    noise_norm: float = math.nan
    epsilon: float = math.nan


def paper_stages(setting: Setting) -> list[Stage]:
    """Return the releases of capePCA and capeDJICA, not yet calibrated."""
    d, r, j = setting.n_features, setting.n_components, setting.n_iterations
    return [
        Stage("capePCA", "second moment of the features", d * (d + 1) // 2, 1, PCA_CLIP, math.sqrt(2)),
        Stage("gradient of W", "gradient of the unmixing matrix", r * r, j, B_G, 2.0),
        Stage("gradient of b", "gradient of the bias", r, j, B_H, 2.0),
    ]


@dataclass(frozen=True)
class Plan:
    """A calibrated study: what it releases, what it costs, and how that compares."""

    setting: Setting
    stages: list[Stage]
    epsilon: dict[str, float]
    epsilon_gradient: dict[str, float]
    paper_says: dict[str, float]
    comparison: dict[str, dict[str, float]]
    subjects_needed: list[dict[str, float]]
    colluding: list[dict[str, Any]]
    one_more_site: dict[str, float]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON; null where one is infinite or does not exist."""
        result: dict[str, Any] = _finite_or_null(asdict(self))
        result["setting"] |= {"n_sites": self.setting.n_sites, "n_subjects": self.setting.n_subjects}
        return result


def plan_for_epsilon(setting: Setting, epsilon: float) -> Plan:
    """Find the noise for a total epsilon over all stages (exact accounting)."""
    total = gaussian_mu(_budget("epsilon", epsilon), setting.delta) ** 2 * (1 - HEADROOM)
    stages = []
    for stage in paper_stages(setting):
        share = PCA_SHARE if stage.name == "capePCA" else (1 - PCA_SHARE) / 2
        mu = math.sqrt(total * share / stage.n_releases)
        cape = calibrate(
            mu, _sensitivities(setting, stage), setting.weights, setting.n_colluding, setting.mask
        )
        stages.append(_calibrated(setting, stage, cape))
    return _plan(setting, stages)


def plan_for_noise(setting: Setting, epsilon_per_iteration: float) -> Plan:
    r"""Find the epsilon of the paper's noise, tau = Delta/epsilon_i sqrt(2 log(1.25/0.01)) for each release.

    The variance of each mean is that of the paper, tau_pool^2, in equal parts from all sites; the masks
    are those of ``setting.mask`` and do not change it.
    """
    epsilon_i = _budget("epsilon_per_iteration", epsilon_per_iteration)
    stages = []
    for stage in paper_stages(setting):
        tau = paper.gaussian_mechanism_tau(_pooled_sensitivity(setting, stage), epsilon_i, PAPER_NOISE_DELTA)
        stages.append(_calibrated(setting, stage, _cape_of_variance(setting, tau**2)))
    return _plan(setting, stages)


def _budget(name: str, value: float) -> float:
    number = validate.positive(name, value)
    if not LEAST_EPSILON <= number <= MOST_EPSILON:
        raise InputError(f"{name} must lie between {LEAST_EPSILON:g} and {MOST_EPSILON:g}, got {value}")
    return number


def _cape_of_variance(setting: Setting, variance: float) -> Cape:
    """Return the release whose mean has this variance, the sites contributing equally."""
    local_var = variance / setting.n_sites / np.square(setting.weights)
    mask_var = math.inf if setting.mask == "uniform" else setting.n_sites * local_var
    return Cape(mask_var, local_var, setting.weights, setting.n_colluding)


def _pooled_sensitivity(setting: Setting, stage: Stage) -> float:
    return stage.spread * stage.clip / setting.n_subjects


def _sensitivities(setting: Setting, stage: Stage) -> list[float]:
    return [stage.spread * stage.clip / size for size in setting.subjects]


def _calibrated(setting: Setting, stage: Stage, cape: Cape) -> Stage:
    mu = float(cape.mu(_sensitivities(setting, stage)).max())
    noise = math.sqrt(cape.output_variance)
    return replace(
        stage,
        mu=mu,
        noise=noise,
        noise_norm=noise * math.sqrt(stage.n_values) / stage.clip,
        epsilon=gaussian_epsilon(mu * math.sqrt(stage.n_releases), setting.delta),
    )


def _plan(setting: Setting, stages: list[Stage]) -> Plan:
    return Plan(
        setting=setting,
        stages=stages,
        epsilon=_totals(stages, setting.delta),
        epsilon_gradient=_totals(stages[1:], setting.delta),
        paper_says=_paper_says(setting, stages),
        comparison=_comparison(setting, stages),
        subjects_needed=_subjects_needed(setting, stages),
        colluding=_colluding(setting, stages),
        one_more_site=_one_more_site(setting, stages),
        warnings=_warnings(setting),
    )


def _totals(stages: list[Stage], delta: float) -> dict[str, float]:
    """Total epsilon under every accountant."""
    totals = {}
    for name in ACCOUNTANTS:
        ledger = accountant(name, delta)
        ledger.compose(*(Release(stage.mu, stage.n_releases, stage.name) for stage in stages))
        totals[name] = ledger.epsilon
    return totals


def _total_mu(stages: list[Stage]) -> float:
    return math.hypot(*(math.sqrt(stage.n_releases) * stage.mu for stage in stages))


def _paper_says(setting: Setting, stages: list[Stage]) -> dict[str, float]:
    """Return what the paper's formulas give for the same noise: the gradient descent alone, PCA left out."""
    s, j, delta = setting.n_sites, setting.n_iterations, setting.delta
    rate = 0.015 / math.log(setting.n_components)
    ratios = [stage.noise / _pooled_sensitivity(setting, stage) for stage in stages[1:]]
    printed = [
        paper.rdp_sigma_squared(stage.noise, _pooled_sensitivity(setting, stage), rate)
        for stage in stages[1:]
    ]
    combined = 1 / math.sqrt(sum(1 / ratio**2 for ratio in ratios))
    per_release = _theorem_1_epsilon(ratios[0], s, int(setting.n_colluding), delta / (2 * j))
    return {
        "rdp_as_printed": paper.rdp_epsilon(j, printed[0], printed[1], delta),
        "rdp_corrected_output_only": paper.rdp_epsilon(j, ratios[0] ** 2, ratios[1] ** 2, delta),
        "moments_as_printed": paper.moments_epsilon(j, 1.0, combined, delta),
        "theorem_1_per_release": per_release,
        "theorem_2_total": paper.capedjica_naive(j, per_release, delta / (2 * j))[0],
    }


def _theorem_1_epsilon(ratio: float, n_sites: int, n_colluding: int, delta: float) -> float:
    """Return epsilon at which Theorem 1 gives delta, or NaN beyond its ranges of epsilon and S_C.

    ``ratio`` is tau_pool over the sensitivity of the mean; in the paper's units tau = ratio, N = S.
    """
    if n_colluding > paper.theorem_1_most_colluding(n_sites):
        return math.nan

    def excess(epsilon: float) -> float:
        return paper.cape_delta(epsilon, ratio, n_sites, n_sites, n_colluding) - delta

    if excess(1.0) >= 0:
        return math.nan
    return float(brentq(excess, paper.cape_mu_z(ratio, n_sites, n_sites, n_colluding), 1.0))


def variance_factors(setting: Setting) -> dict[str, float]:
    """Variance of the mean against pooled at equal mu, for every way to make a mean private."""
    s, h = setting.n_sites, setting.n_sites - int(setting.n_colluding)
    return {
        "pooled": 1.0,
        "cape, uniform masks": s / h,
        "cape, paper masks": s / (s + 1) * (1 + s / h),
        "conventional": float(s),
        "local, largest site": (setting.n_subjects / max(setting.subjects)) ** 2,
    }


def _planned_factor(setting: Setting) -> float:
    return variance_factors(setting)[f"cape, {setting.mask} masks"]


def _comparison(setting: Setting, stages: list[Stage]) -> dict[str, dict[str, float]]:
    """Each mechanism at the planned epsilon (how noisy) and at the planned noise (what epsilon)."""
    mu, planned = _total_mu(stages), _planned_factor(setting)
    return {
        name: {
            "variance_at_equal_epsilon": factor / planned,
            "epsilon_at_equal_noise": gaussian_epsilon(mu * math.sqrt(factor / planned), setting.delta),
        }
        for name, factor in variance_factors(setting).items()
    }


def _subjects_needed(setting: Setting, stages: list[Stage]) -> list[dict[str, float]]:
    """Subjects for other totals of epsilon at the noise of this plan: mu is proportional to 1/M."""
    mu = _total_mu(stages)
    return [
        {
            "epsilon": epsilon,
            "subjects": math.ceil(setting.n_subjects * mu / gaussian_mu(epsilon, setting.delta) - 1e-9),
        }
        for epsilon in (0.5, 1.0, 2.0, 5.0)
    ]


def _colluding(setting: Setting, stages: list[Stage]) -> list[dict[str, Any]]:
    """Epsilon at the planned noise for other numbers of colluding sites."""
    mu, planned, s = _total_mu(stages), _planned_factor(setting), setting.n_sites
    others = {1, 2, validate.colluding("third", s), s // 2, s - 2, s - 1} & set(range(1, s))
    rows = []
    for c in sorted(others | {int(setting.n_colluding)}):
        factor = _planned_factor(replace(setting, n_colluding=c)) / planned
        least = (s + c) // 2 + 1  # 2t > S + S_C
        rows.append(
            {
                "n_colluding": c,
                "epsilon": gaussian_epsilon(mu * math.sqrt(factor), setting.delta),
                "default_threshold_allows": least <= default_threshold(s),
                "least_threshold": least,
            }
        )
    return rows


def _one_more_site(setting: Setting, stages: list[Stage]) -> dict[str, float]:
    """One more site of average size, S_C unchanged: noise at equal epsilon, epsilon at equal noise."""
    size = round(setting.n_subjects / setting.n_sites)
    larger = replace(setting, subjects=(*setting.subjects, size))
    variance = (
        _planned_factor(larger) / _planned_factor(setting) * (setting.n_subjects / larger.n_subjects) ** 2
    )
    return {
        "subjects_added": size,
        "noise_at_equal_epsilon": math.sqrt(variance),
        "epsilon_at_equal_noise": gaussian_epsilon(_total_mu(stages) * math.sqrt(variance), setting.delta),
    }


def _warnings(setting: Setting) -> list[str]:
    warnings = []
    if setting.n_colluding == 0:
        warnings.append(
            "With no colluding site the guarantee does not hold against a curious site, which knows its own "
            "noise and reads the result: plan for at least 1."
        )
    if setting.n_sites - int(setting.n_colluding) == 1:
        warnings.append(
            "All sites but one may collude: each site adds as much noise as if it published alone, "
            "so nothing is gained over the conventional scheme."
        )
    return warnings


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_or_null(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
