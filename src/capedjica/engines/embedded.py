"""A whole study in one process: all sites and the aggregator, exchanging the actual protocol messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, cast

from capedjica.algorithms.analysis import Analysis, ReleasedMean, Result
from capedjica.engines.inprocess import Carrier, InProcessEngine, faithful
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.aggregator.history import privacy_statement
from capedjica.mechanisms.contract import Stage, Statistics
from capedjica.mechanisms.release import HEADROOM, plan_release, stream_distance
from capedjica.mechanisms.site.answering import Site, SitePolicy
from capedjica.mechanisms.terms import NO_RESERVE, Terms
from capedjica.privacy.budget import PrivacyBudget, check_budget
from capedjica.privacy.ledger import Policy
from capedjica.privacy.ledger.memory import memory_ledger
from capedjica.privacy.neighbour import Neighbour
from capedjica.privacy.statement import PrivacyStatement
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import NoiseSource
from capedjica.tools.arrays import FloatArray, Scan

in_process: Final = partial(Terms, reserve=NO_RESERVE)
"""The :class:`capedjica.mechanisms.terms.Terms` of a study in one process, where no site is lost."""


class EmbeddedStudy:
    """Sites, ledgers and an aggregator in this process.

    Parameters
    ----------
    title : str
        Title of the study.
    subjects : dict
        Number of subjects of each site, by name.
    statistics : dict
        The function that yields the subjects' vectors at each site, by name.
    stages : sequence of Stage
        All queries that may be asked.
    terms : Terms
        The budget and the threat model (:data:`in_process`).
    weights : dict, optional
        Weights of the sites, by name.
    neighbour, units_per_subject
        See :class:`capedjica.mechanisms.contract.Contract`.
    insecure_noise_seed : int, optional
        Seed for reproducible noise, which gives no privacy; the result says so.
    budget : PrivacyBudget, optional
        Charged with the whole cap of the site with the largest epsilon, after all checks and before anything
        is computed. A budget is for whole subjects: if the neighbours are samples, mu is multiplied by the
        number of samples of a subject.
    besides : float
        The mu of the caller's other releases, charged together with this study.
    carrier : callable
        The delivery of each message (:class:`capedjica.engines.inprocess.InProcessEngine`).
    """

    def __init__(
        self,
        title: str,
        subjects: Mapping[str, int],
        statistics: Mapping[str, Statistics],
        stages: Sequence[Stage],
        terms: Terms,
        *,
        weights: Mapping[str, float] | None = None,
        insecure_noise_seed: int | None = None,
        neighbour: Neighbour = "subject",
        units_per_subject: int = 1,
        budget: PrivacyBudget | None = None,
        besides: float = 0.0,
        carrier: Carrier = faithful,
    ) -> None:
        seeded = insecure_noise_seed is not None
        check_budget(budget, terms.mechanism, seeded)
        names = list(subjects)
        identities = {name: Identity.generate() for name in names}
        self.contract = replace(terms, insecure_noise=seeded).contract(
            title,
            [identities[name].public(name) for name in names],
            list(subjects.values()),
            stages,
            weights=tuple(weights[name] for name in names) if weights else (),
            neighbour=neighbour,
            units_per_subject=units_per_subject,
        )
        self._seed = insecure_noise_seed
        self.sites = {name: self._site(name, identities[name], statistics[name]) for name in names}
        self.engine = InProcessEngine(self.sites, carrier)
        curator = self._noise("aggregator") if terms.mechanism == "pooled" else None
        self.aggregator = Aggregator(self.contract, self.engine.exchange, curator)
        self.released: list[ReleasedMean] = []
        if budget is not None:
            self._charge(budget, besides)

    @classmethod
    def of(
        cls,
        title: str,
        analysis: Analysis[Result],
        data: Mapping[str, Sequence[Scan] | FloatArray],
        terms: Terms,
        subjects: Mapping[str, int] | None = None,
        **more: Any,
    ) -> Self:
        """Return a study that runs an analysis on the data of every site.

        The data of a site are its subjects, or an array with one row per subject. ``subjects`` is the number
        of units of each site if the unit is not a subject.
        """
        sizes = subjects or {name: len(site) for name, site in data.items()}
        sites = {name: analysis.site(cast(Sequence[Scan], site)) for name, site in data.items()}
        return cls(title, sizes, sites, analysis.stages(), terms, **more)

    def _charge(self, budget: PrivacyBudget, besides: float) -> None:
        contract = self.contract
        sites = (contract.alone,) if contract.mechanism == "local" else contract.roster.names
        numbers, grid, distance = 0, 0.0, 0.0
        for stage in contract.stages:
            plan = plan_release(contract, stage.query, contract.planned_share(stage), sites)
            numbers += stage.count * stage.query.size
            grid += stage.count * max(plan.grid_delta.values())
            distance += stage.count * stream_distance(stage.query.size, len(contract.subjects))
        # Each release undershoots its share of mu by HEADROOM, so this still exceeds their total cost.
        mu = max(contract.total_mu.values()) * (1 - HEADROOM / 4)
        budget.charge(
            math.hypot(contract.unit.subject_mu(mu), besides),
            contract.title,
            sites,
            numbers=numbers,
            grid=contract.units_per_subject * grid,
            distance=distance,
        )

    def _noise(self, purpose: str) -> NoiseSource:
        return NoiseSource(insecure_noise_seed=self._seed, purpose=purpose)

    def _site(self, name: str, identity: Identity, statistics: Statistics) -> Site:
        contract = self.contract
        cap = contract.cap(name)
        ledger = memory_ledger(Policy(total=cap, per_study=cap, allow_non_private=not contract.protects))
        ledger.register_study(contract.hash, contract.title, cap, contract.unit)
        policy = SitePolicy(allow_unprotected=True)
        return Site(contract, name, identity, ledger, statistics, self._noise(name), policy)

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query over all subjects of the participants."""
        value = self.aggregator.mean(stage, state)
        last = self.aggregator.releases[-1]
        n_people = sum(self.contract.enrolled[name] for name in last.participants)
        self.released.append(ReleasedMean(stage, value, last.noise, n_people, tuple(last.participants)))
        return value

    def publish(self, data: bytes) -> None:
        """Send public data to all sites, for later releases."""
        self.aggregator.publish(data)

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy statement: the guarantee and the budget spent so far."""
        return privacy_statement(self.contract, self.aggregator.releases)
