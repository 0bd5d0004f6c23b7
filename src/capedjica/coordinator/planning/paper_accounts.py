"""Privacy accounting by the paper's formulas, for comparison with the exact accounting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from scipy.optimize import brentq

from capedjica.algorithms.analysis import Analysis
from capedjica.algorithms.ica.infomax import default_learning_rate
from capedjica.algorithms.ica.paper_method import DESCENT, PCA, PaperMethod
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.release import ReleasePlan
from capedjica.privacy import gaussian_epsilon, paper, validate
from capedjica.study.planned_releases import planned_releases, spendable_delta
from capedjica.study.study_file import LEAST_EPSILON, MOST_EPSILON

# The delta inside the square root of the paper's noise calibration (its Section V, "Performance Index").
PAPER_NOISE_DELTA: Final = 1e-2


def paper_noise(
    method: Analysis[Any], contract: Contract, epsilon_per_iteration: float
) -> tuple[PaperMethod, Contract]:
    r"""Return the method and the contract with the paper's noise on each statistic.

    The noise is tau = Delta/epsilon_i sqrt(2 log(1.25/0.01)). The second moments have Delta = spread C/M. The
    gradients of W and b each have Delta = 2/M in units of their clips. They are sent in one vector of
    sensitivity 2 sqrt(2)/M with the same noise on all its numbers, so both have the paper's noise.

    The contract's own epsilon does not matter: mu is inversely proportional to the noise, which determines
    the cost of the releases at the paper's noise, and so the split of the budget.
    """
    if not isinstance(method, PaperMethod):
        raise InputError(
            "an epsilon per iteration is only for the method 'paper', but the study has another method; give "
            "the method 'paper' or a total epsilon"
        )
    epsilon_i = validate.positive("epsilon_per_iteration", epsilon_per_iteration)
    if not LEAST_EPSILON <= epsilon_i <= MOST_EPSILON:
        raise InputError(
            f"epsilon_per_iteration must be between {LEAST_EPSILON:g} and {MOST_EPSILON:g}, got {epsilon_i:g}"
        )
    contract = replace(contract, reserve=0.0)
    parts = _costs(contract, epsilon_i)
    total = math.fsum(parts)
    epsilon = gaussian_epsilon(math.sqrt(total), spendable_delta(contract))
    if epsilon == 0:
        raise InputError(
            f"epsilon_per_iteration {epsilon_i:g} gives a total epsilon of 0 at delta {contract.delta:g}, "
            "which cannot be planned; give a larger epsilon_per_iteration or a smaller delta"
        )
    method = replace(method, pca_share=parts[PCA] / total)
    return method, replace(contract, stages=method.stages(), epsilon=(epsilon,) * len(contract.subjects))


def _costs(contract: Contract, epsilon_i: float) -> list[float]:
    """Return the mu^2 of each stage at the paper's noise."""
    costs = []
    for stage, plan, shift in zip(
        contract.stages, planned_releases(contract), _paper_sensitivities(contract), strict=True
    ):
        tau = paper.gaussian_mechanism_tau(shift, epsilon_i, PAPER_NOISE_DELTA)
        mu = max(plan.mu.values()) * plan.output_std / tau
        costs.append(stage.count * mu * mu)
    return costs


def _paper_sensitivities(contract: Contract) -> tuple[float, float]:
    """Return Delta of the mean second moment, and of each mean gradient in units of its clip."""
    pca, n_subjects = contract.stages[PCA].query, sum(contract.subjects)
    return pca.spread * pca.clip / n_subjects, 2 / n_subjects


def paper_says(contract: Contract, method: PaperMethod, releases: list[ReleasePlan]) -> dict[str, float]:
    """Return epsilon by the paper's formulas for the same noise, for gradient descent alone, without PCA.

    The paper adds noise tau_W to the mean gradient of W, of sensitivity Delta_W = 2 B_G/M, and tau_b to that
    of b, of sensitivity Delta_b = 2 B_h/M. Here both are sent in units of their clips with the same noise
    sigma, so tau_W = B_G sigma, tau_b = B_h sigma, and both ratios tau/Delta are sigma M/2.
    """
    s, j, delta = len(contract.subjects), method.max_iter, contract.delta
    rate = method.learning_rate or default_learning_rate(method.n_components)
    noise, shift = releases[DESCENT].output_std, _paper_sensitivities(contract)[DESCENT]
    ratio = noise / shift
    printed = [
        paper.rdp_sigma_squared(clip * noise, clip * shift, rate) for clip in (method.clip_g, method.clip_h)
    ]
    per_release = _theorem_1_epsilon(ratio, s, contract.roster.n_colluding, delta / (2 * j))
    return {
        "rdp_as_printed": paper.rdp_epsilon(j, printed[0], printed[1], delta),
        "rdp_corrected_output_only": paper.rdp_epsilon(j, ratio**2, ratio**2, delta),
        "moments_as_printed": paper.moments_epsilon(j, 1.0, ratio / math.sqrt(2), delta),
        "theorem_1_per_release": per_release,
        "theorem_2_total": paper.capedjica_naive(j, per_release, delta / (2 * j))[0],
    }


def _theorem_1_epsilon(ratio: float, n_sites: int, n_colluding: int, delta: float) -> float:
    """Return the epsilon at which Theorem 1 gives delta; NaN outside its ranges of epsilon and S_C.

    ``ratio`` is tau_pool over the sensitivity of the mean; in the paper's units tau = ratio, N = S.
    """
    if n_colluding > paper.theorem_1_most_colluding(n_sites):
        return math.nan

    def excess(epsilon: float) -> float:
        return paper.cape_delta(epsilon, ratio, n_sites, n_sites, n_colluding) - delta

    if excess(1.0) >= 0:
        return math.nan
    return float(brentq(excess, paper.cape_mu_z(ratio, n_sites, n_sites, n_colluding), 1.0))
