"""Comparison of a plan with other mechanisms and other numbers of subjects, colluding sites and sites.

Noise and mu are inversely proportional in every mechanism, so each comparison needs the plan of only one
release under the other contract: its noise at its budgets, and its epsilon at the noise of the first
contract.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any, Final

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, MaskName, MechanismName, Stage
from capedjica.mechanisms.release import plan_release
from capedjica.privacy import gaussian_epsilon, gaussian_mu, validate
from capedjica.securesum.identity import PublicIdentity
from capedjica.securesum.parameters import Roster, default_threshold, least_threshold, suitable_threshold
from capedjica.study.planned_releases import fractions, spendable_delta

_COMPARED: Final[dict[str, tuple[MechanismName, MaskName]]] = {
    "pooled": ("pooled", "uniform"),
    "cape, uniform masks": ("cape", "uniform"),
    "cape, paper masks": ("cape", "paper"),
    "conventional": ("conventional", "uniform"),
    "local, largest site": ("local", "uniform"),
}
EPSILONS: Final = (0.5, 1.0, 2.0, 5.0)


def nobody(number: int) -> PublicIdentity:
    """Return a placeholder site with a key to which no private key is known."""
    return PublicIdentity(f"site-{number}", number.to_bytes(32))


def _noise_and_mu(contract: Contract) -> tuple[float, float]:
    """Return the noise of the first stage, and the total mu of the site with the highest cost."""
    parts = fractions(contract)
    plan = plan_release(contract, contract.stages[0].query, parts[0], tuple(contract.participants))
    used = math.fsum(stage.count * part for stage, part in zip(contract.stages, parts, strict=True))
    return plan.output_std, max(plan.mu.values()) * math.sqrt(used / parts[0])


def _against(contract: Contract, other: Contract) -> tuple[float, float]:
    """Return the noise of another contract relative to this one's, and its epsilon at this one's noise.

    Both are NaN if the other contract allows no such release.
    """
    noise, _ = _noise_and_mu(contract)
    try:
        there, mu = _noise_and_mu(other)
    except InputError:
        return math.nan, math.nan
    return there / noise, gaussian_epsilon(mu * there / noise, spendable_delta(contract))


def comparison(contract: Contract) -> dict[str, dict[str, float]]:
    """Return the variance of each mechanism at the planned epsilon, and its epsilon at the planned noise."""
    rows = {}
    for name, (mechanism, mask) in _COMPARED.items():
        noise, epsilon = _against(contract, replace(contract, mechanism=mechanism, masking=mask))
        rows[name] = {"variance_at_equal_epsilon": noise**2, "epsilon_at_equal_noise": epsilon}
    return rows


def subjects_needed(contract: Contract) -> list[dict[str, float]]:
    """Return the subjects needed for other total epsilons at the planned noise; mu is proportional to 1/M."""
    _, mu = _noise_and_mu(contract)
    n_subjects = sum(contract.participants.values())
    return [
        {
            "epsilon": epsilon,
            "subjects": math.ceil(n_subjects * mu / gaussian_mu(epsilon, spendable_delta(contract)) - 1e-9),
        }
        for epsilon in EPSILONS
    ]


def colluding(contract: Contract) -> list[dict[str, Any]]:
    """Return epsilon at the planned noise for other numbers of colluding sites."""
    s = len(contract.subjects)
    others = {1, 2, validate.colluding("third", s), s // 2, s - 2, s - 1} & set(range(1, s))
    rows = []
    for c in sorted(others | {contract.roster.n_colluding}):
        roster = _roster(contract.roster.sites, c)
        rows.append(
            {
                "n_colluding": c,
                "epsilon": _against(contract, replace(contract, roster=roster))[1],
                "default_threshold_allows": least_threshold(s, c) <= default_threshold(s),
                "least_threshold": least_threshold(s, c),
            }
        )
    return rows


def _roster(sites: tuple[PublicIdentity, ...], n_colluding: int) -> Roster:
    return Roster(sites, suitable_threshold(len(sites), n_colluding), n_colluding)


def _with_factors(stage: Stage, site: str) -> Stage:
    """Return a stage with another site, which has the largest of the fixed factors, if there are any."""
    cross = stage.query.cross
    if cross is None or not cross.fixed:
        return stage
    factors = (*cross.fixed, (site, cross.largest_fixed()))
    return replace(stage, query=replace(stage.query, cross=replace(cross, fixed=factors)))


def one_more_site(contract: Contract) -> dict[str, float]:
    """Return the effect of one more site of average size (S_C unchanged) on noise and on epsilon."""
    sites, sizes = contract.roster.sites, contract.subjects
    size = round(sum(sizes) / len(sizes))
    stranger = next(site for site in map(nobody, count(len(sites) + 1)) if site.name not in contract.enrolled)
    larger = replace(
        contract,
        roster=_roster((*sites, stranger), contract.roster.n_colluding),
        subjects=(*sizes, size),
        epsilon=(*contract.epsilon, max(contract.epsilon)),
        stages=tuple(_with_factors(stage, stranger.name) for stage in contract.stages),
    )
    noise, epsilon = _against(contract, larger)
    return {"subjects_added": size, "noise_at_equal_epsilon": noise, "epsilon_at_equal_noise": epsilon}
