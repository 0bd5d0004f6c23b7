"""How long it takes: without privacy against other ICA programs, and with privacy against a pooled analysis.

Everything is timed in one process, one after the other and in turns, so that a busy moment hits all alike.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

import numpy as np

from benchmarks.utility.shared.figures import seconds_figure
from benchmarks.utility.shared.problems import FloatArray, Problem, Scan, Size
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Fit, Options, Row, Task, compared, gain
from benchmarks.utility.synthetic import QUICK, find
from capedjica import CapeDJICA
from capedjica.algorithms.ica.subject_level import rotate
from capedjica.algorithms.ica.varimax_start import varimax
from capedjica.algorithms.kernels import PackedSubjects, skew_statistics
from capedjica.data import make_synthetic

TARGET: Final = 0.01
MOST_ITERATIONS: Final = 64
# How the mean of the rotation statistic responds to an angle near the solution, on such data.
RESPONSE: Final = 0.35
REDUCED: Final = "from 20 numbers per time point, to a gain index of 0.01"
RAW: Final = "from raw scans, to a gain index of 0.01"
CONVERGED: Final = "from raw scans, to convergence"
PRIVATE: Final = "from raw scans, 1,024 subjects, 250 time points, 900 pixels"
OURS: Final = "capedjica, mechanism none"
PASSES: Final = "capedjica, its rotations on pooled whitening"
FASTICA: Final = "FastICA of scikit-learn"
PICARD: Final = "Picard-O"
INFOMAX: Final = "Infomax of MNE"
PRIVATE_RUN: Final = "capedjica, cape at ε = 1, all messages"
POOLED_RUN: Final = "PCA and FastICA of scikit-learn, pooled"
NONPRIVATE_TITLE: Final = "Without privacy: time to a gain index of 0.01, 1,024 subjects, 20 components"
TIME_TITLE: Final = "With privacy: the whole analysis at ε = 1 against a pooled one without"

# An algorithm that returns an (R, K) unmixing matrix of its data after so many iterations.
Peer = Callable[[Scan, int], FloatArray]


@dataclass(frozen=True, eq=False)
class Prepared:
    """One study, raw and reduced to the R directions of the pooled PCA."""

    sites: dict[str, list[Scan]]
    pooled: Scan
    image_shape: tuple[int, int]
    problem: Problem

    @property
    def truth(self) -> dict[str, FloatArray]:
        """What maps are compared with."""
        return {"truth": self.problem.mixing}

    @property
    def reduced(self) -> Scan:
        """All time points (M T, R)."""
        return np.concatenate(self.problem.scans)


@cache
def prepared(quick: bool) -> Prepared:
    """Simulate the study, and reduce it."""
    size = QUICK if quick else Size()
    study = make_synthetic(
        size.n_sites, size.n_subjects, size.n_components, size.n_timepoints, size.image_side, random_state=0
    )
    sites = {f"site-{number}": site for number, site in enumerate(study.sites, start=1)}
    pooled = np.concatenate([scan for site in study.sites for scan in site])
    directions = np.linalg.eigh((pooled.T @ pooled).astype(np.float64))[1][:, -size.n_components :]
    narrow = directions.astype(np.float32)
    features = {name: [(scan - scan.mean(axis=0)) @ narrow for scan in site] for name, site in sites.items()}
    problem = Problem(features, study.mixing, directions.T, size.n_timepoints)
    return Prepared(sites, pooled, study.image_shape, problem)


def fastica(data: Scan, iterations: int) -> FloatArray:
    """Run scikit-learn's, its whitening included; double precision, in which it is exact and no slower."""
    from sklearn.decomposition import FastICA

    ica = FastICA(whiten_solver="eigh", max_iter=iterations, tol=0.0, random_state=0)
    return np.asarray(ica.fit(data.astype(np.float64)).components_)


def picard_o(data: Scan, iterations: int) -> FloatArray:
    """Run python-picard's, its whitening included."""
    from picard import picard  # type: ignore[import-untyped]

    whitening, unmixing, _ = picard(
        data.T.astype(np.float64), max_iter=iterations, tol=0.0, random_state=0, check_fun=False
    )
    return np.asarray(unmixing @ whitening)


