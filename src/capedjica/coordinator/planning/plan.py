r"""Plan of a study: its releases, their noise and their privacy cost, before the run starts.

The stages are those of the study's method. Noise and mu of each release are exactly those of the run
(:mod:`capedjica.study.planned_releases`), including the integer grid on which sites exchange numbers.

Sites are weighted by their number of subjects, so with equal budgets every site is charged the same mu. At
equal mu, the variance of a mean relative to that of a trusted curator who holds all data (*pooled*) is

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
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import msgspec

from capedjica.algorithms.ica.maps.component_number import least_shared
from capedjica.algorithms.ica.paper_method import DESCENT, PaperMethod
from capedjica.coordinator.planning.paper_accounts import paper_noise, paper_says
from capedjica.coordinator.planning.what_if import (
    colluding,
    comparison,
    nobody,
    one_more_site,
    subjects_needed,
)
from capedjica.data.features import FeatureTable
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Stage
from capedjica.mechanisms.release import ReleasePlan
from capedjica.privacy import ACCOUNTANTS, Release, accountant, gaussian_epsilon, validate
from capedjica.study.analyses import AnalysisTable, IcaTable
from capedjica.study.analyses.ica import WITH_AUTO
from capedjica.study.planned_releases import planned_releases, spendable_delta
from capedjica.study.study_file import PrivacyTable, SiteTable, Study, StudyFile
from capedjica.tools.toml import listed


@dataclass(frozen=True)
class StagePlan:
    """One kind of release: a mean of vectors of ``n_values`` numbers, made at most ``n_releases`` times.

    ``spread`` is the sensitivity of the mean in units of C/M (C is ``clip``). ``share`` is the stage's
    fraction of the budget (of mu^2). ``mu`` is exact, per release, for the site with the highest cost.
    ``noise`` is the standard deviation of the noise on each number of the mean. ``noise_norm`` is the typical
    norm of the noise vector, sqrt(n_values) noise, in units of C, the largest norm of a mean of clipped
    vectors; above 1, one release has more noise than signal. ``epsilon`` is the total of the stage.
    """

    name: str
    n_values: int
    n_releases: int
    clip: float
    spread: float
    share: float
    mu: float
    noise: float
    noise_norm: float
    epsilon: float


@dataclass(frozen=True)
class SitePlan:
    """Privacy loss of a protected unit of a site: at most ``budget``, and ``epsilon`` by planned releases.

    The difference is the reserve, and the rest of a site's budget if the budgets of others are smaller.
    """

    name: str
    subjects: int
    budget: float
    epsilon: float


@dataclass(frozen=True)
class Plan:
    """Plan of a study: its releases, their cost, and comparisons with other settings.

    ``epsilon`` is the total of the planned releases for the site with the highest cost, by accountant.
    ``epsilon_descent`` and ``paper_says`` exist for the paper's method only, for comparison with each other.
    ``detectable`` holds the detectable differences of group comparisons, in standard deviations.
    Fields that do not apply to the mechanism are empty. Without privacy protection, every cost is infinite.
    """

    study: Study
    contract: Contract
    stages: list[StagePlan]
    sites: list[SitePlan]
    epsilon: dict[str, float]
    epsilon_descent: dict[str, float]
    paper_says: dict[str, float]
    comparison: dict[str, dict[str, float]]
    subjects_needed: list[dict[str, float]]
    colluding: list[dict[str, Any]]
    one_more_site: dict[str, float]
    detectable: dict[str, list[dict[str, Any]]]
    warnings: list[str]

    @property
    def budget(self) -> float:
        """The guarantee: the largest budget of any site; infinite without privacy."""
        return max(site.budget for site in self.sites)

    @property
    def subject_epsilon(self) -> float:
        """The guarantee for a whole subject, which may comprise several protected units."""
        return self.contract.guarantee().person_epsilon

    @property
    def curious_site_epsilon(self) -> float | None:
        """Epsilon against one curious site if no colluding site is covered; otherwise None."""
        return self.contract.guarantee().curious_site_epsilon

    def as_dict(self) -> dict[str, Any]:
        """Return all values in a form suitable for JSON, with null for infinite or missing numbers."""
        numbers = {
            field: getattr(self, field)
            for field in self.__dataclass_fields__
            if field not in ("study", "contract", "stages", "sites")
        }
        result: dict[str, Any] = _finite_or_null(
            {
                "setting": _setting(self.study, self.contract),
                "stages": [asdict(stage) for stage in self.stages],
                "sites": [asdict(site) for site in self.sites],
                "budget": self.budget,
                "subject_epsilon": self.subject_epsilon,
                "curious_site_epsilon": self.curious_site_epsilon,
                **numbers,
            }
        )
        return result


def _setting(study: Study, contract: Contract) -> dict[str, Any]:
    features = study.content.features
    return {
        "analyses": [msgspec.to_builtins(step.table) | {"name": step.name} for step in study.steps],
        "n_features": study.steps[0].setting.n_features,
        "scan_length": features.scan_length,
        "image_shape": features.image_shape,
        "n_sites": len(contract.subjects),
        "n_subjects": sum(contract.subjects),
        "subjects": contract.subjects,
        "delta": contract.delta,
        "mechanism": contract.mechanism,
        "masking": contract.masking,
        "n_colluding": contract.roster.n_colluding,
        "threshold": contract.roster.threshold,
        "reserve": contract.reserve,
        "neighbour": contract.neighbour,
        "units_per_subject": contract.units_per_subject,
        "against": contract.adversary.against,
        "not_against": contract.adversary.not_against,
        "guarantee": replace(contract.guarantee(), not_covered=study.not_covered).as_dict(),
    }


# Hypothetical studies


def spread_subjects(subjects: Sequence[int], n_sites: int) -> tuple[int, ...]:
    """Return the subjects per site; a single number is divided as evenly as possible among the sites."""
    validate.count("sites", n_sites, minimum=2)
    if len(subjects) == 1:
        total = validate.count("subjects", subjects[0], minimum=n_sites)
        return tuple(total // n_sites + (site < total % n_sites) for site in range(n_sites))
    if len(subjects) != n_sites:
        raise InputError(
            f"subjects must be one number or one per site ({n_sites}), got {len(subjects)} numbers"
        )
    return tuple(subjects)


def sketch(
    subjects: Sequence[int], analysis: AnalysisTable, features: FeatureTable, privacy: PrivacyTable
) -> Study:
    """Return a study with placeholder sites of the given sizes, which is sufficient for a plan."""
    sites = tuple(
        SiteTable(name=site.name, subjects=size, card=site.card)
        for size, site in zip(subjects, map(nobody, count(1)), strict=False)
    )
    content = StudyFile(title="A plan", analyses=(analysis,), features=features, privacy=privacy, sites=sites)
    study = Study(content)
    found = study.problems()
    if found:
        raise InputError(listed("the plan", found))
    return study


# Plans


def plan_study(study: Study) -> Plan:
    """Return the plan of a study."""
    paper = [step.analysis for step in study.steps if isinstance(step.analysis, PaperMethod)]
    alone = paper[0] if paper and len(study.steps) == 1 else None
    return _plan(study, alone, study.contract)


def plan_paper_noise(study: Study, epsilon_per_iteration: float) -> Plan:
    """Return the plan of a study by the paper's method, given the paper's noise instead of an epsilon."""
    method, contract = paper_noise(study.analysis, study.contract, epsilon_per_iteration)
    return _plan(study, method, contract)


def _plan(study: Study, paper: PaperMethod | None, contract: Contract) -> Plan:
    releases = planned_releases(contract)
    stages = [
        _stage_plan(contract, stage, plan) for stage, plan in zip(contract.stages, releases, strict=True)
    ]
    private, cape = contract.private, contract.private and contract.mechanism == "cape"
    descent = [] if paper is None else stages[DESCENT:]
    return Plan(
        study=study,
        contract=contract,
        stages=stages,
        sites=_site_plans(contract, releases),
        epsilon=_totals(stages, spendable_delta(contract)),
        epsilon_descent=_totals(descent, spendable_delta(contract)) if descent else {},
        paper_says=paper_says(contract, paper, releases) if paper is not None and cape else {},
        comparison=comparison(contract) if private else {},
        subjects_needed=subjects_needed(contract) if private else [],
        colluding=colluding(contract) if cape else [],
        one_more_site=one_more_site(contract) if private and contract.mechanism != "local" else {},
        detectable={
            step.name: [asdict(one) for one in found]
            for step in study.steps
            if (found := step.table.detectable(step.setting))
        },
        warnings=_warnings(contract) + _numbers(study, stages),
    )


def _stage_plan(contract: Contract, stage: Stage, plan: ReleasePlan) -> StagePlan:
    query, mu = stage.query, max(plan.mu.values()) if contract.private else math.inf
    return StagePlan(
        name=query.label,
        n_values=query.size,
        n_releases=stage.count,
        clip=query.clip,
        spread=query.sensitivity() / query.clip,
        share=stage.share,
        mu=mu,
        noise=plan.output_std,
        noise_norm=plan.output_std * math.sqrt(query.size) / query.clip,
        epsilon=gaussian_epsilon(mu * math.sqrt(stage.count), spendable_delta(contract)),
    )


def _site_plans(contract: Contract, releases: list[ReleasePlan]) -> list[SitePlan]:
    if not contract.private:
        return [SitePlan(name, size, math.inf, math.inf) for name, size in contract.enrolled.items()]
    plans = []
    for name, budget in zip(contract.roster.names, contract.epsilon, strict=True):
        mu = math.hypot(
            *(
                math.sqrt(stage.count) * plan.mu.get(name, 0.0)
                for stage, plan in zip(contract.stages, releases, strict=True)
            )
        )
        epsilon = gaussian_epsilon(mu, spendable_delta(contract))
        plans.append(SitePlan(name, contract.enrolled[name], budget, epsilon))
    return plans


def _totals(stages: list[StagePlan], delta: float) -> dict[str, float]:
    """Return the total epsilon by each accountant."""
    totals = {}
    for name in ACCOUNTANTS:
        ledger = accountant(name, delta)
        ledger.compose(*(Release(stage.mu, stage.n_releases, stage.name) for stage in stages))
        totals[name] = ledger.epsilon
    return totals


def _warnings(contract: Contract) -> list[str]:
    whom, guarantee = contract.adversary, contract.guarantee()
    if not contract.private:
        return [guarantee.protected]
    warnings = []
    if not whom.aggregator or not whom.n_sites:
        advice = "" if whom.n_sites else " Plan for at least 1 colluding site: any site may be curious."
        warnings.append(f"{guarantee.does_not_hold}{advice}")
    if contract.mechanism == "cape" and whom.n_sites == len(contract.subjects) - 1:
        warnings.append(
            "All sites but one may collude: each site adds as much noise as if it published its sums alone, "
            "so there is no gain over the conventional mechanism."
        )
    return warnings


def _numbers(study: Study, stages: list[StagePlan]) -> list[str]:
    """Return notes on how well the number of components can be determined."""
    tables = [step.table for step in study.steps if isinstance(step.table, IcaTable)]
    subspaces = [stage for stage in stages if stage.name.endswith("subspace")]
    if len(tables) != 1 or len(subspaces) != 1 or tables[0].method not in WITH_AUTO:
        return []
    size = (math.isqrt(8 * subspaces[0].n_values + 1) - 1) // 2
    shared = least_shared(size, tables[0].most_components, subspaces[0].noise)
    if shared >= 1:
        return [
            "The number of components cannot be determined: at this noise level no direction of the subspace "
            "can be detected, not even one shared by all participants. More participants or a larger epsilon "
            "would help."
        ]
    said = (
        "Number of components: a direction can be distinguished from noise if, on average, at least "
        f"{math.ceil(100 * shared)}% of it lies in the participants' own leading directions."
    )
    return [said] if tables[0].auto else []


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_or_null(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
