"""Guided by a template: templates that are bad, what each stage contributes, and data with a known truth."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.utility.abide import N_COMPONENTS, TANH, Sites, everybody, read_abide
from benchmarks.utility.guided import (
    BY_OWN,
    QUICK_EPSILONS,
    TUNED,
    UNGUIDED,
    Asked,
    Guided,
    Series,
    apart,
    as_template,
    by_own_method,
    difference,
    difference_table,
    epsilons_of,
    group_maps_of,
    guided_by,
    names_of,
    pick,
    problem_of,
    settings_of,
    template_of,
    terms_of,
)
from benchmarks.utility.shared.figures import epsilon_figure
from benchmarks.utility.shared.problems import FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim, both, markdown, score_lines
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared
from benchmarks.utility.synthetic import QUICK
from capedjica.algorithms.ica.guided import DEAF_PLAN, LOUD_PLAN, QUIET_PLAN, GuidedMethod
from capedjica.algorithms.ica.subject_level import ROTATION
from capedjica.algorithms.ica.template import Template
from capedjica.data.simulated.synthetic import MapKind
from capedjica.mechanisms.contract import MechanismName, Query
from capedjica.mechanisms.terms import Terms

BAD_TITLE: Final = "Guided by a bad template: ABIDE, 20 components"
BAD_EPSILONS: Final = (1.0, 3.0, 10.0, 30.0, 100.0)
# As many as a small site has, all of one public site.
FEW: Final = 30
OLDEST_CHILD: Final = 12.0
# Fewer people do not make a template of 20 networks.
FEWEST_CHILDREN: Final = 25
BY_FEW: Final = "30 people of one site"
BY_CHILDREN: Final = "children"
HALF_SHUFFLED: Final = "half of the networks shuffled"
AT_RANDOM: Final = "random maps"
# What the mean maps of a template by dual regression are compared with.
THE_TEMPLATE: Final = "the template itself"
GROUP_EPSILON: Final = 10.0


def children(folder: Path, public: Sequence[str]) -> Sites:
    """Return the people of public sites who are younger than 12; nobody where no age is known."""
    with open(folder / "participants.tsv", encoding="utf-8", newline="") as file:
        if "age" not in (csv.DictReader(file, delimiter="\t").fieldnames or ()):
            return {}
    return read_abide(folder, lambda row: row["site"].lower() in public and float(row["age"]) < OLDEST_CHILD)


def bad_templates(folder: Path, public: Sequence[str], n_components: int) -> dict[str, Template]:
    """Return the templates; those that are spoilt are made of the default method's of the public sites."""
    sites, _ = apart(everybody(folder), public)
    good = as_template(by_own_method(sites, n_components))
    first = next(iter(sites))
    found = {BY_FEW: as_template(by_own_method({first: sites[first][:FEW]}, n_components))}
    young = children(folder, public)
    if sum(map(len, young.values())) >= FEWEST_CHILDREN:
        found[BY_CHILDREN] = as_template(by_own_method(young, n_components))
    rng = np.random.default_rng(5)
    maps = good.maps.copy()
    spoilt = n_components // 2
    maps[:spoilt] = maps[:spoilt, rng.permutation(good.n_features)]
    found[HALF_SHUFFLED] = Template.of(maps)
    found[AT_RANDOM] = Template.of(rng.standard_normal(maps.shape))
    return found


def bad_rows(
    folder: Path,
    public: Sequence[str],
    n_components: int,
    epsilons: Sequence[float],
    draws: int,
) -> list[Row]:
    """Analyse the private people guided by each bad template."""
    _, private = apart(everybody(folder), public)
    problem = problem_of(private, n_components)
    asked = Asked("bad templates", problem, {TANH: problem.mixing})
    templates = bad_templates(folder, public, n_components)
    series = [Series(asked, name, template) for name, template in templates.items()]
    at_random = templates[AT_RANDOM]
    itself = Series(replace(asked, references={THE_TEMPLATE: at_random.maps.T}), AT_RANDOM, at_random)
    rows = [row for one in series for row in one.alone()]
    for draw in range(draws):
        for epsilon in epsilons:
            for one in series:
                rows += one.rows("cape", epsilon, draw)
        rows += itself.group_maps(GROUP_EPSILON, draw)
    for one in series:
        rows += one.rows("none", None, 0)
    return rows


def bad_tasks(options: Options) -> list[Task]:
    """Return the one task."""
    folder = options.folder
    assert folder is not None
    if options.quick:
        names = list(everybody(folder))
        return [Task(bad_rows, (folder, names[:1], 4, QUICK_EPSILONS, options.seeds))]
    return [Task(bad_rows, (folder, TUNED, N_COMPONENTS, BAD_EPSILONS, options.seeds))]


