"""Simulated participants: null data for calibration, and groups with known differences.

Eight unequal, unbalanced sites; group and age are correlated (0.4), age moves every outcome by 0.3 standard
deviations, and sites differ by 0.5. Outcomes are independent with variance 1 within sites.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.findings.moments import Comparison, least_squares, meta_analysis, terms_for
from capedjica.algorithms.glm.analysis import GroupComparisonAnalysis, attenuation
from capedjica.algorithms.glm.design import Column, Design, Mode
from capedjica.algorithms.glm.findings import Findings
from capedjica.algorithms.glm.power import standard_error
from capedjica.privacy import gaussian_mu
from capedjica.tools.arrays import FloatArray

N_OUTCOMES: Final = 20
PARTS: Final = (0.25, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04)
PATIENTS: Final = (0.5, 0.35, 0.6, 0.45, 0.3, 0.7, 0.5, 0.4)
CORRELATION: Final = 0.4
EFFECT_OF_AGE: Final = 0.3
SITE_EFFECT: Final = 0.5
# Of age, in standard deviations, and of the contrast adjusted for it.
AGE_RANGE: Final = 2.5
LARGEST_ADJUSTMENT: Final = 0.8
EFFECT: Final = 0.25
EPSILONS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
SIZES: Final = (100, 300, 1000)
MODES: Final[tuple[Mode, ...]] = ("public-groups", "private")


class Population:
    """Sites of fixed sizes and groups, from which studies are drawn.

    Parameters
    ----------
    people : int
        M.
    effects : array
        True differences, in standard deviations per unit of the coded contrast.
    """

    def __init__(self, people: int, effects: FloatArray) -> None:
        self.people, self.effects = people, effects

    @cached_property
    def groups(self) -> dict[str, tuple[int, int]]:
        """People of either group at every site."""
        sizes = [max(4, round(part * self.people)) for part in PARTS]
        return {
            f"site-{place}": (size - (patients := max(2, round(odds * size))), patients)
            for place, (size, odds) in enumerate(zip(sizes, PATIENTS, strict=True), start=1)
        }

    def analysis(self, mode: Mode) -> GroupComparisonAnalysis:
        """Return the comparison."""
        contrast = Column("group", "category", levels=("control", "patient"))
        design = Design(contrast, (Column("age"),), mode, self.groups if mode == "public-groups" else None)
        sizes = {name: sum(sizes) for name, sizes in self.groups.items()}
        return GroupComparisonAnalysis(
            design, (1.0,) * len(self.effects), sizes, largest_adjustment=LARGEST_ADJUSTMENT
        )

    def draw(self, chance: np.random.Generator) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Return designs and outcomes of a study; enrolment is in random order."""
        designs, outcomes = {}, {}
        for name, (controls, patients) in self.groups.items():
            group = chance.permutation(np.repeat([-1.0, 1.0], [controls, patients]))
            coded = (group - group.mean()) / group.std()
            age = CORRELATION * coded + np.sqrt(1 - CORRELATION**2) * chance.standard_normal(len(group))
            noise = np.sqrt(1 - EFFECT_OF_AGE**2) * chance.standard_normal((len(group), len(self.effects)))
            site = SITE_EFFECT * chance.standard_normal(len(self.effects))
            designs[name] = np.column_stack([group, np.clip(age / AGE_RANGE, -1, 1)])
            outcomes[name] = site + np.outer(group, self.effects) + EFFECT_OF_AGE * age[:, None] + noise
        return designs, outcomes


def clipped_effects(population: Population, clip: float) -> FloatArray:
    """Return the coefficients of clipped outcomes, which is what is estimated: from a large simulated study.

    Those of outcomes without an effect are next to 0: clipping keeps what age does proportional.
    """
    if not population.effects.any():
        return population.effects
    chance, total, n_studies = np.random.default_rng(99), np.zeros(len(population.effects)), 60
    large = Population(6000, population.effects)
    for _ in range(n_studies):
        designs, outcomes = large.draw(chance)
        shortened = {
            name: y * np.minimum(1, clip / np.linalg.norm(y, axis=1, keepdims=True))
            for name, y in outcomes.items()
        }
        total += least_squares(designs, shortened)[0]
    mean = total / n_studies
    # Equal outcomes have equal coefficients.
    for value in set(population.effects.tolist()):
        same = population.effects == value
        mean[same] = mean[same].mean()
    return mean


