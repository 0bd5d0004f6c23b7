"""Spatial group ICA on simulated brains with known maps, against nilearn's CanICA on the pooled scans."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from benchmarks.utility.shared.figures import epsilon_figure
from benchmarks.utility.shared.problems import DELTA, FloatArray, Problem, Scan
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared, subject_rows
from benchmarks.utility.synthetic import QUICK_EPSILONS, find
from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.data.simulated.brain import Brain, BrainModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName

EPSILONS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
# Seconds; slower waves are taken out of every scan, as pipelines do.
CUTOFF: Final = 100.0
SPATIAL_ICA: Final = "spatial ICA"
JOINT: Final = "joint ICA (subject)"
CANICA: Final = "CanICA of nilearn, pooled"
UNSCALED: Final = "CanICA, voxels not standardized"
TITLE: Final = "Spatial ICA: simulated brains, 4 sites, 20 networks, voxels of 8 mm"


@dataclass(frozen=True)
class BrainSize:
    """What to simulate."""

    n_subjects: int = 200
    n_components: int = 20
    n_volumes: tuple[int, int] = (120, 160)
    voxel_size: float = 8.0
    n_sites: int = 4
    n_waves: int = 300


QUICK: Final = BrainSize(64, 4, (60, 80), 12.0, n_waves=100)


def brains(seed: int, size: BrainSize, keep: bool) -> tuple[Problem, Brain, list[Scan]]:
    """Simulate a study, one run for each person; also return all scans (T, D), if they are to be kept."""
    from nilearn.signal import clean

    sites = [size.n_subjects // size.n_sites] * size.n_sites
    model = BrainModel.draw(sites, size.n_components, size.n_volumes, size.voxel_size, seed)
    basis = low_pass_within(model.brain.mask, size.n_waves)
    narrow = basis.T.astype(np.float32)
    features: dict[str, list[Scan]] = {f"site-{number}": [] for number in range(1, size.n_sites + 1)}
    kept = []
    for run, volumes, _ in model.recordings(disturbed=False):
        if not run.is_last:
            continue
        frequency = 1 / CUTOFF
        # Cosines for all voxels at once: nilearn's Butterworth filter takes them one by one.
        scan: Scan = clean(
            volumes, standardize=None, filter="cosine", high_pass=frequency, t_r=run.repetition_time
        ).astype(np.float32)
        features[f"site-{run.site + 1}"].append(scan @ narrow)
        kept += [scan] if keep else []
    length = sum(size.n_volumes) // 2
    return Problem(features, model.signal.mixing, basis, length), model.brain, kept


def canica(brain: Brain, scans: Sequence[Scan], n_components: int, standardize: bool) -> FloatArray:
    """Run nilearn's, with its defaults but for the threshold, and return the (R, D) unmixing matrix."""
    from nilearn.decomposition import CanICA

    model = CanICA(
        mask=brain.mask_image(),
        n_components=n_components,
        threshold=None,
        standardize=standardize,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit([brain.image(scan) for scan in scans])
    return pseudo_inverse(np.asarray(model.components_, dtype=np.float64).T)


def spatial(problem: Problem, mechanism: MechanismName, epsilon: float | None) -> tuple[FloatArray, int]:
    """Run the method on the real protocol."""
    terms = in_process(epsilon=epsilon, delta=DELTA, mechanism=mechanism)
    noise = terms.mean_noise(list(problem.sizes.values()))
    method = SpatialMethod(
        len(problem.mixing), problem.n_components, problem.scan_length, noise, problem.basis
    )
    study = EmbeddedStudy("utility", problem.sizes, problem.sites, method.stages(), terms)
    found = method.estimate(study)
    return found.estimate, found.n_iter


def rows_of(size: BrainSize, seed: int, epsilons: Sequence[float], with_canica: bool) -> list[Row]:
    """Analyse one study in all ways."""
    problem, brain, scans = brains(seed, size, with_canica)
    cells: list[tuple[MechanismName, float | None]] = [("none", None)]
    cells += [("cape", epsilon) for epsilon in epsilons]
    truth, name = {"truth": problem.mixing}, f"{size.voxel_size:g} mm"
    rows = []
    for mechanism, epsilon in cells:
        fit = partial(spatial, problem, mechanism, epsilon)
        rows += compared(name, size.n_subjects, SPATIAL_ICA, mechanism, epsilon, seed, fit, truth)
    if not with_canica:
        return rows
    rows += subject_rows(name, problem, seed, cells, method=JOINT)
    for method, standardize in ((CANICA, True), (UNSCALED, False)):
        maps = partial(canica, brain, scans, size.n_components, standardize)
        rows += compared(name, size.n_subjects, method, "none", None, seed, partial(_once, maps), truth)
    return rows


def _once(fit: partial[FloatArray]) -> tuple[FloatArray, int]:
    return fit(), 1


def tasks(options: Options) -> list[Task]:
    """Return one task for each size and seed; CanICA sees the smaller studies only."""
    if options.quick:
        return [Task(rows_of, (QUICK, seed, QUICK_EPSILONS, True)) for seed in range(options.seeds)]
    large, small = BrainSize(1000), BrainSize()
    return [
        Task(rows_of, (size, seed, EPSILONS, size is small))
        for size in (large, small)
        for seed in range(options.seeds)
    ]


def summary(cells: Sequence[Cell]) -> str:
    """Compare with CanICA, and say what privacy costs."""
    size = min(cell.n_subjects for cell in cells)
    own = [cell for cell in cells if cell.n_subjects == size]
    free, reference, unscaled = (
        find(own, method=name, epsilon=None).map_correlation for name in (SPATIAL_ICA, CANICA, UNSCALED)
    )
    parts = []
    for count in sorted({cell.n_subjects for cell in cells}):
        private = [
            cell
            for cell in cells
            if (cell.method, cell.n_subjects, cell.mechanism) == (SPATIAL_ICA, count, "cape")
        ]
        said = ", ".join(f"{cell.map_correlation:.2f} at ε = {cell.epsilon:g}" for cell in private)
        parts.append(f"With {count:,} people it is {said}.")
    return (
        f"Without privacy maps correlate with the truth by {free:.3f}, those of CanICA by {reference:.3f} "
        f"({unscaled:.3f} if voxels are not standardized). {' '.join(parts)} All of the budget goes into the "
        "subspace; the rotation is post-processing. Joint ICA spends a part of it on time courses."
    )


def _label(cell: Cell) -> str:
    return f"{cell.method}, M = {cell.n_subjects:,}"


SPATIAL: Final = Claim(
    title=TITLE,
    tasks=tasks,
    summary=summary,
    figure=lambda cells: epsilon_figure(cells, TITLE, _label),
    label=_label,
    maps_first=True,
)
