"""Maps as they are read: denoised against raw ones, and stability against what other runs show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from benchmarks.utility.abide import N_COMPONENTS, SCAN_LENGTH, Sites, everybody
from benchmarks.utility.guided import UNSEEN
from benchmarks.utility.shared.figures import INK, draw_series
from benchmarks.utility.shared.problems import DELTA, FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task
from benchmarks.utility.spatial import BrainSize, brains
from capedjica.algorithms.ica.guided import GuidedMethod
from capedjica.algorithms.ica.maps.networks import Networks, _unit, _without
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.ica.template import Template
from capedjica.data.simulated.synthetic import MapKind
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Statistics

EPSILONS: Final = (1.0, 2.0, 3.0, 5.0, 10.0)
QUICK_EPSILONS: Final = (3.0, 30.0)
RAW, DENOISED_MAPS = "raw", "denoised"
PREDICTED, ACTUAL = "predicted", "actual"
BRAIN: Final = "simulated brain"
SCATTERED: Final = "synthetic, scattered"
COMPACT: Final = "synthetic"
ABIDE: Final = "ABIDE"
GUIDED: Final = "ABIDE, guided by a template"
DENOISING_TITLE: Final = "Denoised maps against raw ones"
STABILITY_TITLE: Final = "Stability: predicted against actual correlation between runs"
Run = Callable[[float | None], Networks]


@dataclass(frozen=True, eq=False)
class Data:
    """A study that can be run many times: people, how to run it, and the truth if there is one."""

    n_people: int
    run: Run
    truth: FloatArray | None = None
    template: Template | None = None


def _run(problem: Problem, kind: str, template: Template | None, epsilon: float | None) -> Networks:
    terms = in_process(epsilon=epsilon, delta=DELTA, mechanism="none" if epsilon is None else "cape")
    noise, length = terms.mean_noise(list(problem.sizes.values())), problem.scan_length
    size, rank = len(problem.mixing), problem.n_components
    method: GuidedMethod | SpatialMethod | SubjectMethod
    if template is not None:
        method = GuidedMethod(template, length, noise, basis=problem.basis)
        sites: Mapping[str, Statistics] = {
            name: method.site(scans) for name, scans in problem.features.items()
        }
    else:
        sites = problem.exact_sites if epsilon is None else problem.sites
        spatial = kind == "spatial"
        method = (
            SpatialMethod(size, rank, length, noise, problem.basis)
            if spatial
            else SubjectMethod(size, rank, length, noise, basis=problem.basis)
        )
    return method.estimate(EmbeddedStudy("utility", problem.sizes, sites, method.stages(), terms))


def _data(setting: str, kind: str, folder: Path | None, seed: int, quick: bool) -> Data:
    """Return a study; seeds differ from those that constants were fitted on."""
    template = None
    truth: FloatArray | None = None
    if setting in (COMPACT, SCATTERED):
        maps: MapKind = "compact" if setting == COMPACT else "scattered"
        noise = 0.0 if setting == COMPACT else 1.0
        small = Size(128, 4, 80, 12, noise=noise, maps=maps)
        problem = synthetic(seed, small if quick else Size(512, 12, 200, 24, noise=noise, maps=maps))
        truth = problem.mixing
    elif setting == BRAIN:
        size = (
            BrainSize(48, 4, (50, 60), 12.0, n_waves=60)
            if quick
            else BrainSize(240, 12, (100, 140), 10.0, n_waves=200)
        )
        problem = brains(seed, size, keep=False)[0]
        truth = problem.mixing
    else:
        assert folder is not None
        sites, rank = everybody(folder), 4 if quick else N_COMPONENTS
        n_features = next(iter(sites.values()))[0].shape[1]
        any_maps = np.eye(n_features)[:, :rank]
        if setting == GUIDED:
            known: Sites = {name: sites.pop(name) for name in UNSEEN if name in sites} or {
                name: sites[name] for name in list(sites)[:1]
            }
            public = _run(Problem(known, any_maps, scan_length=SCAN_LENGTH), "subject", None, None)
            template = Template(public.maps, tuple(f"network {n}" for n in range(1, rank + 1)))
        problem = Problem(sites, any_maps, scan_length=SCAN_LENGTH)
    return Data(len(problem.scans), partial(_run, problem, kind, template), truth, template)


def alike(maps: FloatArray, others: FloatArray, template: Template | None = None) -> FloatArray:
    """Return the correlation of each map (D, R) with its match; with a template, of differences from it."""
    if template is not None:
        own, other = (_unit(_without(one, template)) for one in (maps, others))
        return np.asarray(np.sum(own * other, axis=0))
    likeness = np.abs(_unit(maps).T @ _unit(others))
    rows, columns = linear_sum_assignment(likeness, maximize=True)
    matched: FloatArray = likeness[rows, columns]
    return matched


def denoised_rows(setting: str, folder: Path | None, draws: int, quick: bool) -> list[Row]:
    """Compare raw and denoised maps with the truth, or with the same method without noise."""
    data = _data(setting, "subject", folder, 21, quick)
    truth = data.run(None).mixing if data.truth is None else data.truth
    rows = []
    for epsilon in QUICK_EPSILONS if quick else EPSILONS:
        for draw in range(draws):
            found = data.run(epsilon)
            smooth = found.maps if found.denoised is None else found.denoised
            for name, maps in ((RAW, found.maps), (DENOISED_MAPS, smooth)):
                like = (
                    alike(maps.T, truth)
                    if data.template is None
                    else np.abs(np.sum(_unit(maps.T) * _unit(truth), axis=0))
                )
                rows.append(_row(setting, data, name, epsilon, draw, float(np.mean(like))))
    return rows


def stability_rows(setting: str, kind: str, folder: Path | None, draws: int, quick: bool) -> list[Row]:
    """Compare what each run predicts with how it correlates with the other runs."""
    data, rows = _data(setting, kind, folder, 22, quick), []
    name = setting if kind == "subject" else f"{setting}, spatial"
    for epsilon in QUICK_EPSILONS if quick else EPSILONS:
        found = [data.run(epsilon) for _ in range(max(draws, 2))]
        for draw, one in enumerate(found):
            assert one.stability is not None
            others = [alike(one.mixing, two.mixing, data.template) for two in found if two is not one]
            rows.append(_row(name, data, PREDICTED, epsilon, draw, float(np.mean(one.stability))))
            rows.append(_row(name, data, ACTUAL, epsilon, draw, float(np.mean(others))))
    return rows


def _row(setting: str, data: Data, method: str, epsilon: float, draw: int, value: float) -> Row:
    return Row(setting, data.n_people, method, "cape", epsilon, "", draw, 0.0, value, 0, 0.0)


def denoised_tasks(options: Options) -> list[Task]:
    """Return one task for each kind of data."""
    return [
        Task(denoised_rows, (setting, options.folder, options.seeds, options.quick))
        for setting in (ABIDE, GUIDED, BRAIN, COMPACT)
    ]


def stability_tasks(options: Options) -> list[Task]:
    """Return one task for each kind of data and method."""
    cases = [(setting, "subject") for setting in (ABIDE, GUIDED, BRAIN, COMPACT, SCATTERED)]
    cases += [(setting, "spatial") for setting in (ABIDE, BRAIN, COMPACT)]
    return [
        Task(stability_rows, (setting, kind, options.folder, options.seeds, options.quick))
        for setting, kind in cases
    ]


def _pairs(cells: Sequence[Cell], first: str, second: str) -> list[tuple[Cell, Cell]]:
    others = {(cell.setting, cell.epsilon): cell for cell in cells if cell.method == second}
    return [(cell, others[cell.setting, cell.epsilon]) for cell in cells if cell.method == first]


def denoised_summary(cells: Sequence[Cell]) -> str:
    """Say what denoising gains, and where it loses."""
    parts = []
    pairs = _pairs(cells, RAW, DENOISED_MAPS)
    for setting in dict.fromkeys(cell.setting for cell in cells):
        gains = [
            f"{other.map_correlation - raw.map_correlation:+.3f} at ε = {raw.epsilon:g}"
            for raw, other in pairs
            if raw.setting == setting
        ]
        parts.append(f"{setting}: {', '.join(gains)}.")
    return (
        "Gain in correlation of maps with the truth (on ABIDE with the same method without noise) by "
        f"denoising. {' '.join(parts)} Without places of the features and without a template nothing is "
        "known beforehand, and maps stay as they are."
    )


def stability_summary(cells: Sequence[Cell]) -> str:
    """Say how far predictions are from what other runs show."""
    pairs = _pairs(cells, PREDICTED, ACTUAL)
    gaps = [abs(said.map_correlation - true.map_correlation) for said, true in pairs]
    far = [
        f"{said.setting} at ε = {said.epsilon:g} ({said.map_correlation:.2f}, actually "
        f"{true.map_correlation:.2f})"
        for (said, true), gap in zip(pairs, gaps, strict=True)
        if gap > 0.1
    ]
    beyond = f" Not within: {'; '.join(far)}." if far else ""
    return (
        f"Means over maps and runs: the prediction is within 0.1 of the actual correlation between runs in "
        f"{sum(gap <= 0.1 for gap in gaps)} of {len(gaps)} cases, {fmean(gaps):.3f} away on average.{beyond} "
        "Constants were fitted on ABIDE and on other seeds of simulated data; guided by a template it is the "
        "difference from it, and nothing was fitted."
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
        own = [cell for cell in cells if cell.setting == setting]
        draw_series(axis, own, lambda cell: cell.method, lambda cell: (cell.map_correlation, cell.map_error))
        axis.set(title=setting, ylim=(0, 1.02), ylabel="correlation of maps")
        axis.title.set_fontsize(9)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    for axis in axes[len(settings) :]:
        axis.set_axis_off()
    return drawing


def _tables(cells: Sequence[Cell]) -> str:
    from benchmarks.utility.shared.report import _table, plus_minus

    shown = _table(_label, cells, lambda cell: plus_minus(cell.map_correlation, cell.map_error, 3))
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