def infomax(data: Scan, iterations: int) -> FloatArray:
    """Run MNE's, after the whitening that it leaves to the caller."""
    from mne.preprocessing import infomax as mne_infomax  # type: ignore[import-untyped]

    sphering = _sphering(data)
    white = (data @ sphering).astype(np.float64)
    unmixing = mne_infomax(white, extended=False, max_iter=iterations, rng=0, verbose="error")
    return np.asarray(unmixing @ sphering)


def _sphering(data: Scan) -> FloatArray:
    values, vectors = np.linalg.eigh((data.T @ data / len(data)).astype(np.float64))
    result: FloatArray = (vectors / np.sqrt(values)) @ vectors.T
    return result


PEERS: Final[dict[str, Peer]] = {FASTICA: fastica, PICARD: picard_o, INFOMAX: infomax}


def quiet(peer: Peer, data: Scan, iterations: int) -> FloatArray:
    """Run a peer that may say that it has not converged, which is what was asked of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peer(data, iterations)


def rotations(data: Prepared, iterations: int) -> FloatArray:
    """Whiten the pooled data as others do, begin by varimax, and rotate by the default method's kernel."""
    features = data.reduced
    sphering = _sphering(features)
    maps = data.problem.pixels(sphering)
    lengths = [len(scan) for scan in data.problem.scans]
    white = PackedSubjects(
        features @ sphering.astype(np.float32), np.cumsum([0, *lengths], dtype=np.int64), max(lengths)
    )
    W = varimax(maps.T)
    for _ in range(iterations):
        W = rotate(W, skew_statistics(white, W).mean(axis=0) / RESPONSE)
    return W @ sphering


