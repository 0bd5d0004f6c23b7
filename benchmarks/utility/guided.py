"""ABIDE with some of its sites as public ones: joint ICA that begins at a template made of their people.

Distances are from the pooled non-private tanh ICA of the private people (:mod:`benchmarks.utility.abide`).
A template is made of the public people alone, by the default method without privacy or by pooled tanh ICA.
Two more are exact: the default method's own solution of the private people without noise, and the tanh
reference itself. From these every step leads away, so that they tell what guidance may spoil.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import t as student

from benchmarks.utility.abide import (
    N_COMPONENTS,
    OWN,
    SCAN_LENGTH,
    TANH,
    Sites,
    everybody,
    halves,
    pooled_icas,
)
from benchmarks.utility.shared.figures import INK, draw_series
from benchmarks.utility.shared.problems import DELTA, FloatArray, KeptSite, Problem
from benchmarks.utility.shared.report import Claim, both, markdown
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared
from capedjica.algorithms.ica.guided import SUPPORT, GuidedMethod, GuidedSite
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.algorithms.ica.subject_level import SUBSPACE
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.template_method import TemplateMethod
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName, Statistics
from capedjica.mechanisms.terms import Terms

TITLE: Final = "Guided by a template: ABIDE with some sites public, 20 components"
EPSILONS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
GROUP_EPSILONS: Final = (1.0, 3.0, 10.0)
QUICK_EPSILONS: Final = (3.0, 30.0)
TUNED: Final = ("usm", "ucla_1", "um_1")
# Nobody looked at this split before all constants were fixed.
UNSEEN: Final = ("kki", "max_mun", "pitt", "trinity", "yale")
TUNED_SETTING: Final = "public USM, UCLA_1, UM_1 (constants tuned here)"
UNSEEN_SETTING: Final = "public KKI, MAX_MUN, PITT, TRINITY, YALE (unseen)"
# Draws of what is only there to be compared with.
FEWER: Final = 5
BY_OWN: Final = "own method"
BY_TANH: Final = "pooled tanh"
EXTERNAL: Final = "external"
EXACT_OWN: Final = "exact, own method"
EXACT_TANH: Final = "exact, pooled tanh"
UNGUIDED: Final = "unguided"
# Largest gain index and least correlation, by epsilon.
TARGETS: Final = {1.0: (0.145, 0.72), 3.0: (0.127, 0.745), 10.0: (0.115, 0.765)}
# How much of the gain index guidance may cost, as the upper bound of the difference says.
HARMLESS: Final = 0.003
CONFIDENCE: Final = 0.95


class KeptSupport:
    """What a site computes for the guided method, what depends on nothing published being kept.

    Parameters
    ----------
    site : GuidedSite
        What computes it.
    kinds : tuple of int
        What each stage asks.
    subspace : KeptSite
        Where the vectors of the subspace are kept already.
    support : list of arrays
        Where those of the support are kept, once they are known.
    """

    def __init__(
        self, site: GuidedSite, kinds: tuple[int, ...], subspace: KeptSite, support: list[FloatArray]
    ) -> None:
        self._site, self._kinds, self._subspace, self._support = site, kinds, subspace, support

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors."""
        kind = self._kinds[stage]
        if kind == SUBSPACE:
            return self._subspace(SUBSPACE, published, state)
        if kind != SUPPORT:
            return self._site(stage, published, state)
        if not self._support:
            self._support += self._site(stage, published, state)
        return iter(self._support)


