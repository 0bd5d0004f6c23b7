"""One pass over a study: the fused kernels against NumPy, scikit-learn and the bare matrix products."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.ndimage import uniform_filter1d

from benchmarks.framework import Measure, Row, Section, amount_row, duration_row, interleaved, timed
from capedjica.algorithms import kernels
from capedjica.algorithms.kernels import (
    HALF_WINDOW,
    VARIANCE_FLOOR,
    PackedSubjects,
    infomax_statistics,
    second_moments,
    skew_statistics,
)
from capedjica.algorithms.parallel import compiled, one_thread, over_subjects
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
PART_REPETITIONS: Final = 5
SKEW_PARTS: Final = (
    "product z = XW'",
    "score of the local variance",
    "product psi'z",
    "difference, rounding",
)
INFOMAX_PARTS: Final = (
    "transposed copy",
    "product Wx, and the bias",
    "product WW'z",
    "tanh, norms, clipping",
    "product yz', and sums",
)
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
        _against_products("Infomax gradient", infomax, _products(problem, 3), "three"),
        *_against_fastica("Infomax gradient", infomax, problem.packed.samples),
        _row("skew part", skew, _numpy_skew(problem), "batched NumPy, float32", None),
        _against_products("skew part", skew, _products(problem, 2), "two"),
        *_against_fastica("skew part", skew, problem.packed.samples),
        *_parts("skew part", skew, _skew_part(problem), SKEW_PARTS),
        *_parts("Infomax gradient", infomax, _infomax_part(problem), INFOMAX_PARTS),
        _second_moments(),
    ]
    return Section(
        "kernels",
        f"A pass over {SUBJECTS} subjects, {TIMEPOINTS} time points, {COMPONENTS} components",
        rows,
        (
            "Infomax gradient: every time point clipped by its exact norm (a third product), then averaged.",
            "Skew part: the default method's statistic; two products, and a score of the local variance.",
            "FastICA: scikit-learn, parallel, logcosh, no whitening; an iteration is a difference of runs.",
            "Products: z = XW' (and WW'z), then y'z by NumPy in float32 into memory allocated before, by the",
            "same threads on the same ranges of subjects.",
            "Parts: a pass of this part alone. It finds more of its data in the cache, so shares may add up",
            "to less than 1.",
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


def _products(problem: Problem, number: int) -> Measure:
    """Return the arithmetic that no implementation can leave out, two or three products."""
    samples, W = problem.packed.samples, problem.unmixing
    gram = W @ W.T
    stacked = (SUBJECTS, TIMEPOINTS, COMPONENTS)
    x, z, v = samples.reshape(stacked), np.zeros(stacked, np.float32), np.zeros(stacked, np.float32)
    moments = np.zeros((SUBJECTS, COMPONENTS, COMPONENTS), np.float32)

    def rows(array: Array, first: int, last: int) -> Array:
        return array[first:last].reshape(-1, COMPONENTS)

    def fill(first: int, last: int) -> None:
        np.matmul(rows(x, first, last), W.T, out=rows(z, first, last))
        if number == 3:
            np.matmul(rows(z, first, last), gram, out=rows(v, first, last))
        np.matmul(v[first:last].transpose(0, 2, 1), z[first:last], out=moments[first:last])

    def work() -> None:
        with one_thread():
            over_subjects(fill, SUBJECTS)

    return timed(work, PASSES)


def _against_products(what: str, ours: Measure, products: Measure, number: str) -> Row:
    ours()
    products()
    pair = interleaved(ours, products, REPETITIONS)
    return amount_row(what, 1e3 * pair[0], 1e3 * pair[1], f"its {number} matrix products alone", "ms", 1.5)


def _parts(what: str, whole: Measure, part: Callable[[int], Measure], names: Sequence[str]) -> list[Row]:
    """Say where the time of a pass goes: the time of a pass that makes one part alone."""
    rows = []
    for number, name in enumerate(names):
        alone = part(number)
        alone()
        pair = interleaved(alone, whole, PART_REPETITIONS)
        rows.append(amount_row(f"{what}: {name}", 1e3 * pair[0], 1e3 * pair[1], "the whole pass", "ms"))
    return rows


def _skew_part(problem: Problem) -> Callable[[int], Measure]:
    packed, transposed = problem.packed, np.ascontiguousarray(problem.unmixing.T)

    def part(number: int) -> Measure:
        def fill(first: int, last: int) -> None:
            _part_of_skew(number, first, last, packed.samples, packed.offsets, transposed)

        return _alone(fill)

    return part


def _infomax_part(problem: Problem) -> Callable[[int], Measure]:
    packed, W = problem.packed, problem.unmixing

    def part(number: int) -> Measure:
        def fill(first: int, last: int) -> None:
            _part_of_infomax(number, first, last, packed.samples, packed.offsets, W)

        return _alone(fill)

    return part


def _alone(fill: Callable[[int, int], None]) -> Measure:
    def work() -> None:
        with one_thread():
            over_subjects(fill, SUBJECTS)

    return timed(work, PASSES)


@compiled
def _part_of_skew(
    part: int, first: int, last: int, samples: Array, offsets: Array, transposed: Array
) -> None:
    """Repeat one of `SKEW_PARTS` for all subjects of a range, on the same tile."""
    z = np.zeros((TIMEPOINTS + 2 * HALF_WINDOW, COMPONENTS), np.float32)
    z[HALF_WINDOW : HALF_WINDOW + TIMEPOINTS] = samples[:TIMEPOINTS]
    inner, flat, threes = z[HALF_WINDOW : HALF_WINDOW + TIMEPOINTS], z.ravel(), np.zeros(z.size, np.float32)
    floor, weights, psi = np.float32(VARIANCE_FLOOR), np.ones_like(inner), np.ones_like(inner)
    product, out = (
        np.zeros((COMPONENTS, COMPONENTS), np.float32),
        np.zeros(COMPONENTS * (COMPONENTS - 1) // 2),
    )
    for m in range(first, last):
        if part == 0:
            np.dot(samples[offsets[m] : offsets[m + 1]], transposed, inner)
        elif part == 1:
            kernels._local_variance_score(COMPONENTS, floor, weights.ravel(), flat, threes, psi.ravel())
        elif part == 2:
            np.dot(psi.T, inner, product)
        else:
            kernels._add_skew_part(product, out)


@compiled
def _part_of_infomax(part: int, first: int, last: int, samples: Array, offsets: Array, W: Array) -> None:
    """Repeat one of `INFOMAX_PARTS` for all subjects of a range, on the same tile."""
    x = np.zeros((COMPONENTS, kernels._width(TIMEPOINTS)), np.float32)
    kernels._load(samples, 0, TIMEPOINTS, x)
    z, v, y, product = x.copy(), x.copy(), x.copy(), np.zeros((COMPONENTS, COMPONENTS), np.float32)
    c, d, bias = np.zeros_like(x[0]), np.zeros_like(x[0]), np.zeros(COMPONENTS, np.float32)
    scales = np.array([COMPONENTS, CLIP_G, CLIP_H], np.float32)
    moments, gradient = np.zeros((COMPONENTS, COMPONENTS)), np.zeros(COMPONENTS)
    for m in range(first, last):
        if part == 0:
            kernels._load(samples, offsets[m], offsets[m + 1], x)
        elif part == 1:
            np.dot(W, x, z)
            kernels._add_bias(z, bias)
        elif part == 2:
            np.dot(W, z, v)
        elif part == 3:
            kernels._clip_factors(z, v, y, c, d, scales)
        else:
            kernels._add_clipped(y, z, c, d, product, moments, gradient)


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