def some_effects() -> FloatArray:
    """Return a fifth of true effects."""
    return np.where(np.arange(N_OUTCOMES) < N_OUTCOMES // 5, EFFECT, 0.0)


def tally(found: Findings, truth: FloatArray, null: NDArray[np.bool_]) -> dict[str, float]:
    """Return the error rates of one comparison, where the effects are known."""
    p, q, ends = found.p_values, found.q_values, found.intervals
    discovered = q <= 0.05
    covered = (truth >= ends[:, 0]) & (truth <= ends[:, 1])
    return {
        "type_1": float(np.mean(p[null] < 0.05)),
        "coverage": float(np.mean(covered)),
        "fdr": float((discovered & null).sum() / max(1, discovered.sum())),
        "power": float(np.mean(p[~null] < 0.05)) if (~null).any() else np.nan,
        "bias": float(np.mean((found.effects - truth)[~null])) if (~null).any() else np.nan,
        "standard_error": float(np.mean(found.standard_errors)),
        "estimable": float(found.estimable),
    }


def mean_of_numbers(values: Sequence[float]) -> float:
    """Return the mean of those that are numbers: of effects, those that could be estimated."""
    numbers = [value for value in values if not np.isnan(value)]
    return float(np.mean(numbers)) if numbers else float("nan")


def means(tallies: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """Return the means of several comparisons' error rates."""
    return {name: mean_of_numbers([one[name] for one in tallies]) for name in names}


def calibration(
    repetitions: int, whole: int, sizes: Sequence[int] = SIZES, workers: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield error rates for null data and data with a fifth of true effects, as they are done.

    ``repetitions`` are from moments and ``whole`` through the whole protocol, at every epsilon.
    """
    asked = [
        (people, effects, mode, path, count)
        for path, count in (("moments", repetitions), ("whole protocol", whole))
        for mode in MODES
        for people in sizes
        for effects in (False, True)
        if count
    ]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_rates, *one, EPSILONS) for one in asked]):
            yield from done.result()


def _rates(
    people: int, effects: bool, mode: Mode, path: str, count: int, epsilons: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the error rates of one population by epsilon."""
    population = Population(people, some_effects() if effects else np.zeros(N_OUTCOMES))
    comparisons = [Comparison(population.analysis(mode), terms_for(epsilon)) for epsilon in epsilons]
    several = _tallies(population, comparisons, path, count)
    return [
        {
            "people": people,
            "true_effects": int(np.count_nonzero(population.effects)),
            "mode": mode,
            "epsilon": epsilon,
            "path": path,
            "variances": "released" if comparison.analysis.release_variances else "public",
            "repetitions": len(own),
        }
        | means(own, own[0])
        | {"fdr_error": float(np.std([one["fdr"] for one in own]) / np.sqrt(len(own)))}
        for epsilon, comparison, own in zip(epsilons, comparisons, several, strict=True)
    ]


def _tallies(
    population: Population, comparisons: Sequence[Comparison], path: str, count: int
) -> list[list[dict[str, float]]]:
    """Return the error rates of every repetition; all comparisons of one have the same data."""
    truth = clipped_effects(population, comparisons[0].analysis.bound)
    null = population.effects == 0
    chance = np.random.default_rng([0, population.people, int(not null.all()), path == "moments"])
    tallies: list[list[dict[str, float]]] = [[] for _ in comparisons]
    for _ in range(count):
        designs, outcomes = population.draw(chance)
        sums: dict[str, FloatArray] = {}
        for comparison, own in zip(comparisons, tallies, strict=True):
            found = (
                comparison.drawn(designs, outcomes, chance, sums)
                if path == "moments"
                else comparison.run(designs, outcomes)
            )
            own.append(tally(found, truth, null))
    return tallies


def truth(repetitions: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield bias, error, coverage and power against theory, least squares and meta-analysis."""
    effects = some_effects()
    null = effects == 0
    for people in SIZES[1:]:
        population = Population(people, effects)
        for mode in ("private", "public-groups"):
            for epsilon in EPSILONS:
                terms = terms_for(epsilon)
                comparison = Comparison(population.analysis(mode), terms)
                clip, mu = comparison.analysis.bound, gaussian_mu(epsilon, terms.delta)
                expected = clipped_effects(population, clip)
                chance = np.random.default_rng([seed, people, mode == "private", int(10 * epsilon)])
                own, exact, local = [], [], []
                for _ in range(repetitions):
                    designs, outcomes = population.draw(chance)
                    own.append(comparison.drawn(designs, outcomes, chance))
                    exact.append(least_squares(designs, outcomes))
                    local.append(meta_analysis(comparison, designs, outcomes, chance, mu))
                tallies = [tally(found, expected, null) for found in own]
                error = standard_error(comparison.analysis, terms, 0.95, CORRELATION)
                wanted = float(expected[~null].mean()) / error
                yield {
                    "people": people,
                    "mode": mode,
                    "epsilon": epsilon,
                    "repetitions": repetitions,
                    "truth": EFFECT,
                    "of_clipped": float(expected[~null].mean()),
                    "attenuation_predicted": attenuation(N_OUTCOMES, clip),
                    "bias": mean_of_numbers([one["bias"] for one in tallies]),
                    "coverage": float(np.mean([one["coverage"] for one in tallies])),
                    "power": float(np.mean([one["power"] for one in tallies])),
                    "power_in_theory": float(stats.norm.sf(1.96 - wanted)),
                    "power_non_private": float(np.mean([np.abs(b / e)[~null] > 1.96 for b, e in exact])),
                    "power_meta_analysis": float(np.mean([np.abs(b / e)[~null] > 1.96 for b, e in local])),
                    "type_1_meta_analysis": float(np.mean([np.abs(b / e)[null] > 1.96 for b, e in local])),
                }