@cache
def fewest(name: str, quick: bool) -> int:
    """Return the smallest number of iterations that reaches the target, by doubling, then bisection."""
    data = prepared(quick)

    def reaches(iterations: int) -> bool:
        unmixing = _reduced_fit(name, data, iterations)()[0]
        return gain(unmixing, data.problem.mixing) <= (0.1 if quick else TARGET)

    enough = 1
    while enough < MOST_ITERATIONS and not reaches(enough):
        enough *= 2
    return bisect.bisect_left(range(enough + 1), True, lo=enough // 2 + 1, hi=enough, key=reaches)


def _reduced_fit(name: str, data: Prepared, iterations: int) -> Fit:
    """Return an analysis of the reduced data that makes so many iterations."""

    def ours() -> tuple[FloatArray, int]:
        fresh = replace(data.problem)
        return fresh.analyse(None, "none", max_rotations=iterations)

    def other() -> tuple[FloatArray, int]:
        unmixing = (
            rotations(data, iterations) if name == PASSES else quiet(PEERS[name], data.reduced, iterations)
        )
        return data.problem.pixels(unmixing), iterations

    return ours if name == OURS else other


def pooled_fit(data: Prepared, peer: str, iterations: int) -> tuple[FloatArray, int]:
    """Reduce all raw scans by scikit-learn's PCA, then run a peer."""
    from sklearn.decomposition import PCA

    pca = PCA(data.problem.n_components)
    reduced = pca.fit_transform(data.pooled)
    return quiet(PEERS[peer], reduced, iterations) @ pca.components_, iterations


def converged_fit(data: Prepared) -> tuple[FloatArray, int]:
    """Reduce all raw scans by scikit-learn's PCA, then run its FastICA with all its defaults."""
    from sklearn.decomposition import PCA, FastICA

    pca = PCA(data.problem.n_components)
    reduced = pca.fit_transform(data.pooled)
    ica = FastICA(random_state=0).fit(reduced)
    return np.asarray(ica.components_ @ pca.components_), int(ica.n_iter_)


def estimator_fit(data: Prepared, epsilon: float | None, iterations: int | None) -> tuple[FloatArray, int]:
    """Fit the estimator on the raw scans of the sites, with all messages of the protocol."""
    model = CapeDJICA(
        data.problem.n_components,
        epsilon,
        mechanism="none" if epsilon is None else "cape",
        image_shape=data.image_shape,
        max_iter=iterations,
        scan_length=data.problem.scan_length,
    )
    model.fit(data.sites)
    return model.unmixing_, model.n_iter_


def nonprivate_rows(repetition: int, quick: bool) -> list[Row]:
    """Time every program once."""
    data = prepared(quick)
    reduced = {name: _reduced_fit(name, data, fewest(name, quick)) for name in (OURS, PASSES, *PEERS)}
    raw: dict[str, Fit] = {
        OURS: partial(estimator_fit, data, None, fewest(OURS, quick)),
        **{name: partial(pooled_fit, data, name, fewest(name, quick)) for name in (FASTICA, PICARD)},
    }
    converged: dict[str, Fit] = {
        OURS: partial(estimator_fit, data, None, None),
        FASTICA: partial(converged_fit, data),
    }
    rows = []
    for setting, fits in ((REDUCED, reduced), (RAW, raw), (CONVERGED, converged)):
        for name, fit in fits.items():
            rows += compared(setting, _size(data), name, "none", None, repetition, fit, data.truth)
    return rows


def time_rows(repetition: int, quick: bool) -> list[Row]:
    """Time the private analysis and the pooled one once."""
    data = prepared(quick)
    epsilon = 30.0 if quick else 1.0
    private = partial(estimator_fit, data, epsilon, None)
    pooled = partial(converged_fit, data)
    return [
        *compared(PRIVATE, _size(data), PRIVATE_RUN, "cape", epsilon, repetition, private, data.truth),
        *compared(PRIVATE, _size(data), POOLED_RUN, "none", None, repetition, pooled, data.truth),
    ]


def _size(data: Prepared) -> int:
    return sum(data.problem.sizes.values())


def _tasks(rows_of: Callable[[int, bool], list[Row]], options: Options) -> list[Task]:
    return [Task(rows_of, (repetition, options.quick)) for repetition in range(options.seeds)]


def nonprivate_summary(cells: Sequence[Cell]) -> str:
    """Say how many times as fast ours is, and how good."""
    reduced = {cell.method: cell.seconds for cell in cells if cell.setting == REDUCED}
    raw = {cell.method: cell.seconds for cell in cells if cell.setting == RAW}
    ours, theirs = (find(cells, setting=CONVERGED, method=name).gain_index for name in (OURS, FASTICA))
    passes = ", ".join(f"{reduced[name] / reduced[PASSES]:.1f} times ({name})" for name in PEERS)
    whole = ", ".join(f"{reduced[name] / reduced[OURS]:.2g} times ({name})" for name in PEERS)
    scans = ", ".join(f"{raw[name] / raw[OURS]:.2g} times ({name})" for name in (FASTICA, PICARD))
    return (
        f"Run to convergence the default method's gain index is {ours:.4f}, FastICA's {theirs:.4f}. From the "
        f"same reduced data the default method's rotations on pooled whitening are {passes} as fast to 0.01; "
        f"the estimator with mechanism='none', which measures the subspace and two whitenings subject by "
        f"subject as private runs do and carries all messages, is {whole} as fast, from raw scans {scans}. "
        "Every program includes its own whitening and makes the fewest iterations that reach 0.01, found "
        "beforehand; ours begins at the varimax of the maps, the others at random."
    )


def time_summary(cells: Sequence[Cell]) -> str:
    """Say how long both take."""
    private, pooled = (find(cells, method=name) for name in (PRIVATE_RUN, POOLED_RUN))
    return (
        f"The private analysis takes {private.seconds:.2f} s, with four sites and all messages of the "
        f"protocol in one process; pooled PCA and FastICA take {pooled.seconds:.2f} s, "
        f"{pooled.seconds / private.seconds:.2g} times as long. Gain indices: {private.gain_index:.3f} and "
        f"{pooled.gain_index:.3f}."
    )


NONPRIVATE: Final = Claim(
    title=NONPRIVATE_TITLE,
    tasks=partial(_tasks, nonprivate_rows),
    summary=nonprivate_summary,
    figure=lambda cells: seconds_figure(cells, NONPRIVATE_TITLE, lambda cell: cell.method),
    label=lambda cell: f"{cell.setting}: {cell.method}",
    timed=True,
)
TIME: Final = Claim(
    title=TIME_TITLE,
    tasks=partial(_tasks, time_rows),
    summary=time_summary,
    figure=lambda cells: seconds_figure(cells, TIME_TITLE, lambda cell: cell.method),
    label=lambda cell: cell.method,
    timed=True,
)