def bad_tables(cells: Sequence[Cell]) -> str:
    """Return what was reached, and what the results say of their template."""
    columns: list[float | None] = [*epsilons_of(pick(cells, reference=TANH)), None]
    scores, counts = [], []
    for name in names_of(cells):
        alone = pick(cells, method=template_of(name), reference=TANH)[0]
        found = {cell.epsilon: cell for cell in pick(cells, method=guided_by(name), reference=TANH)}
        scores.append([name, both(alone), *(both(found[epsilon]) for epsilon in columns)])
        counts.append([name, *(_counts(found[epsilon]) for epsilon in columns)])
    headings = ["no privacy" if epsilon is None else f"ε = {epsilon:g}" for epsilon in columns]
    first = markdown([["", "template alone", *headings], ["---"] * (len(headings) + 2), *scores])
    second = markdown([["", *headings], ["---"] * (len(headings) + 1), *counts])
    return (
        "Correlation of matched maps (1 is perfect) / gain index (0 is perfect), mean ± standard error:\n\n"
        f"{first}\n\nNetworks without support / of which that cannot be told / that moved, means over draws:"
        f"\n\n{second}"
    )


def _counts(cell: Cell) -> str:
    return f"{cell.unsupported:.1f} / {cell.untold:.1f} / {cell.moved:.1f}"


def bad_summary(cells: Sequence[Cell]) -> str:
    """Say what the result tells of bad templates, and what dual regression makes of one at random."""
    parts = []
    for name in names_of(cells):
        alone = pick(cells, method=template_of(name), reference=TANH)[0]
        own = pick(cells, method=guided_by(name), mechanism="cape", reference=TANH)
        said = ", ".join(
            f"{cell.map_correlation:.2f} / {cell.gain_index:.3f} at ε = {cell.epsilon:g} ({_counts(cell)})"
            for cell in own
        )
        parts.append(f"{name}: {alone.map_correlation:.2f} / {alone.gain_index:.3f} alone, guided {said}")
    group = pick(cells, method=group_maps_of(AT_RANDOM), reference=THE_TEMPLATE)[0]
    return (
        "Correlation of maps / gain index, in brackets how many networks are without support / cannot be "
        f"told / moved. {'; '.join(parts)}. The mean maps of everybody by dual "
        f"regression on random maps (ε = {group.epsilon:g}) correlate with these random maps by "
        f"{group.map_correlation:.2f}: such maps look like what they were asked for, whatever that was; "
        "what may tell is the support."
    )


def _template_curve(cell: Cell) -> str:
    return cell.method.split(":")[0]


def bad_figure(cells: Sequence[Cell]) -> Figure:
    """Draw both scores over epsilon; what a template scores alone is a line across."""
    shown = [
        cell
        for cell in pick(cells, reference=TANH)
        if cell.mechanism == "cape" or cell.method.endswith("alone")
    ]
    return epsilon_figure(shown, f"{BAD_TITLE} (dotted: the template alone)", _template_curve, meaning=False)


ABLATION_TITLE: Final = "Guided by a template: what each stage and clip contributes, ABIDE"
ABLATION_EPSILONS: Final = (1.0, 3.0, 10.0)
MORE_EPSILON: Final = 30.0
AS_IS: Final = "as it is"
NO_SUBSPACE: Final = "subspace never asked"


class WithoutSubspace(GuidedMethod):
    """Never asks for the subspace."""

    @cached_property
    def plan(self) -> dict[int, float]:
        """What is asked."""
        return LOUD_PLAN


class WithSubspace(GuidedMethod):
    """Always asks for the subspace."""

    @cached_property
    def plan(self) -> dict[int, float]:
        """What is asked."""
        return QUIET_PLAN


class SupportAlone(GuidedMethod):
    """Never asks for more than the support."""

    @cached_property
    def plan(self) -> dict[int, float]:
        """What is asked."""
        return DEAF_PLAN


class _OtherClip(GuidedMethod):
    factor = 1.0

    @cached_property
    def _queries(self) -> dict[int, Query]:
        queries = super()._queries
        rotation = queries[ROTATION]
        return {**queries, ROTATION: replace(rotation, clip=self.factor * rotation.clip)}


class HalfClip(_OtherClip):
    """Rotations clipped to half."""

    factor = 0.5


class TwiceClip(_OtherClip):
    """Rotations clipped to twice as much."""

    factor = 2.0


KINDS: Final[Mapping[str, type[GuidedMethod]]] = {
    AS_IS: GuidedMethod,
    NO_SUBSPACE: WithoutSubspace,
    "subspace always asked": WithSubspace,
    "support alone": SupportAlone,
    "clip of rotations x 0.5": HalfClip,
    "clip of rotations x 2": TwiceClip,
}
ONE_COLLUDING: Final = "one colluding site"