@dataclass(frozen=True, eq=False)
class Guided:
    """The people of a problem and a template, held so that many guided analyses are quick."""

    problem: Problem
    template: Template
    _sites: dict[tuple[tuple[int, ...], bool], dict[str, KeptSupport]] = field(default_factory=dict)
    _support: dict[tuple[str, bool], list[FloatArray]] = field(default_factory=dict)
    _differences: dict[str, list[FloatArray]] = field(default_factory=dict)

    def analyse(self, terms: Terms, kind: type[GuidedMethod] = GuidedMethod) -> Networks:
        """Run the guided method, or a kind of it, on the real protocol."""
        sizes = self.problem.sizes
        noise = terms.mean_noise(list(sizes.values()))
        method = kind(self.inside, self.problem.scan_length, noise)
        study = EmbeddedStudy("utility", sizes, self._statistics(method), method.stages(), terms)
        found = method.estimate(study)
        if isinstance(terms.epsilon, float):
            assert study.privacy.epsilon <= terms.epsilon * (1 + 1e-9)
        return found

    @property
    def inside(self) -> Template:
        """The template in the numbers that stand for the features, which are what a problem holds."""
        basis = self.problem.basis
        return self.template if basis is None else Template.of(self.template.maps @ basis.T)

    def _statistics(self, method: GuidedMethod) -> dict[str, KeptSupport]:
        kinds, exact = tuple(method.plan), method.noise == 0
        if (kinds, exact) not in self._sites:
            problem = self.problem
            subspaces = problem.exact_sites if exact else problem.sites
            self._sites[kinds, exact] = {
                name: KeptSupport(
                    method.site(scans),
                    kinds,
                    subspaces[name],
                    self._support.setdefault((name, exact), []),
                )
                for name, scans in problem.features.items()
            }
        return self._sites[kinds, exact]

    def group_maps(self, terms: Terms) -> Networks:
        """Return the template moved by the mean difference of all people, which is all that is asked."""
        sizes = self.problem.sizes
        noise = terms.mean_noise(list(sizes.values()))
        method = TemplateMethod(self.inside, self.problem.scan_length, noise)
        study = EmbeddedStudy("utility", sizes, self._regressed(method), method.stages(), terms)
        return method.estimate(study)

    def _regressed(self, method: TemplateMethod) -> dict[str, Statistics]:
        if not self._differences:
            for name, scans in self.problem.features.items():
                self._differences[name] = [row.astype(np.float64) for row in method.site(scans)(0, b"", b"")]
        return {name: partial(again, rows) for name, rows in self._differences.items()}


