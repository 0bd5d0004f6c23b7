r"""The dimensions: sizes, workloads, and how their costs grow in theory.

**Participants**, N at a fixed number of sites. A site reads every scan twice and computes one vector of each
for every release: time N. It keeps the reduced scans on disk and maps a window of them
(:mod:`capedjica.algorithms.reserved`): memory 0. Its answers are sums over its participants: bytes 0.

**Sites**, S whole studies with the same number of participants at each. A site computes its own statistics
(S^0) and takes part in a secure sum with all others (S^1), so its time and bytes have an exponent between 0
and 1; all together, in one process, between 1 and 2.

**Secure sum**, S sites and vectors of d words (Bonawitz et al. 2017, table 1). A site agrees on 2 (S - 1)
keys, verifies 2 S signatures and expands S masks of d words: S. Its two secrets are shared by S values of
polynomials of degree t - 1, with t = 2 S / 3: S^2, of which one step takes a thousandth of the time of a
signature, so exponents between 1 and 2. It sends S envelopes, 3 S commitments and shares, and d words: bytes
between 0 and 1. The aggregator verifies the shares of S sites by S dealers and adds up S masked vectors: S^2
and S d. All together: time between 2 and 3, memory of all sites in one process 1 to 2, bytes 1 to 2. *One
site* alone is measured, too: a hospital has only its own work.

**Components**, R at a fixed number K of coefficients. Vectors are the projector, K (K + 1) / 2, and
R (R - 1) / 2 for each rotation: bytes 0 to 2. A site computes products T R^2 for each rotation and
eigenvectors R^3 for each covariance: time 2 to 3, below that while the projector dominates. The aggregator
rotates maps by varimax, D R^2 + R^3 for each step, four times for the result and for each of 20 redrawn ones:
2 to 3, times a number of steps that may grow, too. Memory: maps, D R, and matrices, R^2: 0 to 2.

**Features**, D voxels. *With a basis* of K cosines, products of scans with it take T D K and the basis itself
D K^2: time and memory 1. Bytes depend on K: 0. *Without*, the projector has D (D + 1) / 2 numbers: memory and
bytes 2. The leading eigenvectors of its mean take D^3, of the result and of each of 20 redrawn ones: time 2
to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.scale.growth import (
    BOTH_WAYS,
    CENTRE_TIME,
    MEMORY,
    SITE_BYTES,
    SITE_TIME,
    TIME,
    TOTAL_BYTES,
    Theory,
)
from benchmarks.scale.one_site import run_one_site
from benchmarks.scale.workloads import Cost, StudySize, run_study, run_sum

SUM_WORDS: Final = 10_000
# Sides of boxes of so many voxels.
BOXES: Final = {
    1_000: (10, 10, 10),
    2_000: (10, 10, 20),
    12_500: (25, 25, 20),
    25_000: (25, 25, 40),
    50_000: (25, 50, 40),
    100_000: (50, 50, 40),
    200_000: (50, 50, 80),
}


@dataclass(frozen=True)
class Dimension:
    """One dimension.

    Parameters
    ----------
    title, axis, setting : str
        For the figure and the page.
    sizes, quick : sequence of int
        What is measured, and what shows in seconds that it works.
    run : callable
        The workload of a size.
    theory : sequence of Theory
        Growth of each quantity.
    """

    title: str
    axis: str
    setting: str
    sizes: Sequence[int]
    quick: Sequence[int]
    run: Callable[[int], Cost]
    theory: Sequence[Theory]


def _participants(size: int) -> Cost:
    return run_study(StudySize(4, size, components=10, length=60, rotations=8, features=(64,)))


def _sites(size: int) -> Cost:
    return run_study(StudySize(size, 8 * size, components=5, length=40, rotations=8, features=(64,)))


def _secure_sum(size: int) -> Cost:
    return run_sum(size, SUM_WORDS)


def _one_site(size: int) -> Cost:
    return run_one_site(size, SUM_WORDS)


def _components(size: int) -> Cost:
    return run_study(StudySize(4, 32, size, 250, 8, (10, 10, 10), basis=True, epsilon=1e4))


def _voxels(size: int) -> Cost:
    return run_study(StudySize(2, 8, components=5, length=60, rotations=8, features=BOXES[size], basis=True))


def _features(size: int) -> Cost:
    return run_study(StudySize(4, 16, components=5, length=60, rotations=8, features=(size,)))


DIMENSIONS: Final = {
    "participants": Dimension(
        "Participants of a whole study",
        "participants",
        "Whole studies of 4 sites: 64 features, 10 components, 60 time points, 8 rotations.",
        (3_125, 6_250, 12_500, 25_000, 50_000, 100_000),
        (100, 200, 400),
        _participants,
        (
            Theory(TIME, 1, 1, "every scan is read twice"),
            Theory(MEMORY, 0, 0, "reduced scans are on disk"),
            Theory(SITE_BYTES, 0, 0, "sums over participants"),
            Theory(TOTAL_BYTES, 0, 0, "sums over participants"),
        ),
    ),
    "sites": Dimension(
        "Sites of a whole study",
        "sites",
        "Whole studies with 8 participants at each site: 64 features, 5 components, 40 time points, "
        "8 rotations.",
        (12, 25, 50, 100, 200),
        (4, 8, 12),
        _sites,
        (
            Theory(TIME, 1, 2, "statistics S, keys and signatures S²"),
            Theory(SITE_TIME, 0, 1, "statistics 1, keys and signatures S"),
            Theory(MEMORY, 1, 2, "scans S, keys and shares S²"),
            Theory(SITE_BYTES, 0, 1, "vectors 1, shares S"),
            Theory(TOTAL_BYTES, 1, 2, "vectors S, shares S²"),
        ),
    ),
    "secure-sum": Dimension(
        "Sites of one secure sum",
        "sites",
        f"One secure sum of vectors of {SUM_WORDS:,} words, all sites in one process.",
        (62, 125, 250, 500, 1_000),
        (4, 8, 16),
        _secure_sum,
        (
            Theory(SITE_TIME, 1, 2, "keys and signatures S, shares S t"),
            Theory(CENTRE_TIME, 1, 2, "masked vectors S d, shares S²"),
            Theory(MEMORY, 1, 2, "vectors S d, keys and shares S²"),
            Theory(SITE_BYTES, 0, 1, "vector d, shares S"),
            Theory(TOTAL_BYTES, 1, 2, "vectors S d, shares S²"),
        ),
    ),
    "one-site": Dimension(
        "One site of a secure sum",
        "sites",
        f"One site in a secure sum of vectors of {SUM_WORDS:,} words; of its peers only the messages exist.",
        (62, 125, 250, 500, 1_000, 2_000),
        (4, 8, 16),
        _one_site,
        (
            Theory(SITE_TIME, 1, 2, "keys and signatures S, shares S t"),
            Theory(MEMORY, 0, 1, "vector d, keys and shares S"),
            Theory(SITE_BYTES, 0, 1, "vector d, shares S"),
            Theory(BOTH_WAYS, 0, 1, "vector d, keys and shares S"),
        ),
    ),
    "components": Dimension(
        "Components",
        "components",
        "Whole studies of 4 sites with 8 participants each: 1,000 voxels with a basis of 300 cosines, 250 "
        "time points, 8 rotations.",
        (12, 25, 50, 100, 200),
        (4, 6, 8),
        _components,
        (
            Theory(TIME, 2, 3, "products T R² and D R², eigenvectors R³"),
            Theory(SITE_TIME, 0, 3, "projectors 1, products T R², eigenvectors R³"),
            Theory(MEMORY, 0, 2, "projectors 1, maps D R, matrices R²"),
            Theory(SITE_BYTES, 0, 2, "projector 1, rotations R²"),
            Theory(TOTAL_BYTES, 0, 2, "projector 1, rotations R²"),
        ),
    ),
    "features": Dimension(
        "Voxels with a basis",
        "voxels",
        "Whole studies of 2 sites with 4 participants each: basis of 300 cosines, 5 components, 60 time "
        "points, 8 rotations.",
        (12_500, 25_000, 50_000, 100_000, 200_000),
        (1_000, 2_000),
        _voxels,
        (
            Theory(TIME, 1, 1, "products of scans and cosines"),
            Theory(SITE_TIME, 1, 1, "products of scans and cosines"),
            Theory(MEMORY, 1, 1, "the basis"),
            Theory(SITE_BYTES, 0, 0, "coefficients of the basis"),
            Theory(TOTAL_BYTES, 0, 0, "coefficients of the basis"),
        ),
    ),
    "features-without-basis": Dimension(
        "Features without a basis",
        "features",
        "Whole studies of 4 sites with 4 participants each: no basis, 5 components, 60 time points, "
        "8 rotations.",
        (125, 250, 500, 1_000, 2_000),
        (25, 50, 100),
        _features,
        (
            Theory(TIME, 2, 3, "projectors D², their eigenvectors D³"),
            Theory(SITE_TIME, 2, 2, "projectors D²"),
            Theory(MEMORY, 2, 2, "projectors D²"),
            Theory(SITE_BYTES, 2, 2, "projectors D²"),
            Theory(TOTAL_BYTES, 2, 2, "projectors D²"),
        ),
    ),
}