def ablation_rows(
    folder: Path, public: Sequence[str], n_components: int, epsilons: Sequence[float], draws: int
) -> list[Row]:
    """Analyse the private people by all variants of the method."""
    public_sites, private = apart(everybody(folder), public)
    problem = problem_of(private, n_components)
    asked = Asked("ablation", problem, {TANH: problem.mixing})
    template = as_template(by_own_method(public_sites, n_components))
    guided = Guided(problem, template)
    rows = asked.template(BY_OWN, template)
    rows += asked.rows(AS_IS, guided.analyse(terms_of(None)), "none", None, 0)
    for epsilon in epsilons:
        cape, curator = terms_of(epsilon), terms_of(epsilon, "pooled")
        fits: list[tuple[str, Terms, type[GuidedMethod]]] = [
            (name, cape, kind) for name, kind in KINDS.items()
        ]
        if epsilon > max(ABLATION_EPSILONS):
            fits = [fit for fit in fits if fit[0] in (AS_IS, NO_SUBSPACE)]
        else:
            fits += [
                (ONE_COLLUDING, replace(cape, n_colluding=1), GuidedMethod),
                (AS_IS, curator, GuidedMethod),
            ]
        for draw in range(draws):
            for name, terms, kind in fits:
                rows += asked.rows(name, guided.analyse(terms, kind), terms.mechanism, epsilon, draw)
    return rows


def ablation_tasks(options: Options) -> list[Task]:
    """Return the one task."""
    folder = options.folder
    assert folder is not None
    if options.quick:
        return [Task(ablation_rows, (folder, list(everybody(folder))[:1], 4, (3.0, 30.0), options.seeds))]
    epsilons = (*ABLATION_EPSILONS, MORE_EPSILON)
    return [Task(ablation_rows, (folder, TUNED, N_COMPONENTS, epsilons, options.seeds))]


def _variant(cell: Cell) -> str:
    return f"{cell.method}, trusted curator" if cell.mechanism == "pooled" else cell.method


def ablation_summary(cells: Sequence[Cell]) -> str:
    """Compare every variant with the method as it is."""
    parts = []
    for epsilon in epsilons_of(cells):
        own = pick(cells, method=AS_IS, mechanism="cape", epsilon=epsilon)[0]
        others = [cell for cell in pick(cells, epsilon=epsilon) if cell is not own]
        said = ", ".join(
            f"{_variant(cell)} {cell.map_correlation - own.map_correlation:+.3f} / "
            f"{cell.gain_index - own.gain_index:+.3f}"
            for cell in others
        )
        parts.append(f"At ε = {epsilon:g} {own.map_correlation:.3f} / {own.gain_index:.3f}; {said}.")
    alone = pick(cells, method=template_of(BY_OWN))[0]
    return (
        f"Correlation of maps / gain index; the template by the default method alone has "
        f"{alone.map_correlation:.3f} / {alone.gain_index:.3f}. What changes with each variant: "
        + " ".join(parts)
    )


def ablation_figure(cells: Sequence[Cell]) -> Figure:
    """Draw both scores over epsilon."""
    shown = [cell for cell in cells if cell.epsilon is not None or cell.method.endswith("alone")]
    return epsilon_figure(shown, f"{ABLATION_TITLE} (dotted: the template)", _variant, meaning=False)


SYNTHETIC_TITLE: Final = (
    "Guided by a template: synthetic, 1,024 subjects, 20 components, noise as strong as the signal"
)
SYNTHETIC_EPSILONS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
COMPACT: Final = "compact maps"
SCATTERED: Final = "scattered maps"
PERTURBED: Final = "truth and half as much of other smooth maps"
TRUE: Final = "the truth"
PERTURBATION: Final = 0.5


def true_maps(problem: Problem) -> FloatArray:
    """Return the true maps (R, D), of unit length, as far as the basis has them."""
    assert problem.basis is not None
    return _unit(problem.mixing.T @ problem.basis.T @ problem.basis)


def perturbed(problem: Problem, seed: int) -> Template:
    """Return the true maps, each with half of its length of a random smooth map of the basis added."""
    assert problem.basis is not None
    maps = true_maps(problem)
    others = np.random.default_rng(seed).standard_normal((len(maps), len(problem.basis))) @ problem.basis
    return Template.of(maps + PERTURBATION * _unit(others))


def _unit(maps: FloatArray) -> FloatArray:
    unit: FloatArray = maps / np.linalg.norm(maps, axis=1, keepdims=True)
    return unit


