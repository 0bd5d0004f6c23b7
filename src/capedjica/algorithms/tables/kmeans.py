r"""k-means (Lloyd's algorithm) on private means.

A subject at x, clipped to :math:`\|x\| \le R`, belongs to the nearest of K public centers and contributes
K blocks of 1 + d numbers, all zero except the block of that center:

.. math:: v_m = (0, \dots, 0, \; R, x_m, \; 0, \dots, 0), \qquad \|v_m\| \le \sqrt 2 R = C .              (1)

The mean contains each cluster's fraction of the subjects (times R) and of the sum of x; their quotient is the
next center. The vectors of two subjects in different clusters are at most :math:`\sqrt 2 C = 2R` apart; in
the same cluster their first numbers agree, so the distance is again at most 2R. Replacing one of M subjects
therefore moves the mean by at most 2R/M, a spread of sqrt(2). **The fractions have no additional cost**: the
sums of x alone have this sensitivity.

All further computation on the means is post-processing without privacy cost. The initial centers are drawn
from public randomness, far from each other. The first half of the iterations *explores*: a center with almost
no subjects (below a tenth of an even share) is moved next to that of the largest cluster, to split it. The
second half *settles*: means are averaged with the previous ones in this half, which reduces their noise, and
a center with almost no subjects is not moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress, Result, ResultTable
from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.rows import batches, clip_rows, named, public_array
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

# sqrt(2), with a margin for the rounding of clipped points in double precision.
SPREAD: Final = 1.41422
_LEAST_SHARE: Final = 0.1
_START_RADIUS, _SPLIT_RADIUS = 0.5, 0.2
_CANDIDATES: Final = 30


def cluster_query(n_clusters: int, n_features: int, radius: float) -> Query:
    """Return the query of a subject's vector (1)."""
    size = n_clusters * (1 + n_features)
    return Query("shares and sums of the clusters", size, math.sqrt(2) * radius, SPREAD)


def distances(points: FloatArray, centers: FloatArray) -> FloatArray:
    """Return the Euclidean distance of each point to each center."""
    with np.errstate(all="ignore"):
        return np.stack([np.linalg.norm(points - center, axis=1) for center in centers], axis=1)


def person_clusters(points: FloatArray, n_clusters: int, radius: float, state: bytes) -> Iterator[FloatArray]:
    """Return the vector (1) of each subject at the public centers, in batches."""
    n_features = points.shape[1]
    centers = public_array(state, "centers", (n_clusters, n_features))

    def vectors(part: slice) -> FloatArray:
        clipped = clip_rows(points[part], radius)
        rows = np.zeros((len(clipped), n_clusters, 1 + n_features))
        nearest = distances(clipped, centers).argmin(axis=1)
        rows[np.arange(len(clipped)), nearest] = np.insert(clipped, 0, radius, axis=1)
        return rows.reshape(len(clipped), -1)

    return map(vectors, batches(len(points), n_clusters * (1 + n_features)))


