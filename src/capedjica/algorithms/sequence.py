"""Several analyses run in sequence under one budget, as a single analysis.

Each may use the results published by those before it (``following``), and each has its share of the budget.
There is thus one contract, one approval and one total cost, to which every release adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from capedjica.algorithms.analysis import Analysis, Means, Progress, ReleasedMean, Result
from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan


@dataclass(frozen=True, eq=False)
class Results(Result):
    """Result of each analysis, by name."""

    by_name: dict[str, Result] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Step:
    """One of several analyses: its name, its share of the budget (of mu^2), and the analysis."""

    name: str
    share: float
    analysis: Analysis[Result]


@dataclass(frozen=True, eq=False)
class InSequence:
    """Analyses run in sequence, whose shares add up to 1."""

    steps: tuple[Step, ...]

    def stages(self) -> tuple[Stage, ...]:
        """Return all possible queries, labelled with the names of the analyses."""
        return tuple(
            Stage(
                replace(stage.query, label=f"{step.name}: {stage.query.label}"),
                stage.count,
                stage.share * step.share,
            )
            for step in self.steps
            for stage in step.analysis.stages()
        )

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """Stage numbers of each analysis."""
        ends = list(accumulate(len(step.analysis.stages()) for step in self.steps))
        return tuple(range(first, end) for first, end in zip([0, *ends], ends, strict=False))

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the statistics of a site, for the analysis to which a stage belongs."""
        sites = [step.analysis.site(subjects) for step in self.steps]

        def statistics(stage: int, published: bytes, state: bytes) -> Iterable[Scan]:
            for own, site in zip(self.ranges, sites, strict=True):
                if stage in own:
                    return site(stage - own.start, published, state)
            raise ProtocolError(f"there is no stage {stage}")

        return statistics

    def estimate(self, means: Means, progress: Progress | None = None) -> Results:
        """Run the analyses in sequence."""
        found: dict[str, Result] = {}
        for step, own in zip(self.steps, self.ranges, strict=True):
            following = getattr(step.analysis, "following", None)
            analysis = step.analysis if following is None else following(found)
            if own.start:
                means.publish(b"")
            found[step.name] = analysis.estimate(Part(means, own), progress)
        return Results(found, n_iter=sum(result.n_iter for result in found.values()))


class Part:
    """The means of one analysis among several, numbered as if it were the only one."""

    def __init__(self, means: Means, stages: range) -> None:
        self._means, self._stages = means, stages
        self.publish = means.publish

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means of this analysis."""
        return part_of(self._means.released, self._stages)

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""
        return self._means.mean(self._stages[stage], state)


def part_of(released: Sequence[ReleasedMean], stages: range) -> list[ReleasedMean]:
    """Return the means of some stages, numbered as if they were the only ones."""
    return [replace(one, stage=one.stage - stages.start) for one in released if one.stage in stages]
