"""Comparisons from moments: the released numbers drawn from their law, without the protocol.

:class:`Drawn` computes what sites would add up in floating point and adds normal noise of the standard
deviation that the release plans; nothing else differs from a study, so thousands of repetitions take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.glm.analysis import DESIGN_LABEL, VARIANCES_LABEL, GroupComparisonAnalysis
from capedjica.algorithms.glm.findings import Findings
from capedjica.algorithms.glm.power import tuned
from capedjica.algorithms.tables.rows import clip_rows
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Query, Statistics
from capedjica.mechanisms.release import plan_release
from capedjica.mechanisms.terms import Terms
from capedjica.tools.arrays import FloatArray

Designs = Mapping[str, FloatArray]
Outcomes = Mapping[str, FloatArray]


class Comparison:
    """An analysis on given terms, to be repeated on data of the same sizes.

    Parameters
    ----------
    analysis : GroupComparisonAnalysis
        Its weights, and whether variances are released, are chosen here as ``private_glm`` does.
    terms : Terms
        What it may cost.
    """

    def __init__(self, analysis: GroupComparisonAnalysis, terms: Terms) -> None:
        self.terms, self.analysis = terms, tuned(analysis, terms)

    @cached_property
    def noises(self) -> tuple[float, ...]:
        """Of every release, as it is planned."""
        sizes = self.analysis.sizes
        nothing: dict[str, Statistics] = dict.fromkeys(sizes, lambda *_: [])
        contract = EmbeddedStudy("b", sizes, nothing, self.analysis.stages(), self.terms).contract
        names = (contract.alone,) if contract.mechanism == "local" else contract.roster.names
        return tuple(
            plan_release(contract, stage.query, contract.planned_share(stage), names).output_std
            for stage in contract.stages
        )

    def rows(self, designs: Designs, outcomes: Outcomes) -> dict[str, FloatArray]:
        """Return what sites hold."""
        return {name: self.analysis.rows(name, designs[name], outcomes[name]) for name in designs}

    def drawn(
        self,
        designs: Designs,
        outcomes: Outcomes,
        chance: np.random.Generator,
        sums: dict[str, FloatArray] | None = None,
    ) -> Findings:
        """Return findings from moments; ``sums`` keeps what other comparisons of the same data need too."""
        rows = self.rows(designs, outcomes)
        return self.analysis.estimate(Drawn(self, rows, chance, {} if sums is None else sums))

    def run(self, designs: Designs, outcomes: Outcomes) -> Findings:
        """Return findings of the whole protocol."""
        rows = self.rows(designs, outcomes)
        return self.analysis.estimate(EmbeddedStudy.of("b", self.analysis, rows, self.terms))


class Drawn:
    """Means from the sites' rows, with normal noise."""

    def __init__(
        self,
        comparison: Comparison,
        rows: Mapping[str, FloatArray],
        chance: np.random.Generator,
        sums: dict[str, FloatArray],
    ) -> None:
        analysis = comparison.analysis
        self._comparison, self._chance, self._sums = comparison, chance, sums
        self._sites = {name: analysis.site(list(own)) for name, own in rows.items()}
        self._stages, self._people = analysis.stages(), sum(analysis.sizes.values())
        self.released: list[ReleasedMean] = []

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the mean of a stage."""
        query, noise = self._stages[stage].query, self._comparison.noises[stage]
        kept = f"{query.label} {query.size}"
        total = self._sums.get(kept)
        if total is None:
            total = np.sum([self._part(name, stage, state) for name in self._sites], axis=0)
            # The effects depend on what was released before; covariates by group on the weights of sites.
            if query.label in (VARIANCES_LABEL, DESIGN_LABEL):
                self._sums[kept] = total
        value: FloatArray = total / self._people + noise * self._chance.standard_normal(query.size)
        self.released.append(ReleasedMean(stage, value, noise, self._people))
        return value

    def _part(self, name: str, stage: int, state: bytes) -> FloatArray:
        return _sum(self._stages[stage].query, name, np.vstack(list(self._sites[name](stage, b"", state))))

    def publish(self, data: bytes) -> None:
        """Tell nobody."""


def _sum(query: Query, site: str, rows: FloatArray) -> FloatArray:
    rows = rows[np.isfinite(rows).all(axis=1)]
    if query.cross is None:
        total: FloatArray = clip_rows(rows, query.clip).sum(axis=0)
        return total
    if not len(rows):
        return np.zeros(query.size)
    fixed, limit = query.cross.largest_fixed(site), query.cross.imbalance
    factors = np.clip(rows[:, 0], -fixed, fixed)
    scores = np.clip(rows[:, 1], -query.cross.score, query.cross.score)
    factors = factors - np.clip(factors.mean(), -limit, limit) + scores - scores.mean()
    moment: FloatArray = factors @ clip_rows(rows[:, 2:], query.clip)
    return moment


def least_squares(designs: Designs, outcomes: Outcomes) -> tuple[FloatArray, FloatArray]:
    """Return the effects of the contrast and their standard errors, without privacy or clipping."""
    table = np.vstack([x - x.mean(axis=0) for x in designs.values()])
    values = np.vstack([y - y.mean(axis=0) for y in outcomes.values()])
    effects, *_ = np.linalg.lstsq(table, values, rcond=None)
    residuals = values - table @ effects
    degrees = len(table) - table.shape[1] - len(designs)
    variances = (residuals**2).sum(axis=0) / degrees
    return effects[0], np.sqrt(variances * np.linalg.inv(table.T @ table)[0, 0])


def meta_analysis(
    comparison: Comparison, designs: Designs, outcomes: Outcomes, chance: np.random.Generator, mu: float
) -> tuple[FloatArray, FloatArray]:
    """Return effects and errors from per-site estimates, each with its own noise, weighted by precision.

    Every site spends all of mu on its effects; what it needs to know besides is given to it for nothing.
    Without covariates: at the sizes of sites an adjustment would cost more than it brings.
    """
    analysis = comparison.analysis
    weighted, total = np.zeros(analysis.size), np.zeros(analysis.size)
    for name, design in designs.items():
        group = design[:, 0] - design[:, 0].mean()
        shaped = analysis.shaped(outcomes[name])
        variance = float(analysis.unshaped(shaped).var(axis=0).mean())
        spread = float(group @ group)
        if spread == 0:
            continue
        reach = float(np.abs(group).max()) if analysis.public_groups else 2.0
        noise = 2 * analysis.bound * reach / mu
        estimate = group @ shaped + noise * chance.standard_normal(analysis.size)
        own = analysis.unshaped(estimate) / spread
        precision = 1 / (variance / spread + (noise * analysis.noise_factors / spread) ** 2)
        weighted, total = weighted + precision * own, total + precision
    return weighted / total, 1 / np.sqrt(total)


def terms_for(epsilon: float | None, mechanism: str = "cape") -> Terms:
    """Return the terms of a comparison in this process."""
    return in_process(epsilon=epsilon, mechanism=mechanism)  # type: ignore[arg-type]


def correlation(one: Sequence[float] | FloatArray, other: Sequence[float] | FloatArray) -> float:
    """Return the correlation of two vectors of effects."""
    return float(np.corrcoef(one, other)[0, 1])