@dataclass
class Lloyd:
    """Aggregator side of k-means: the public centers, and their update after each mean.

    Parameters
    ----------
    n_clusters, n_features : int
        K and d.
    radius : float
        R, a public bound on the norm of a subject's vector.
    n_iterations : int
        Number of means.
    rng : numpy.random.Generator
        Public randomness for the initial centers and for splits; not privacy noise.
    """

    n_clusters: int
    n_features: int
    radius: float
    n_iterations: int
    rng: np.random.Generator
    centers: FloatArray = field(init=False)
    shares: FloatArray = field(init=False)
    iteration: int = field(init=False, default=0)
    _settled: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._settled = np.zeros(self.n_clusters * (1 + self.n_features))
        self.shares = np.full(self.n_clusters, 1 / self.n_clusters)
        self.centers = self._far_apart()

    def _in_ball(self, count: int, radius: float) -> FloatArray:
        """Return points drawn uniformly from a ball around the origin."""
        directions = self.rng.standard_normal((count, self.n_features))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return radius * directions * self.rng.random((count, 1)) ** (1 / self.n_features)

    def _far_apart(self) -> FloatArray:
        """Return centers chosen among random points, each the farthest from those already chosen."""
        candidates = self._in_ball(_CANDIDATES * self.n_clusters, _START_RADIUS * self.radius)
        taken = [0]
        while len(taken) < self.n_clusters:
            taken.append(int(distances(candidates, candidates[taken]).min(axis=1).argmax()))
        return candidates[taken]

    @property
    def state(self) -> bytes:
        """Public state with the centers to which subjects are assigned."""
        return pack(centers=self.centers)

    def update(self, mean: FloatArray) -> None:
        """Move each center to the mean of its cluster; a center with almost no subjects is split or kept."""
        self.iteration += 1
        n_settling = self.iteration - self.n_iterations // 2
        if n_settling > 0:
            self._settled = self._settled + (mean - self._settled) / n_settling
            mean = self._settled
        starved = self._follow(mean.reshape(self.n_clusters, 1 + self.n_features))
        if n_settling <= 0:
            self._split_the_largest(starved)

    def _follow(self, blocks: FloatArray) -> NDArray[np.intp]:
        """Move the centers of non-empty clusters to their means; return those with almost no subjects."""
        self.shares = blocks[:, 0] / self.radius
        alive = self.shares > _LEAST_SHARE / self.n_clusters
        means = blocks[alive, 1:] / self.shares[alive, np.newaxis]
        self.centers[alive] = clip_rows(means, self.radius)
        return np.flatnonzero(~alive)

    def _split_the_largest(self, starved: NDArray[np.intp]) -> None:
        """Move each empty center next to that of the largest cluster, which then counts for half."""
        shares = self.shares.copy()
        for cluster in starved:
            largest = shares.argmax()
            shares[[largest, cluster]] = shares[largest] / 2
            self.centers[cluster] = self.centers[largest] + self._in_ball(1, _SPLIT_RADIUS * self.radius)[0]


@dataclass(frozen=True, eq=False)
class Clusters(Result):
    """Centers (K, d), and the noisy fraction of the subjects in each cluster."""

    centers: FloatArray
    shares: FloatArray
    names: Sequence[str] = ()

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return centers and shares."""
        return {"centers": self.centers, "shares": self.shares}

    def tables(self) -> Sequence[ResultTable]:
        """Return a row for each cluster."""
        columns = ("cluster", "share", *named(self.names, self.centers.shape[1]))
        rows = [
            (str(number), float(share), *map(float, center))
            for number, (share, center) in enumerate(zip(self.shares, self.centers, strict=True), start=1)
        ]
        caption = "Share of participants in each cluster (noisy; the sum may differ from 1), and its center."
        return (ResultTable("clusters", caption, columns, rows, "bars"),)


@dataclass(frozen=True)
class ClustersOfRows:
    """k-means clustering of rows.

    Parameters
    ----------
    n_clusters, n_features : int
        K and d.
    radius : float
        R, a public bound on the norm of a row.
    max_iter : int
        Number of iterations J.
    seed : int, optional
        Seed of the initial centers and of splits, which are public; without one they differ every time.
    names : tuple of str
        Names of the features.
    """

    n_clusters: int
    n_features: int
    radius: float
    max_iter: int = 10
    seed: int | None = None
    names: tuple[str, ...] = ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the single query, which is repeated in every iteration."""
        return (Stage(cluster_query(self.n_clusters, self.n_features, self.radius), self.max_iter),)

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the vector of every subject at the current centers."""
        return partial(_at_centers, np.asarray(subjects, dtype=np.float64), self.n_clusters, self.radius)

    def estimate(self, means: Means, progress: Progress | None = None) -> Clusters:
        """Run the iterations."""
        rng = np.random.default_rng(self.seed)
        lloyd = Lloyd(self.n_clusters, self.n_features, self.radius, self.max_iter, rng)
        for iteration in range(1, self.max_iter + 1):
            lloyd.update(means.mean(0, lloyd.state))
            if progress is not None:
                progress(lloyd.centers, iteration)
        return Clusters(lloyd.centers, lloyd.shares, self.names, n_iter=self.max_iter)


def _at_centers(
    rows: FloatArray, n_clusters: int, radius: float, stage: int, published: bytes, state: bytes
) -> Iterable[FloatArray]:
    return person_clusters(rows, n_clusters, radius, state)