def again(rows: Sequence[FloatArray], stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
    """Return the vectors of a site that depend on nothing published, whatever is asked."""
    return iter(rows)


def terms_of(epsilon: float | None, mechanism: MechanismName = "cape") -> Terms:
    """Return the terms of a study in one process; without epsilon there is no privacy."""
    return in_process(epsilon=epsilon, delta=DELTA, mechanism="none" if epsilon is None else mechanism)


@dataclass(frozen=True, eq=False)
class Asked:
    """What rows are of: the data, and what maps are compared with.

    Parameters
    ----------
    setting : str
        Which data.
    problem : Problem
        The private people.
    references : dict from name to array (D, R)
        Mixing matrices.
    """

    setting: str
    problem: Problem
    references: Mapping[str, FloatArray]

    def rows(
        self, method: str, found: Networks, mechanism: str, epsilon: float | None, seed: int
    ) -> list[Row]:
        """Compare what was found with every reference, and count what it says of the template."""
        size = len(self.problem.scans)
        unmixing = self.problem.pixels(found.estimate)
        fit = partial(_known, unmixing, found.n_iter)
        rows = compared(self.setting, size, method, mechanism, epsilon, seed, fit, dict(self.references))
        movements = found.movements
        if not movements or movements[0].support is None:
            return rows
        moved = sum(one.moved for one in movements)
        unsupported, untold = (
            sum(one.supported == said for one in movements) for said in ("no", "cannot be determined")
        )
        return [replace(row, moved=moved, unsupported=unsupported, untold=untold) for row in rows]

    def template(self, name: str, template: Template) -> list[Row]:
        """Compare a template as it is."""
        alone = Networks(pseudo_inverse(template.maps.T))
        size = len(self.problem.scans)
        fit = partial(_known, alone.estimate, 0)
        return compared(self.setting, size, template_of(name), "none", None, 0, fit, dict(self.references))

    def unguided(self, epsilon: float | None, seed: int) -> list[Row]:
        """Run the default method, which knows no template."""
        mechanism: MechanismName = "none" if epsilon is None else "cape"
        fit = partial(self.problem.analyse, epsilon, mechanism)
        size = len(self.problem.scans)
        return compared(self.setting, size, UNGUIDED, mechanism, epsilon, seed, fit, dict(self.references))


def _known(unmixing: FloatArray, n_iter: int) -> tuple[FloatArray, int]:
    return unmixing, n_iter


def template_of(name: str) -> str:
    """Name a template where it stands alone."""
    return f"{name}: template alone"


def guided_by(name: str) -> str:
    """Name the guided method with a template."""
    return f"{name}: guided"


def group_maps_of(name: str) -> str:
    """Name the method that only asks for the mean difference from a template."""
    return f"{name}: group maps"


@dataclass(frozen=True, eq=False)
class Series:
    """Guided analyses by one template.

    Parameters
    ----------
    asked : Asked
        What their rows are of.
    name : str
        Of the template.
    template : Template
        The template.
    """

    asked: Asked
    name: str
    template: Template

    @cached_property
    def guided(self) -> Guided:
        """What makes them."""
        return Guided(self.asked.problem, self.template)

    def alone(self) -> list[Row]:
        """Compare the template as it is."""
        return self.asked.template(self.name, self.template)

    def rows(self, mechanism: MechanismName, epsilon: float | None, draw: int) -> list[Row]:
        """Run the guided method once."""
        found = self.guided.analyse(terms_of(epsilon, mechanism))
        return self.asked.rows(guided_by(self.name), found, mechanism, epsilon, draw)

    def group_maps(self, epsilon: float, draw: int) -> list[Row]:
        """Move the template by the mean difference of all people, once."""
        found = self.guided.group_maps(terms_of(epsilon))
        return self.asked.rows(group_maps_of(self.name), found, "cape", epsilon, draw)


def apart(sites: Sites, public: Sequence[str]) -> tuple[Sites, Sites]:
    """Return the public sites and the private ones."""
    missing = [name for name in public if name not in sites]
    assert not missing, f"no site {', '.join(missing)}"
    return (
        {name: sites[name] for name in public},
        {name: scans for name, scans in sites.items() if name not in public},
    )


def problem_of(private: Sites, n_components: int) -> Problem:
    """Return private people with their pooled tanh ICA in the place of the truth."""
    return Problem(private, pseudo_inverse(by_tanh(private, n_components)), scan_length=SCAN_LENGTH)


def by_tanh(sites: Sites, n_components: int) -> FloatArray:
    """Return the (R, D) unmixing matrix of the pooled tanh ICA."""
    return pooled_icas([scan for site in sites.values() for scan in site], n_components)[0]


def by_own_method(sites: Sites, n_components: int) -> FloatArray:
    """Return the (R, D) unmixing matrix of the default method without privacy; one site counts as two."""
    if len(sites) == 1:
        first, second = halves(sites, 0)
        sites = {"first": next(iter(first.values())), "second": next(iter(second.values()))}
    features = next(iter(sites.values()))[0].shape[1]
    # Only the shape of the mixing matrix counts for an analysis.
    shape = np.zeros((features, n_components))
    return Problem(sites, shape, scan_length=SCAN_LENGTH).analyse(None, "none")[0]


def as_template(unmixing: FloatArray) -> Template:
    """Return the maps of an unmixing matrix as a template."""
    return Template.of(pseudo_inverse(unmixing).T)


def split_rows(
    folder: Path,
    setting: str,
    public: Sequence[str],
    n_components: int,
    epsilons: Sequence[float],
    draws: int,
) -> list[Row]:
    """Make templates of the public sites and analyse the others with and without them."""
    public_sites, private = apart(everybody(folder), public)
    templates = {
        BY_OWN: as_template(by_own_method(public_sites, n_components)),
        BY_TANH: as_template(by_tanh(public_sites, n_components)),
    }
    return rows_of(setting, problem_of(private, n_components), templates, epsilons, draws)


def rows_of(
    setting: str,
    problem: Problem,
    templates: Mapping[str, Template],
    epsilons: Sequence[float],
    draws: int,
) -> list[Row]:
    """Analyse private people: guided by each template, by the exact ones, and unguided."""
    own = problem.analyse(None, "none")[0]
    asked = Asked(setting, problem, {TANH: problem.mixing})
    besides = replace(asked, references={TANH: problem.mixing, OWN: pseudo_inverse(own)})
    public = [Series(asked, name, template) for name, template in templates.items()]
    exact = [
        Series(besides, EXACT_OWN, as_template(own)),
        Series(asked, EXACT_TANH, Template.of(problem.mixing.T)),
    ]
    rows = asked.rows(UNGUIDED, Networks(own), "none", None, 0)
    for series in (*public, *exact):
        rows += series.alone()
    for draw in range(draws):
        rows += _draw(asked, public, exact, epsilons, draw)
    for series in (*public, *exact):
        rows += series.rows("none", None, 0)
    return rows


def _draw(
    asked: Asked, public: Sequence[Series], exact: Sequence[Series], epsilons: Sequence[float], draw: int
) -> list[Row]:
    """Run everything once."""
    rows = []
    for epsilon in epsilons:
        for series in (*public, *exact):
            rows += series.rows("cape", epsilon, draw)
    if draw >= FEWER:
        return rows
    for epsilon in epsilons:
        rows += asked.unguided(epsilon, draw)
        for series in public:
            rows += series.rows("pooled", epsilon, draw)
            if epsilon in (*GROUP_EPSILONS, *QUICK_EPSILONS):
                rows += series.group_maps(epsilon, draw)
    return rows


def tasks(options: Options) -> list[Task]:
    """Return one task for each split."""
    folder = options.folder
    assert folder is not None
    if options.quick:
        names = list(everybody(folder))
        quick = (4, QUICK_EPSILONS, options.seeds)
        return [
            Task(split_rows, (folder, TUNED_SETTING, names[:1], *quick)),
            Task(split_rows, (folder, UNSEEN_SETTING, names[-1:], *quick)),
        ]
    chosen = (N_COMPONENTS, EPSILONS, options.seeds)
    return [
        Task(split_rows, (folder, UNSEEN_SETTING, UNSEEN, *chosen)),
        Task(split_rows, (folder, TUNED_SETTING, TUNED, *chosen)),
    ]


@dataclass(frozen=True)
class Difference:
    """The mean of runs less what they are compared with.

    Attributes
    ----------
    gain_index, map_correlation : float
        Differences.
    upper : float
        The one-sided 95% bound of the difference in gain index, of the t-distribution over draws.
    """

    gain_index: float
    map_correlation: float
    upper: float


def difference(cell: Cell, other: Cell) -> Difference:
    """Compare runs with others of their own noise (Welch), or with something that has none.

    A template is the same in every draw, so that the difference from it varies as the runs do.
    """
    gap = cell.gain_index - other.gain_index
    errors = [(0.0 if math.isnan(one.gain_error) else one.gain_error, one.n_rows) for one in (cell, other)]
    variance = sum(error**2 for error, _ in errors)
    upper = gap
    if variance > 0:
        freedom = variance**2 / sum(error**4 / (count - 1) for error, count in errors if error > 0)
        upper += float(student.ppf(CONFIDENCE, freedom)) * math.sqrt(variance)
    return Difference(gap, cell.map_correlation - other.map_correlation, upper)


def pick(cells: Sequence[Cell], **wanted: object) -> list[Cell]:
    """Return all cells with these attributes."""
    return [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]


def settings_of(cells: Sequence[Cell]) -> list[str]:
    """Return the settings, in the order of the cells."""
    return list(dict.fromkeys(cell.setting for cell in cells))


def names_of(cells: Sequence[Cell], suffix: str = ": guided") -> list[str]:
    """Return the templates that guide, those of the public people first."""
    order = [BY_OWN, BY_TANH, EXTERNAL, EXACT_OWN, EXACT_TANH]
    names = dict.fromkeys(cell.method.removesuffix(suffix) for cell in cells if cell.method.endswith(suffix))
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def epsilons_of(cells: Sequence[Cell]) -> list[float]:
    """Return all epsilons, ascending."""
    return sorted({cell.epsilon for cell in cells if cell.epsilon is not None})


def score_table(cells: Sequence[Cell], series: Sequence[tuple[str, str, str]]) -> str:
    """Return the table of correlations and gain indices, one line for each (method, mechanism, reference)."""
    columns: list[float | None] = [*epsilons_of(cells), None]
    lines = []
    for method, mechanism, reference in series:
        own = pick(cells, method=method, mechanism=mechanism, reference=reference)
        free = pick(cells, method=method, mechanism="none", reference=reference)
        values = {cell.epsilon: both(cell) for cell in [*free, *own]}
        who = "" if mechanism in ("cape", "none") else ", trusted curator"
        against = "" if reference == TANH else f", against {reference}"
        lines.append([f"{method}{who}{against}", *(values.get(epsilon, "") for epsilon in columns)])
    headings = ["", *("no privacy" if epsilon is None else f"ε = {epsilon:g}" for epsilon in columns)]
    return markdown([headings, ["---"] * len(headings), *lines])


def difference_table(cells: Sequence[Cell], pairs: Sequence[tuple[str, str, str]]) -> str:
    """Return differences with their upper bounds, one line for each (method, compared with, reference)."""
    columns = epsilons_of(cells)
    lines = []
    for method, other, reference in pairs:
        line = [f"{method}, less {other}" + ("" if reference == TANH else f", against {reference}")]
        for epsilon in columns:
            own = pick(cells, method=method, mechanism="cape", epsilon=epsilon, reference=reference)
            beside = pick(cells, method=other, epsilon=epsilon, reference=reference) or pick(
                cells, method=other, epsilon=None, reference=reference
            )
            if not own or not beside:
                line.append("")
                continue
            gap = difference(own[0], beside[0])
            line.append(f"{gap.map_correlation:+.4f} / {gap.gain_index:+.4f} (≤ {gap.upper:+.4f})")
        lines.append(line)
    headings = ["", *(f"ε = {epsilon:g}" for epsilon in columns)]
    return markdown([headings, ["---"] * len(headings), *lines])


def _counts(cells: Sequence[Cell]) -> str:
    """Say how many draws of the noise means are of."""
    guided = {cell.n_rows for cell in cells if cell.mechanism == "cape" and cell.method.endswith(": guided")}
    others = {cell.n_rows for cell in pick(cells, method=UNGUIDED, mechanism="cape")}
    least, most, fewer = min(guided), max(guided), max(others)
    said = f"{most}" if least == most else f"{least} to {most}"
    return f"{said} draws of the noise" + (f" ({fewer} of what it is compared with)" if fewer < most else "")


def tables(cells: Sequence[Cell]) -> str:
    """Return for each split what was reached, and how it differs from the template and from no guidance."""
    return "\n\n".join(split_table(pick(cells, setting=setting), setting) for setting in settings_of(cells))


def split_table(cells: Sequence[Cell], setting: str) -> str:
    """Return what was reached with one split."""
    series, pairs = [(UNGUIDED, "cape", TANH)], []
    for name in names_of(cells):
        for reference in dict.fromkeys(cell.reference for cell in pick(cells, method=guided_by(name))):
            series += [(template_of(name), "none", reference), (guided_by(name), "cape", reference)]
            pairs.append((guided_by(name), template_of(name), reference))
        if pick(cells, method=guided_by(name), mechanism="pooled"):
            series.append((guided_by(name), "pooled", TANH))
        if pick(cells, method=group_maps_of(name)):
            series.append((group_maps_of(name), "cape", TANH))
        pairs.append((guided_by(name), UNGUIDED, TANH))
    return (
        f"## {_sentence(setting)}\n\n{cells[0].n_subjects} private people. Correlation of matched "
        f"maps (1 is perfect) / gain index (0 is perfect), mean ± standard error of "
        f"{_counts(cells)}:\n\n{score_table(cells, series)}\n\nDifferences of both, and the upper 95% "
        "bound of that of the gain index (Welch against what has noise of its own):\n\n"
        f"{difference_table(cells, pairs)}"
    )


def target_said(cells: Sequence[Cell], name: str) -> str:
    """Say which targets a template of public people meets."""
    parts = []
    for epsilon, (most, least) in TARGETS.items():
        found = pick(cells, method=guided_by(name), mechanism="cape", epsilon=epsilon, reference=TANH)
        if not found:
            continue
        cell = found[0]
        kept = cell.gain_index <= most, cell.map_correlation >= least
        said = {
            (True, True): "both met",
            (True, False): "gain index met, correlation missed",
            (False, True): "gain index missed, correlation met",
            (False, False): "both missed",
        }[kept]
        parts.append(f"{cell.map_correlation:.3f} / {cell.gain_index:.3f} at ε = {epsilon:g} ({said})")
    alone = pick(cells, method=template_of(name), reference=TANH)[0]
    return (
        f"template by {name} {alone.map_correlation:.3f} / {alone.gain_index:.3f} alone, guided "
        f"{', '.join(parts) if parts else 'not at the ε of the targets'}"
    )


def harm_said(cells: Sequence[Cell], name: str, reference: str) -> str:
    """Say whether the upper bound of the difference from the template is harmless at every epsilon."""
    alone = pick(cells, method=template_of(name), reference=reference)[0]
    bounds = {
        cell.epsilon: difference(cell, alone).upper
        for cell in pick(cells, method=guided_by(name), mechanism="cape", reference=reference)
    }
    over = [f"{bound:+.4f} at ε = {epsilon:g}" for epsilon, bound in bounds.items() if bound > HARMLESS]
    against = "" if reference == TANH else f" (against {reference})"
    return f"{name}{against}: " + (
        f"exceeded, {', '.join(over)}" if over else f"kept, at most {max(bounds.values()):+.4f}"
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def summary(cells: Sequence[Cell]) -> str:
    """Say which targets are met, and where guidance does harm."""
    parts = []
    for setting in settings_of(cells):
        own = pick(cells, setting=setting)
        public = [name for name in names_of(own) if name not in (EXACT_OWN, EXACT_TANH)]
        targets = "; ".join(target_said(own, name) for name in public)
        harms = "; ".join(
            harm_said(own, name, reference)
            for name in names_of(own)
            for reference in dict.fromkeys(cell.reference for cell in pick(own, method=guided_by(name)))
        )
        parts.append(
            f"**{_sentence(setting)}.** {_sentence(targets)}. Upper 95% bound of the gain index less the "
            f"template's, at most {HARMLESS} wanted: {harms}."
        )
    limits = ", ".join(f"{least} / {most} at ε = {epsilon:g}" for epsilon, (most, least) in TARGETS.items())
    return f"Correlation of maps / gain index, targets {limits}.\n\n" + "\n\n".join(parts)


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw both scores over epsilon for each split, with the targets."""
    return scores_figure(cells, f"{TITLE}\ndotted: the template alone; bars: targets", TARGETS)


def scores_figure(cells: Sequence[Cell], title: str, targets: Mapping[float, tuple[float, float]]) -> Figure:
    """Draw both scores over epsilon for each setting; what a template scores alone is a line across."""
    settings = settings_of(cells)
    drawing = Figure(figsize=(4.6 * len(settings), 7.0), layout="constrained")
    drawing.suptitle(title, fontsize=10, color=INK)
    axes = drawing.subplots(2, len(settings), squeeze=False, sharey="row")
    for number, setting in enumerate(settings):
        own = pick(cells, setting=setting, reference=TANH)
        shown = [cell for cell in own if cell.method == UNGUIDED and cell.epsilon is not None]
        for name in names_of(own):
            shown += pick(own, method=guided_by(name), mechanism="cape")
            shown += pick(own, method=template_of(name))
        upper, lower = axes[:, number]
        draw_series(upper, shown, _template_name, lambda cell: (cell.map_correlation, cell.map_error))
        draw_series(lower, shown, _template_name, lambda cell: (cell.gain_index, cell.gain_error))
        for epsilon, (most, least) in targets.items():
            upper.plot(epsilon, least, marker="_", color=INK, markersize=14)
            lower.plot(epsilon, most, marker="_", color=INK, markersize=14)
        upper.set_title(setting, fontsize=9, color=INK)
    axes[0, 0].set_ylabel("correlation of matched maps (1 is perfect)")
    axes[1, 0].set_ylabel("normalized gain index (0 is perfect)")
    handles = axes[0, 0].get_legend_handles_labels()[0]
    drawing.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawing


def _template_name(cell: Cell) -> str:
    return cell.method.split(":")[0]


def label(cell: Cell) -> str:
    """Name what was computed from what."""
    return f"{cell.setting}: {cell.method}, {cell.mechanism}, against {cell.reference}"


GUIDED: Final = Claim(TITLE, tasks, summary, figure, label, needs_folder=True, tables=tables, seeds=20)