def synthetic_rows(size: Size, seed: int, epsilons: Sequence[float]) -> list[Row]:
    """Analyse one study with compact and one with scattered maps, guided and unguided."""
    rows = []
    kinds: dict[str, MapKind] = {COMPACT: "compact", SCATTERED: "scattered"}
    for setting, maps in kinds.items():
        problem = synthetic(seed, replace(size, maps=maps))
        asked = Asked(setting, problem, {"truth": problem.mixing})
        for name, template in (
            (PERTURBED, perturbed(problem, seed)),
            (TRUE, Template.of(true_maps(problem))),
        ):
            series = Series(asked, name, template)
            rows += [replace(row, seed=seed) for row in series.alone()]
            rows += [row for epsilon in epsilons for row in series.rows("cape", epsilon, seed)]
            rows += series.rows("none", None, seed)
        for epsilon in (None, *epsilons):
            mechanism: MechanismName = "none" if epsilon is None else "cape"
            fit = partial(_analysed, problem, epsilon, mechanism)
            rows += compared(
                setting, size.n_subjects, UNGUIDED, mechanism, epsilon, seed, fit, {"truth": problem.mixing}
            )
    return rows


def _analysed(problem: Problem, epsilon: float | None, mechanism: MechanismName) -> tuple[FloatArray, int]:
    return problem.analyse(epsilon, mechanism)


def synthetic_tasks(options: Options) -> list[Task]:
    """Return one task for each seed."""
    if options.quick:
        return [
            Task(synthetic_rows, (replace(QUICK, noise=1.0), s, QUICK_EPSILONS)) for s in range(options.seeds)
        ]
    size = Size(noise=1.0)
    return [Task(synthetic_rows, (size, seed, SYNTHETIC_EPSILONS)) for seed in range(options.seeds)]


def synthetic_tables(cells: Sequence[Cell]) -> str:
    """Return for both kinds of maps what was reached, and how it differs from the template."""
    parts = []
    for setting in settings_of(cells):
        own = pick(cells, setting=setting)
        pairs = [(guided_by(name), template_of(name), "truth") for name in (PERTURBED, TRUE)]
        parts.append(
            f"## {setting.capitalize()}\n\n{score_lines(_variant, own)}\n\nDifferences of both from the "
            "template, and the upper 95% bound of that of the gain index:\n\n"
            f"{difference_table(own, pairs)}"
        )
    return "\n\n".join(parts)


def synthetic_summary(cells: Sequence[Cell]) -> str:
    """Say what guidance brings and what it may spoil."""
    parts = []
    for setting in settings_of(cells):
        own = pick(cells, setting=setting)
        alone = pick(own, method=template_of(PERTURBED))[0]
        true = pick(own, method=template_of(TRUE))[0]
        said = ", ".join(
            f"{cell.map_correlation:.3f} / {cell.gain_index:.3f} at ε = {cell.epsilon:g}"
            for cell in pick(own, method=guided_by(PERTURBED), mechanism="cape")
        )
        free = ", ".join(
            f"{cell.map_correlation:.3f} / {cell.gain_index:.3f}"
            for cell in pick(own, method=UNGUIDED, mechanism="cape")
        )
        exact = ", ".join(
            f"{difference(cell, true).upper:+.4f}"
            for cell in pick(own, method=guided_by(TRUE), mechanism="cape")
        )
        parts.append(
            f"**{setting.capitalize()}.** The perturbed template alone {alone.map_correlation:.3f} / "
            f"{alone.gain_index:.3f}, guided {said}; unguided {free} at the same ε. From the truth itself "
            f"the gain index rises by at most {exact} (upper 95% bounds)."
        )
    return (
        "Correlation of maps / gain index. A template is the truth with half as much of a random smooth map "
        "added to each map, and the truth itself, both as far as the basis has them. Scattered maps have "
        "three blobs of either sign, anywhere.\n\n" + "\n\n".join(parts)
    )


def synthetic_figure(cells: Sequence[Cell]) -> Figure:
    """Draw both scores over epsilon for scattered maps."""
    shown = [
        cell
        for cell in pick(cells, setting=SCATTERED)
        if cell.mechanism == "cape" or cell.method == template_of(PERTURBED)
    ]
    return epsilon_figure(
        shown, "Guided, synthetic with scattered maps (dotted: the template)", _template_curve, meaning=False
    )


def _label(cell: Cell) -> str:
    return f"{cell.setting}: {_variant(cell)}"


GUIDED_BAD: Final = Claim(
    BAD_TITLE, bad_tasks, bad_summary, bad_figure, _label, needs_folder=True, tables=bad_tables
)
GUIDED_ABLATION: Final = Claim(
    ABLATION_TITLE,
    ablation_tasks,
    ablation_summary,
    ablation_figure,
    _variant,
    needs_folder=True,
    maps_first=True,
)
GUIDED_SYNTHETIC: Final = Claim(
    SYNTHETIC_TITLE, synthetic_tasks, synthetic_summary, synthetic_figure, _label, tables=synthetic_tables
)
