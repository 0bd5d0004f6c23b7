"""Maps as they are read: denoised against raw ones, and stability against what other runs show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from benchmarks.utility.abide import N_COMPONENTS, OWN, SCAN_LENGTH, Sites, everybody
from benchmarks.utility.guided import TUNED, UNSEEN, Guided, terms_of
from benchmarks.utility.shared.figures import INK, draw_series
from benchmarks.utility.shared.problems import FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim, plus_minus, table
from benchmarks.utility.shared.runs import Cell, Options, Row, Task
from benchmarks.utility.spatial import BrainSize, brains
from capedjica.algorithms.ica.maps.networks import Networks, _unit, _without
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.ica.template import Template
from capedjica.engines.embedded import EmbeddedStudy

EPSILONS: Final = (1.0, 2.0, 3.0, 5.0, 10.0)
QUICK_EPSILONS: Final = (3.0, 30.0)
RAW, DENOISED_MAPS = "raw", "denoised"
GAIN: Final = "gain"
TRUTH, OTHER_RUNS = "truth", "other runs"
PREDICTED, ACTUAL = "predicted", "actual"
COMPACT: Final = "synthetic"
NOISY: Final = "synthetic, with observation noise"
SCATTERED: Final = "synthetic, scattered"
BRAIN: Final = "simulated brain"
ABIDE: Final = "ABIDE, every other site"
FITTED_ABIDE: Final = "ABIDE, the sites between"
GUIDED: Final = "ABIDE, guided by a template"
FITTED_GUIDED: Final = "ABIDE, guided by another template"
SUBJECT, SPATIAL = "subject", "spatial"
# Of simulated data; the constants of stability were fitted on others (:mod:`benchmarks.utility.calibration`).
HELD_OUT_SEED: Final = 22
SIZES: Final = {
    COMPACT: Size(512, 12, 200, 24),
    NOISY: Size(512, 12, 200, 24, noise=1.0),
    SCATTERED: Size(512, 12, 200, 24, noise=1.0, maps="scattered"),
}
BRAIN_SIZES: Final = {
    BRAIN: BrainSize(240, 12, (100, 140), 10.0, n_waves=200),
}
QUICK_SIZE: Final = Size(128, 4, 80, 12)
QUICK_BRAIN: Final = BrainSize(48, 4, (50, 60), 12.0, n_waves=60)
DENOISING_TITLE: Final = "Denoised maps against raw ones"
STABILITY_TITLE: Final = "Stability: predicted against actual correlation between runs"
# Standard errors; in one of 40 cases without any difference there are more.
BEYOND_CHANCE: Final = 2.0
ALLOWED: Final = 0.1
Run = Callable[[float | None], Networks]


@dataclass(frozen=True, eq=False)
class Data:
    """A study that can be run many times: people, how to run it, and the truth if there is one."""

    n_people: int
    run: Run
    truth: FloatArray | None = None
    template: Template | None = None

    @cached_property
    def reference(self) -> FloatArray:
        """The truth, or what the same method finds without noise."""
        return self.run(None).mixing if self.truth is None else self.truth


def _run(problem: Problem, kind: str, epsilon: float | None) -> Networks:
    terms = terms_of(epsilon)
    noise = terms.mean_noise(list(problem.sizes.values()))
    size, rank, length = len(problem.mixing), problem.n_components, problem.scan_length
    method = (
        SpatialMethod(size, rank, length, noise, problem.basis)
        if kind == SPATIAL
        else SubjectMethod(size, rank, length, noise, basis=problem.basis)
    )
    sites = problem.exact_sites if epsilon is None else problem.sites
    return method.estimate(EmbeddedStudy("utility", problem.sizes, sites, method.stages(), terms))


@lru_cache(maxsize=1)
def study(setting: str, kind: str, folder: Path | None, seed: int, quick: bool) -> Data:
    """Return a study; the last one is kept, for the tasks that follow."""
    if setting in SIZES or setting in BRAIN_SIZES:
        problem = _simulated(setting, seed, quick)
        return Data(len(problem.scans), partial(_run, problem, kind), problem.mixing)
    assert folder is not None
    sites, rank = everybody(folder), 4 if quick else N_COMPONENTS
    if setting in (GUIDED, FITTED_GUIDED):
        return _with_template(sites, rank, fitted=setting == FITTED_GUIDED)
    problem = _regions(every_other(sites, first=setting == FITTED_ABIDE), rank)
    return Data(len(problem.scans), partial(_run, problem, kind))


def _simulated(setting: str, seed: int, quick: bool) -> Problem:
    if setting in BRAIN_SIZES:
        return brains(seed, QUICK_BRAIN if quick else BRAIN_SIZES[setting], keep=False)[0]
    size = SIZES[setting]
    return synthetic(seed, replace(QUICK_SIZE, noise=size.noise, maps=size.maps) if quick else size)


def every_other(sites: Sites, first: bool) -> Sites:
    """Return half of the sites, from the largest to the smallest one by one; those between if not first."""
    ordered = sorted(sites, key=lambda name: (-len(sites[name]), name))
    return {name: sites[name] for name in ordered[0 if first else 1 :: 2]}


def _regions(sites: Sites, rank: int) -> Problem:
    n_features = next(iter(sites.values()))[0].shape[1]
    return Problem(sites, np.eye(n_features)[:, :rank], scan_length=SCAN_LENGTH)


def _with_template(sites: Sites, rank: int, fitted: bool) -> Data:
    """Return the private sites with a template of the public ones by the default method."""
    given: Sites = {name: sites[name] for name in sites if name in (TUNED if fitted else UNSEEN)}
    public = given or every_other(sites, first=False)
    known = _run(_regions(public, rank), SUBJECT, None)
    template = Template(known.maps, tuple(f"network {n}" for n in range(1, rank + 1)))
    others = every_other(sites, first=True) if fitted else sites
    private = _regions({name: others[name] for name in others if name not in public}, rank)
    guided = Guided(private, template)
    return Data(len(private.scans), lambda epsilon: guided.analyse(terms_of(epsilon)), None, template)


def alike(maps: FloatArray, others: FloatArray, template: Template | None = None) -> FloatArray:
    """Return the correlation of each map (D, R) with its match; with a template, of differences from it."""
    if template is not None:
        own, other = (_unit(_without(one, template)) for one in (maps, others))
        return np.asarray(np.sum(own * other, axis=0))
    likeness = np.abs(_unit(maps).T @ _unit(others))
    rows, columns = linear_sum_assignment(likeness, maximize=True)
    matched: FloatArray = likeness[rows, columns]
    return matched


def denoised_rows(setting: str, folder: Path | None, epsilon: float, draws: int, quick: bool) -> list[Row]:
    """Compare raw and denoised maps with the truth, or with the same method without noise."""
    data, rows = study(setting, SUBJECT, folder, HELD_OUT_SEED, quick), []
    for draw in range(draws):
        found = data.run(epsilon)
        smooth = found.maps if found.denoised is None else found.denoised
        raw, better = (_nearness(maps.T, data) for maps in (found.maps, smooth))
        for name, value in ((RAW, raw), (DENOISED_MAPS, better), (GAIN, better - raw)):
            rows.append(_row(setting, data, name, epsilon, draw, value))
    return rows


def _nearness(maps: FloatArray, data: Data) -> float:
    """Return the mean correlation with the truth; with a template the order is known."""
    if data.template is None:
        return float(np.mean(alike(maps, data.reference)))
    return float(np.mean(np.abs(np.sum(_unit(maps) * _unit(data.reference), axis=0))))


def stability_rows(setting: str, folder: Path | None, epsilon: float, draws: int, quick: bool) -> list[Row]:
    """Compare what each run predicts with how it correlates with the other runs."""
    data, rows = study(setting, SUBJECT, folder, HELD_OUT_SEED, quick), []
    found = [data.run(epsilon) for _ in range(max(draws, 2))]
    for draw, (one, actual) in enumerate(zip(found, between(found, data.template), strict=True)):
        assert one.stability is not None
        rows.append(_row(setting, data, PREDICTED, epsilon, draw, float(np.mean(one.stability))))
        rows.append(_row(setting, data, ACTUAL, epsilon, draw, float(np.mean(actual))))
    return rows


def between(found: Sequence[Networks], template: Template | None) -> list[FloatArray]:
    """Return how each map of each run correlates with those of the other runs, on average."""
    return [
        np.mean([alike(one.mixing, two.mixing, template) for two in found if two is not one], axis=0)
        for one in found
    ]


def _row(setting: str, data: Data, method: str, epsilon: float, draw: int, value: float) -> Row:
    reference = OTHER_RUNS if method in (PREDICTED, ACTUAL) else OWN if data.truth is None else TRUTH
    return Row(setting, data.n_people, method, "cape", epsilon, reference, draw, 0.0, value, 0, 0.0)


def denoised_tasks(options: Options) -> list[Task]:
    """Return one task for each kind of data and epsilon."""
    return [
        Task(denoised_rows, (setting, options.folder, epsilon, options.seeds, options.quick))
        for setting in (ABIDE, GUIDED, BRAIN, COMPACT, SCATTERED)
        for epsilon in (QUICK_EPSILONS if options.quick else EPSILONS)
    ]


def stability_tasks(options: Options) -> list[Task]:
    """Return one task for each kind of data and epsilon."""
    settings = (ABIDE, GUIDED, BRAIN, COMPACT, SCATTERED)
    return [
        Task(stability_rows, (setting, options.folder, epsilon, options.seeds, options.quick))
        for setting in settings
        for epsilon in (QUICK_EPSILONS if options.quick else EPSILONS)
    ]


def _pairs(cells: Sequence[Cell], first: str, second: str) -> list[tuple[Cell, Cell]]:
    others = {(cell.setting, cell.epsilon): cell for cell in cells if cell.method == second}
    return [(cell, others[cell.setting, cell.epsilon]) for cell in cells if cell.method == first]


def denoised_summary(cells: Sequence[Cell]) -> str:
    """Say what denoising gains, and where it loses."""
    gains = [cell for cell in cells if cell.method == GAIN]
    best, worst = (choose(gains, key=lambda cell: cell.map_correlation) for choose in (max, min))
    lost = [cell for cell in gains if cell.map_correlation < -BEYOND_CHANCE * cell.map_error]
    where = "; ".join(f"{cell.setting} at ε = {cell.epsilon:g}" for cell in lost)
    return (
        "Correlation of maps with the truth (on ABIDE with the same method without noise), raw and denoised, "
        f"and the gain within runs. It is {_said(best)} at best and {_said(worst)} at worst; a loss of more "
        f"than {BEYOND_CHANCE:g} standard errors is seen in {len(lost)} of {len(gains)} cases"
        f"{f' ({where})' if lost else ''}. Tables of regions have no places: nothing is known that the "
        "methods have not used, and their maps stay as they are."
    )


def _said(cell: Cell) -> str:
    return f"{cell.map_correlation:+.3f} ({cell.setting}, ε = {cell.epsilon:g})"


def stability_summary(cells: Sequence[Cell]) -> str:
    """Say how far predictions are from what other runs show."""
    pairs = _pairs(cells, PREDICTED, ACTUAL)
    gaps = [abs(said.map_correlation - true.map_correlation) for said, true in pairs]
    far = [
        f"{said.setting} at ε = {said.epsilon:g} ({said.map_correlation:.2f}, actually "
        f"{true.map_correlation:.2f})"
        for (said, true), gap in zip(pairs, gaps, strict=True)
        if gap > ALLOWED
    ]
    beyond = f" Not within: {'; '.join(far)}." if far else ""
    return (
        f"Means over maps and runs: the prediction is within {ALLOWED:g} of the actual correlation between "
        f"runs in {sum(gap <= ALLOWED for gap in gaps)} of {len(gaps)} cases, {fmean(gaps):.3f} away on "
        f"average.{beyond} Constants were fitted on other data: simulated ones of other seeds, and the sites "
        "of ABIDE between those of this benchmark. With a template it is the difference from it that is "
        "predicted; guided, its one constant was fitted with another template."
    )


def _label(cell: Cell) -> str:
    return f"{cell.setting}, {cell.method}"


def _figure(title: str, cells: Sequence[Cell]) -> Figure:
    drawing = Figure(figsize=(9.0, 6.5), layout="constrained")
    drawing.suptitle(title, fontsize=11, color=INK)
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    axes = np.ravel(
        drawing.subplots(-(-len(settings) // 3), min(3, len(settings)), sharey=True, squeeze=False)
    )
    for axis, setting in zip(axes, settings, strict=False):
        own = [cell for cell in cells if cell.setting == setting and cell.method != GAIN]
        draw_series(axis, own, lambda cell: cell.method, lambda cell: (cell.map_correlation, cell.map_error))
        axis.set(title=setting, ylim=(0, 1.02), ylabel="correlation of maps")
        axis.title.set_fontsize(9)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    for axis in axes[len(settings) :]:
        axis.set_axis_off()
    return drawing


def _tables(cells: Sequence[Cell]) -> str:
    shown = table(_label, cells, lambda cell: plus_minus(cell.map_correlation, cell.map_error, 3))
    return f"Correlation of maps, mean ± standard error of runs:\n\n{shown}"


DENOISED: Final = Claim(
    DENOISING_TITLE,
    denoised_tasks,
    denoised_summary,
    partial(_figure, DENOISING_TITLE),
    _label,
    needs_folder=True,
    tables=_tables,
)
STABILITY: Final = Claim(
    STABILITY_TITLE,
    stability_tasks,
    stability_summary,
    partial(_figure, STABILITY_TITLE),
    _label,
    needs_folder=True,
    tables=_tables,
)
