"""One pass over a study: the fused kernels against NumPy, scikit-learn and the bare matrix products."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.ndimage import uniform_filter1d

from benchmarks.framework import Measure, Row, Section, duration_row, interleaved, timed
from capedjica.algorithms.kernels import (
    HALF_WINDOW,
    VARIANCE_FLOOR,
    PackedSubjects,
    infomax_statistics,
    second_moments,
    skew_statistics,
)
from capedjica.data import make_synthetic

SUBJECTS: Final = 1024
TIMEPOINTS: Final = 250
COMPONENTS: Final = 20
CLIP_G: Final = 30.0
CLIP_H: Final = math.sqrt(30.0)
REPETITIONS: Final = 21
FASTICA_REPETITIONS: Final = 5
# Passes in a row, as in a descent, each measured by their mean; FastICA's iterations are in a row too.
PASSES: Final = 5
IMAGES: Final = 64
IMAGE_SIDE: Final = 30

Array = NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """Source-sized data of the paper's study, and a state halfway through an ICA."""

    subjects: Array
    packed: PackedSubjects
    unmixing: Array
    bias: Array

    @classmethod
    def of_the_paper(cls) -> Problem:
        """Simulate 1,024 subjects of 250 time points and 20 components."""
        study = make_synthetic(4, SUBJECTS, COMPONENTS, TIMEPOINTS, image_side=10, random_state=0)
        rng = np.random.default_rng(0)
        unmixing = np.linalg.qr(rng.normal(size=(COMPONENTS, COMPONENTS)))[0].astype(np.float32)
        bias = (0.01 * rng.normal(size=COMPONENTS)).astype(np.float32)
        return cls(study.sources, PackedSubjects.from_list(list(study.sources)), unmixing, bias)


def run(console: Console) -> Section:
    """Measure every row; the first calls, which compile, are not timed."""
    problem = Problem.of_the_paper()
    infomax, skew = _infomax(problem), _skew(problem)
    rows = [
        _row("Infomax gradient", infomax, _numpy_infomax(problem), "batched NumPy, float32", 3),
        _row("Infomax gradient", infomax, _products(problem), "its three matrix products alone", 0.5),
        *_against_fastica("Infomax gradient", infomax, problem.packed.samples),
        _row("skew part", skew, _numpy_skew(problem), "batched NumPy, float32", None),
        *_against_fastica("skew part", skew, problem.packed.samples),
        _second_moments(),
    ]
    return Section(
        "kernels",
        f"A pass over {SUBJECTS} subjects, {TIMEPOINTS} time points, {COMPONENTS} components",
        rows,
        (
            "Infomax gradient: every time point clipped by its exact norm (a third product), then averaged.",
            "Skew part: the default method's statistic; like FastICA, two products and a tanh, no clipping.",
            "FastICA: scikit-learn, parallel, logcosh, no whitening; an iteration is a difference of runs.",
            "Three products: z = XW', WW'z and y'z by NumPy in float32, into memory allocated before.",
            f"Second moments: {IMAGES} subjects of {IMAGE_SIDE**2} pixels; the product is X'X in float32.",
        ),
    )


def _row(what: str, ours: Measure, peer: Measure, peer_name: str, target: float | None) -> Row:
    ours()
    peer()
    return duration_row(what, *interleaved(ours, peer, REPETITIONS), peer_name, target)


def _infomax(problem: Problem) -> Measure:
    work = functools.partial(
        infomax_statistics, problem.packed, problem.unmixing, problem.bias, CLIP_G, CLIP_H
    )
    return timed(work, PASSES)


def _skew(problem: Problem) -> Measure:
    return timed(lambda: skew_statistics(problem.packed, problem.unmixing), PASSES)


def _numpy_infomax(problem: Problem) -> Measure:
    """Return the same statistics by array operations, the closed form of the norm included."""
    x, W, b = problem.subjects, problem.unmixing, problem.bias

    def work() -> tuple[Array, Array]:
        z = x @ W.T + b
        y = -np.tanh(z / 2)
        v = z @ (W @ W.T)
        size = np.einsum("mtr,mtr->mt", y, y)
        squared = np.sum(W * W) + 2 * np.einsum("mtr,mtr->mt", y, v)
        squared += size * np.einsum("mtr,mtr->mt", z, v)
        c = CLIP_G / np.sqrt(np.maximum(squared, CLIP_G**2))
        d = CLIP_H / np.sqrt(np.maximum(size, CLIP_H**2))
        moments = (y * c[:, :, None]).transpose(0, 2, 1) @ z / x.shape[1]
        moments += c.mean(axis=1)[:, None, None] * np.eye(len(W), dtype=W.dtype)
        return moments @ W, (y * d[:, :, None]).mean(axis=1)

    return timed(work, PASSES)


def _numpy_skew(problem: Problem) -> Measure:
    upper = np.triu_indices(COMPONENTS, 1)

    def work() -> Array:
        z = problem.subjects @ problem.unmixing.T
        variance = uniform_filter1d(z * z, 2 * HALF_WINDOW + 1, axis=1, mode="nearest")
        psi = z / (VARIANCE_FLOOR + (1 - VARIANCE_FLOOR) * variance)
        moments = psi.transpose(0, 2, 1) @ z / TIMEPOINTS
        return np.asarray((moments - moments.transpose(0, 2, 1))[:, upper[0], upper[1]])

    return timed(work, PASSES)


def _products(problem: Problem) -> Measure:
    """Return the arithmetic that no implementation can leave out."""
    samples, W = problem.packed.samples, problem.unmixing
    gram = W @ W.T
    z, v = np.empty_like(samples), np.empty_like(samples)
    stacked = (SUBJECTS, TIMEPOINTS, COMPONENTS)
    moments = np.empty((SUBJECTS, COMPONENTS, COMPONENTS), dtype=np.float32)

    def work() -> None:
        np.matmul(samples, W.T, out=z)
        np.matmul(z, gram, out=v)
        np.matmul(v.reshape(stacked).transpose(0, 2, 1), z.reshape(stacked), out=moments)

    return timed(work, PASSES)


def _against_fastica(what: str, ours: Measure, samples: Array) -> list[Row]:
    """Compare with an iteration in double precision, the default of scikit-learn, and in single."""
    try:
        return [
            duration_row(
                what,
                *interleaved(ours, _fastica_iteration(samples.astype(dtype)), FASTICA_REPETITIONS),
                f"FastICA of scikit-learn, an iteration, {dtype}",
                target,
            )
            for dtype, target in (("float64", 10.0), ("float32", 4.0))
        ]
    except ImportError as error:
        return [duration_row(what, ours(), None, f"not measured: {error}")]


def _fastica_iteration(samples: Array) -> Measure:
    """Return the time of one iteration, as a difference of two fits; the first fit is not timed."""
    fit = _fastica(samples)
    fit(1)

    def measure() -> float:
        more, one = timed(lambda: fit(1 + PASSES))(), timed(lambda: fit(1))()
        return (more - one) / PASSES

    return measure


def _fastica(samples: Array) -> Callable[[int], None]:
    """Return a fit of that many iterations; with tolerance 0 it never stops before."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    def fit(iterations: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            FastICA(whiten=False, max_iter=iterations, tol=0.0, random_state=0).fit(samples)

    return fit


def _second_moments() -> Row:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, TIMEPOINTS, IMAGE_SIDE**2), dtype=np.float32)

    def products() -> None:
        for image in images:
            np.matmul(image.T, image)

    def ours() -> None:
        for image in images:
            second_moments(image, clip=float(IMAGE_SIDE))

    return _row("second moments, clipped", timed(ours), timed(products), "the matrix product alone", None)
