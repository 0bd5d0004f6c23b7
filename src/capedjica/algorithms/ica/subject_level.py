r"""Subject-level joint ICA with little noise: subspace, whitening and rotation, from one vector per subject.

The model is the paper's, x = A s. The difference is in the queries: each statistic is one on which a single
subject has little influence.

1. *Subspace.* The projector onto the subject's own R leading directions: every component counts the same,
   however strong it is, and the norm is sqrt(R) by construction, so nothing is clipped. The R leading
   eigenvectors of the mean span the common subspace.
2. *Whitening, twice.* The logarithm of the subject's covariance in that subspace, without its trace: first
   directly, then after whitening by the first mean. The second has a small norm, because everything common to
   all subjects has been removed, so it can be clipped tightly and has little noise.
3. *Rotation.* W remains orthogonal. The initial value has no privacy cost
   (:mod:`capedjica.algorithms.ica.varimax_start`). The statistic is the skew part of E[psi(z) z'] for
   z = W x, R(R-1)/2 numbers, where psi divides a source by its own local variance
   (:func:`capedjica.algorithms.kernels.skew_statistics`): it vanishes where sources are independent, and, for
   its norm, is more informative about the remaining angle than the statistic with tanh. Each iteration
   rotates by a multiple of the mean, which decreases so that noise is averaged
   (:mod:`capedjica.algorithms.ica.rotation_steps`).

Clips, shares and the number of iterations depend only on public quantities: R, the length of a scan, the
features and the noise implied by the budget. They were chosen by scores on synthetic data of the paper's
model (:mod:`capedjica.data.simulated.synthetic`) and on ABIDE (docs/development/research-notes.md), never on
the data at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress, ReleasedMean
from capedjica.algorithms.ica.basis import coefficients
from capedjica.algorithms.ica.maps.calibration import calibrated
from capedjica.algorithms.ica.maps.component_number import FEWEST, ComponentNumber, component_number
from capedjica.algorithms.ica.maps.networks import Networks
from capedjica.algorithms.ica.rotation_steps import RotationSteps, angle_errors, suitable_rotations
from capedjica.algorithms.ica.scan_length import (
    TYPICAL_SCAN,
    CutScans,
    check_scan_length,
    longest_scan,
    reserve,
)
from capedjica.algorithms.ica.varimax_start import nearest_rotation, some_features, varimax
from capedjica.algorithms.kernels import PackedSubjects, skew_statistics
from capedjica.algorithms.parallel import InParallel, compiled, one_thread
from capedjica.algorithms.pca import PSD_SPREAD, leading_subspace
from capedjica.algorithms.reserved import Reserved
from capedjica.algorithms.state import pack, read_arrays, unpack
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.contract import Query, Stage
from capedjica.tools.arrays import FloatArray, Scan

SUBSPACE: Final = 0
COARSE: Final = 1
FINE: Final = 2
ROTATION: Final = 3
# Shares of both whitenings and the rotations, of what the subspace leaves.
OTHER_SHARES: Final = (0.18, 0.18, 0.64)
# Without noise, iterations have no cost and stop at convergence.
QUIET_ROTATIONS: Final = 200
# Without noise, iterations stop when the largest angle is below this.
SMALLEST_ANGLE: Final = 1e-3
# Number of redrawn results, used to predict stability.
DRAWS: Final = 20
# Lower limit for the eigenvalues of a subject's covariance (their mean is 1).
FLOOR: Final = 1e-3
# Without noise, the floor only protects against rounding, and clips may be as wide as it allows: mixing
# matrices with condition numbers up to 1,000 have eigenvalues down to 1e-6 of the largest.
QUIET_FLOOR: Final = 1e-9
# Without noise, the second whitening is repeated until its result is below this.
QUIET_WHITENINGS: Final = 20
WHITE: Final = 1e-3
# Fraction of the squared clip above which the size of the change by clipping is unknown.
MOST_CLIPPED: Final = 0.998
# Standard normal quantile of 99%.
CERTAIN: Final = 2.33
# Subspace iteration: columns in addition to R, and steps.
OVERSAMPLED: Final = 12
POWER_STEPS: Final = 2
# Exponents of two between which squares do not overflow or underflow in single precision.
_ORDINARY: Final = 40
# Exponent near the smallest numbers of double precision: 2 to the power of its negative is still finite.
_SMALLEST: Final = -1000
# Directions with less than this fraction of the largest power are rounding errors of a Gram matrix in single
# and in double precision.
_RANK_TOLERANCE: Final = {np.dtype(np.float32): 1e-7, np.dtype(np.float64): 1e-12}
# Number of subjects whose covariances are processed at a time.
_TOGETHER: Final = 32
# Directions with less than this fraction are not accurate to three digits in single precision.
_WEAK: Final = 1e-3


def coarse_clip(n_components: int) -> float:
    """Return the clip of the log-covariance: 4.5 at R = 20, slightly above its typical norm."""
    return math.sqrt(n_components)


def fine_clip(n_components: int, scan_length: int) -> float:
    """Return the clip of the log-covariance after whitening: 1.9 at R = 20, T = 250, its typical norm."""
    return math.sqrt(2.1 * n_components * (n_components + 1) / scan_length)


def rotation_clip(n_components: int, scan_length: int) -> float:
    """Return the clip of the skew part of E[psi(z) z']: 0.55 at R = 20, T = 250, 0.7 of its typical norm."""
    return math.sqrt(0.2 * n_components * (n_components - 1) / scan_length)


def subspace_share(n_components: int, n_kept: int, noise: float) -> float:
    r"""Return the share of the budget for the subspace: a third, and more if noise would dominate it.

    The largest eigenvalue of the noise on the mean projector is about :math:`\nu = \sigma \sqrt{R K} / 2`,
    with :math:`\sigma` the noise of a release with the whole budget, divided by the root of the share. The
    eigenvalues of the relevant directions are at most 1.
    """
    return min(max(2.8 * n_components * n_kept / 4 * noise**2, 0.33), 0.65)


@dataclass(frozen=True, eq=False)
class Solution:
    """What the method computes from the means.

    Attributes
    ----------
    V : array (K, R)
        Basis of the subspace.
    before, sphering : array (R, R)
        Spherings before and after the last whitening.
    start, W : array (R, R)
        The first and the last rotation.
    n_iter : int
        Number of rotations.
    steps : RotationSteps
        Their lengths under noise.
    """

    V: FloatArray
    before: FloatArray
    sphering: FloatArray
    start: FloatArray
    W: FloatArray
    n_iter: int
    steps: RotationSteps


@dataclass(frozen=True, eq=False)
class SubjectMethod:
    """The method with its public parameters.

    Parameters
    ----------
    n_features, n_components : int
        D and R.
    scan_length : int
        Planned number of time points of a typical scan.
    noise : float
        Standard deviation of the noise on each coordinate of a mean of vectors of norm at most 1, if the
        whole budget were spent on one release (:func:`capedjica.mechanisms.terms.mean_noise`); 0 without
        noise.
    max_rotations : int, optional
        Number of iterations J; by default chosen for the noise level.
    basis : array (K, D), optional
        A public basis with orthonormal rows, which represents the features by K numbers.
    auto : bool
        Whether R is the maximum number of components, and the estimate has as many as are recoverable
        (:mod:`capedjica.algorithms.ica.maps.component_number`). Queries, noise and cost are those for R
        components: with fewer components the vectors are padded with zeros.
    """

    n_features: int
    n_components: int
    scan_length: int
    noise: float = 0.0
    max_rotations: int | None = None
    basis: FloatArray | None = None
    auto: bool = False
    _asked_for: int | None = None

    def __post_init__(self) -> None:
        check_scan_length(self.scan_length)
        if self.n_kept < self.n_components:
            raise InputError(
                f"n_components must be at most {self.n_kept}, the size of the basis; got {self.n_components}"
            )

    @property
    def n_kept(self) -> int:
        """Number K of coefficients that represent the features."""
        return self.n_features if self.basis is None else len(self.basis)

    @property
    def _maximum(self) -> int:
        """Number of components on which the queries depend."""
        return self._asked_for or self.n_components

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Shares of the budget (of mu^2) of the four stages."""
        first = subspace_share(self._maximum, self.n_kept, self.noise)
        return first, *((1 - first) * share for share in OTHER_SHARES)

    @cached_property
    def clips(self) -> tuple[float, ...]:
        """Clips of the four stages."""
        r, length = self._maximum, self.scan_length
        coarse = coarse_clip(r) if self.noise > 0 else -math.log(QUIET_FLOOR) * math.sqrt(r)
        return math.sqrt(r), coarse, fine_clip(r, length), rotation_clip(r, length)

    @property
    def floor(self) -> float:
        """Lower limit for the eigenvalues of a covariance, relative to their mean."""
        return FLOOR if self.noise > 0 else QUIET_FLOOR

    @cached_property
    def n_rotations(self) -> int:
        """Number of rotations J."""
        if self.max_rotations is not None:
            return self.max_rotations
        return suitable_rotations(self._noise_of(ROTATION)) if self.noise > 0 else QUIET_ROTATIONS

    @property
    def _n_whitenings(self) -> int:
        return 1 if self.noise > 0 else QUIET_WHITENINGS

    def _noise_of(self, stage: int) -> float:
        """Return the noise on each coordinate of a stage's mean, if it were one release."""
        return self.noise * self.clips[stage] / math.sqrt(self.shares[stage])

    def stages(self) -> tuple[Stage, ...]:
        """Return all queries of the method."""
        r, clips = self.n_components, self.clips
        queries = (
            Query("subspace", svec_size(self.n_kept), clips[SUBSPACE], PSD_SPREAD),
            Query("log-covariance", svec_size(r), clips[COARSE]),
            Query("log-covariance, whitened", svec_size(r), clips[FINE]),
            Query("rotation", r * (r - 1) // 2, clips[ROTATION]),
        )
        counts = (1, 1, self._n_whitenings, self.n_rotations)
        return tuple(Stage(*stage) for stage in zip(queries, counts, self.shares, strict=True))

    def site(self, subjects: Sequence[Scan]) -> SubjectSite:
        """Return the statistics of a site."""
        longest = longest_scan(self.scan_length)
        exact = self.noise == 0
        return SubjectSite(subjects, self.n_components, self.basis, longest, exact, fewer=self.auto)

    def estimate(self, means: Means, progress: Progress | None = None) -> Networks:
        """Run the method; ``progress(unmixing, iteration)`` is called after each rotation."""
        means.mean(SUBSPACE)
        number = component_number(means.released[SUBSPACE], self.n_components, self.auto)
        narrow = replace(self, n_components=number.kept, auto=False, _asked_for=self.n_components)
        return narrow._estimate(Narrowed(means, number.kept), number, progress)

    def _estimate(self, means: Narrowed, number: ComponentNumber, progress: Progress | None) -> Networks:
        with one_thread():
            found = self.solved(means, progress)
            unmixing = self._in_features(found.V @ found.sphering @ found.W.T).T
        redrawn_once = cache(lambda: self._redrawn_once(means.released, found))
        return Networks(
            unmixing,
            lambda: iter(redrawn_once()),
            unclipped=lambda: self._unclipped(means.released, found),
            number=number if number.auto or self.noise > 0 else None,
            denoises=self.noise > 0,
            basis=self.basis,
            predict=partial(calibrated, turned=np.abs(np.sum(found.W * found.start, axis=1))),
            n_iter=found.n_iter,
        )

    def solved(self, means: Means, progress: Progress | None = None) -> Solution:
        """Compute everything from the means."""
        V, before, sphering = self._whitening(means)
        means.publish(pack(V=V, sphering=sphering))
        maps = self._in_features(V @ sphering)
        start = W = varimax(maps)
        iteration, steps = 0, RotationSteps(self.n_rotations, self._noise_of(ROTATION))
        for iteration, W in enumerate(self._rotations(means, start, steps), start=1):
            if progress is not None:
                progress(W @ maps.T, iteration)
        return Solution(V, before, sphering, start, W, iteration, steps)

    def _redrawn_once(self, released: Sequence[ReleasedMean], found: Solution) -> list[FloatArray]:
        if self.noise > 0:
            return list(self.draws(released, found))
        # Without noise, another run gives the same maps.
        return [found.V @ np.linalg.inv(found.sphering) @ found.W.T]

    def draws(self, released: Sequence[ReleasedMean], found: Solution) -> Iterator[FloatArray]:
        r"""Yield (K, R) coefficients of mixing matrices that might have resulted with different noise.

        The noise of each release is drawn again and added to the published value (which has its own noise, so
        the draws vary somewhat more than runs would): on the mean projector; on the second whitening, which
        is measured after the first and thus compensates for its noise; and on the rotations. These start
        where varimax would start with the drawn maps, near the actual start. An error in W, from its start or
        from the noise of an iteration, is reduced by every later iteration to :math:`1 - g h` of it, where g
        is the angle per unit of the mean and h the response of the mean to an angle
        (:mod:`capedjica.algorithms.ica.rotation_steps`).
        """
        inside = found.V @ found.sphering
        start = varimax(self._in_some_features(inside), found.start)
        *_, last = (release for release in released if release.stage == FINE)
        noise = [release.noise for release in released if release.stage == ROTATION]
        kept, spread = angle_errors(noise, found.steps.turns, found.steps.response)

        def draw(number: int) -> FloatArray:
            rng = np.random.default_rng(number)  # input and output are public: nothing needs protection
            subspace, fine = (redrawn(release, rng) for release in (released[SUBSPACE], last))
            other = leading_subspace(subspace, self.n_components)
            further = whitened_further(found.before, unsvec(fine), self.floor)
            elsewhere = other @ further
            across = elsewhere.T @ inside
            there = varimax(self._in_some_features(elsewhere), nearest_rotation(found.start @ across.T))
            angles = kept * angles_between(start, alike(there @ across, start))
            angles += spread * rng.standard_normal(angles.shape)
            mixing = found.V @ np.linalg.inv(further) @ rotate(found.W, angles).T
            drawn: FloatArray = other @ (other.T @ mixing)
            return drawn

        return InParallel(draw, range(DRAWS))

    def _unclipped(self, released: Sequence[ReleasedMean], found: Solution) -> FloatArray | None:
        """Return the similarity of each map to that without clipping; None if nothing was clipped."""
        if self.noise == 0:
            return None
        return likeness_unclipped(found.before, released[FINE], self.clips[FINE], found.W)

    def _in_features(self, inside: FloatArray) -> FloatArray:
        """Convert columns of K coefficients to columns of D features."""
        return inside if self.basis is None else self.basis.T @ inside

    @cached_property
    def _some_features(self) -> FloatArray | None:
        """The public basis (features, K) in those features on which varimax compares starts."""
        return None if self.basis is None else self.basis.T[some_features(self.n_features)]

    def _in_some_features(self, inside: FloatArray) -> FloatArray:
        """Convert columns of K coefficients to columns of representative features."""
        if self._some_features is None:
            return inside[some_features(len(inside))]
        return self._some_features @ inside

    def _whitening(self, means: Means) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the subspace, and the spherings before and after the last whitening."""
        V = leading_subspace(means.mean(SUBSPACE), self.n_components)
        means.publish(pack(V=V, sphering=np.eye(self.n_components)))
        before = sphering = self._first_sphering(means.mean(COARSE))
        for _ in range(self._n_whitenings):
            means.publish(pack(V=V, sphering=sphering))
            mean = unsvec(means.mean(FINE))
            before, sphering = sphering, whitened_further(sphering, mean, self.floor)
            if np.abs(mean).max() < WHITE:
                break
        return V, before, sphering

    def _first_sphering(self, mean: FloatArray) -> FloatArray:
        coarse = unsvec(mean)
        factor = shrinkage(coarse, self._noise_of(COARSE))
        return whitened_further(np.eye(self.n_components), factor * coarse, self.floor)

    def _rotations(self, means: Means, W: FloatArray, steps: RotationSteps) -> Iterator[FloatArray]:
        """Yield W after each rotation."""
        if self.noise == 0:
            yield from self._convergence(means, W)
            return
        for _ in range(self.n_rotations):
            mean = means.mean(ROTATION, pack(W=W))
            W = rotate(W, steps.angles(mean, means.released[-1].noise))
            yield W

    def _convergence(self, means: Means, W: FloatArray) -> Iterator[FloatArray]:
        """Yield W after each rotation without noise, until the largest angle is small."""
        stiffness, last = stiffness_of(self.n_rotations), np.zeros(1)
        for iteration in range(1, self.n_rotations + 1):
            mean = means.mean(ROTATION, pack(W=W))
            # A mean that reverses indicates overshooting; with noise this cannot be determined.
            stiffness *= 2 if np.sum(mean * last) < 0 else 1
            last = mean
            angles = step_length(iteration, self.n_rotations) / stiffness * mean
            W = rotate(W, angles)
            yield W
            if np.abs(angles).max() < SMALLEST_ANGLE:
                return


class Narrowed:
    """Means of which the first is released, and the others use fewer components than the maximum.

    Parameters
    ----------
    means : Means
        Source of means, of which only the mean projector has been released so far.
    n_components : int
        Number of components used; the remaining numbers of a mean are only noise.
    """

    def __init__(self, means: Means, n_components: int) -> None:
        size, angles = svec_size(n_components), n_components * (n_components - 1) // 2
        self._means, self._sizes = means, {COARSE: size, FINE: size, ROTATION: angles}
        self.publish = means.publish

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means released so far."""
        return [replace(one, value=one.value[: self._sizes.get(one.stage)]) for one in self._means.released]

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""
        if stage == SUBSPACE:
            return self._means.released[SUBSPACE].value
        return self._means.mean(stage, state)[: self._sizes[stage]]


def step_length(iteration: int, n_rotations: int) -> float:
    """Return 1 in the first half of the iterations, then decrease linearly to zero."""
    return min(1.0, 2 * (n_rotations - iteration + 1) / n_rotations)


def stiffness_of(n_rotations: int) -> float:
    """Return the divisor of a mean for a full step without noise: few steps are short, many long."""
    return 0.1 + 1.6 / n_rotations


def alike(matrix: FloatArray, W: FloatArray) -> FloatArray:
    """Return the rotation nearest to a matrix, with rows in the order and with the signs of those of W."""
    rows = nearest_rotation(matrix)
    likeness = W @ rows.T
    order = scipy.optimize.linear_sum_assignment(np.abs(likeness), maximize=True)[1]
    signs = np.where(likeness[np.arange(len(W)), order] < 0, -1.0, 1.0)
    ordered: FloatArray = rows[order] * signs[:, np.newaxis]
    return ordered


def angles_between(W: FloatArray, other: FloatArray) -> FloatArray:
    """Return the angles by which :func:`rotate` maps W to ``other``, up to third order in small angles."""
    turn = other @ W.T
    return ((turn.T - turn) / 2)[np.triu_indices(len(W), 1)]


def redrawn(released: ReleasedMean, rng: np.random.Generator) -> FloatArray:
    """Return a mean with noise drawn again."""
    again: FloatArray = released.value + released.noise * rng.standard_normal(released.value.shape)
    return again


def rotate(W: FloatArray, angles: FloatArray) -> FloatArray:
    """Rotate W back by the angles, the entries i < j of a skew-symmetric matrix."""
    size = len(W)
    turn = np.zeros((size, size))
    turn[np.triu_indices(size, 1)] = -angles
    rotated: FloatArray = scipy.linalg.expm(turn - turn.T) @ W
    return rotated


def shrinkage(matrix: FloatArray, noise: float) -> float:
    """Return the shrinkage factor of a released matrix with known noise (James and Stein 1961)."""
    energy = float(np.sum(matrix**2))
    return max(0.1, 1 - svec_size(len(matrix)) * noise**2 / energy) if energy > 0 else 1.0


def whitened_further(sphering: FloatArray, log_covariance: FloatArray, floor: float = FLOOR) -> FloatArray:
    r"""Return the matrix that whitens :math:`S^{-1} \exp(L) S^{-1}`, with L measured after the sphering S."""
    back = np.linalg.inv(sphering)
    values, vectors = np.linalg.eigh(log_covariance)
    # No subject exceeds these limits; noise may, and two such factors would give a singular matrix.
    root = back @ (vectors * np.exp(np.clip(values, math.log(floor), -math.log(floor)) / 2))
    left, singular, _ = np.linalg.svd(root)
    further: FloatArray = (left / singular) @ left.T
    return further


def likeness_unclipped(
    sphering: FloatArray, released: ReleasedMean, clip: float, W: FloatArray
) -> FloatArray:
    r"""Return for each row of W the correlation of its map with its map without clipping.

    The log-covariances of subjects after the sphering are the sum of a common part C and an individual part
    of norm about k, the clip (:func:`fine_clip`). After clipping, their mean is about :math:`m = C k /
    \sqrt{\|C\|^2 + k^2}`, so the loss by clipping can be computed from what was published: :math:`C = m /
    \sqrt{1 - \|m\|^2 / k^2}`. It is almost zero if the first whitening was sufficient. If the power of some
    components is so far below that of others that clip and floor suppress it, the rotation is applied to data
    that are not white, and no orthogonal W unmixes them.

    Parameters
    ----------
    sphering : array (R, R)
        S, after which the log-covariance was measured.
    released : ReleasedMean
        Its mean, m.
    clip : float
        k.
    W : array (R, R)
        The rotation.
    """
    size, variance = released.value.size, released.noise**2
    energy = float(np.sum(released.value**2)) - size * variance
    # Noise alone exceeds this in one study of a hundred.
    seen = energy > CERTAIN * math.sqrt(2 * size) * variance
    part = min(energy / clip**2, MOST_CLIPPED) if seen else 0.0
    mean = unsvec(released.value)
    own, other = (
        np.linalg.inv(whitened_further(sphering, factor * mean)) @ W.T for factor in (1.0, (1 - part) ** -0.5)
    )
    lengths = np.linalg.norm(own, axis=0) * np.linalg.norm(other, axis=0)
    likeness: FloatArray = np.sum(own * other, axis=0) / lengths
    return likeness


class ProjectorSite:
    """Statistics of a site for the subspace, from subjects that are read one at a time.

    Parameters
    ----------
    subjects : sequence of arrays (time, features)
        The site's data; each subject is centred over time.
    n_components : int
        R.
    basis : array (K, features), optional
        A public basis, which represents the features by K numbers.
    longest : int
        Largest number of time points of a scan that are used.
    exact : bool
        Whether weak directions are computed to the limits of double precision, as they are without noise.
    unshared : bool
        Whether directions must not depend on a public start, as is required when common directions are
        counted: those found from a public start (:func:`leading_eigenvectors`) retain some of it if a subject
        has fewer than R strong directions.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        n_components: int,
        basis: FloatArray | None = None,
        longest: int = longest_scan(TYPICAL_SCAN),
        exact: bool = False,
        unshared: bool = False,
    ) -> None:
        self._subjects, self._n_components = CutScans(subjects, longest), n_components
        self._basis = None if basis is None else basis.T.astype(np.float32)
        self._coefficients = coefficients(basis)
        self._exact, self._unshared = exact, unshared

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' projectors, which do not depend on published values."""
        return InParallel(self._projector, self._subjects)

    def _projector(self, subject: Scan) -> FloatArray:
        with np.errstate(all="ignore"):
            features = self._coefficients(centred(subject))
            leading = projector(features, self._n_components, self._exact, self._unshared)
            return svec(leading)[np.newaxis]


class SubjectSite(ProjectorSite):
    """Statistics of a site for the method, from subjects that are read one at a time, twice in total.

    Parameters
    ----------
    subjects, n_components, basis, longest, exact
        See :class:`ProjectorSite`.
    fewer : bool
        Whether a subspace of fewer directions may be published, as many as are common to the subjects;
        vectors are then padded with zeros.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        n_components: int,
        basis: FloatArray | None = None,
        longest: int = longest_scan(TYPICAL_SCAN),
        exact: bool = False,
        fewer: bool = False,
    ) -> None:
        super().__init__(subjects, n_components, basis, longest, exact, unshared=fewer)
        self._fewest = FEWEST if fewer else n_components
        self._subspace = self._sphering = np.empty(0)
        self._rooms = [reserve(len(subjects), longest, n_components) for _ in ("reduced", "whitened")]
        self._moments = Reserved(8 * len(subjects) * n_components**2, f"covariances of {len(subjects)} scans")
        self._reduced: PackedSubjects | None = None
        self._whitened: PackedSubjects | None = None

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors for a stage; reject public values that do not belong to the method."""
        if stage == SUBSPACE:
            return super().__call__(stage, published, state)
        self._reduce(*self._read(published))
        most, r = self._n_components, len(self._sphering)
        if stage in (COARSE, FINE):
            rows = InParallel(self._log_covariances, range(0, len(self._subjects), _TOGETHER))
            return rows if r == most else map(partial(filled_up, size=svec_size(most)), rows)
        W = read_arrays(state, W=(r, r))["W"]
        return map(partial(_skew_rows, W=W, size=most * (most - 1) // 2), self._whiten().parts())

    def _read(self, published: bytes) -> tuple[FloatArray, FloatArray]:
        most, V = self._n_components, unpack(published).get("V", np.empty(0))
        if V.ndim != 2 or not self._fewest <= V.shape[1] <= most:
            least = f"{self._fewest} to " if self._fewest < most else ""
            raise ProtocolError(f"the published subspace must have {least}{most} columns")
        r = V.shape[1]
        return V, read_arrays(published, V=V.shape, sphering=(r, r))["sphering"]

    def _reduce(self, V: FloatArray, sphering: FloatArray) -> None:
        """Store the subjects in the common subspace; they are read again only when it changes."""
        if self._reduced is None or not np.array_equal(self._subspace, V):
            directions = (V if self._basis is None else self._basis @ V).astype(np.float32)
            self._reduced = PackedSubjects.computed(
                partial(_projected, directions=directions),
                self._subjects,
                self._rooms[0],
                self._subjects.longest,
                V.shape[1],
            )
            store_moments(self._reduced, self._moments)
            self._subspace, self._whitened = V, None
        if not np.array_equal(self._sphering, sphering):
            self._sphering, self._whitened = sphering, None

    def _log_covariances(self, first: int) -> FloatArray:
        """Return the vectors of a few subjects."""
        with np.errstate(all="ignore"):
            floor = QUIET_FLOOR if self._exact else FLOOR
            return svec(log_covariances(self._sphered_moments(first, first + _TOGETHER), floor))

    def _whiten(self) -> PackedSubjects:
        """Whiten the subjects to unit power, once for every published subspace and sphering."""
        assert self._reduced is not None
        if self._whitened is None:
            packed, room = self._reduced, self._rooms[1]
            white = room.array(packed.samples.shape, np.float32)
            sphering = self._sphering.astype(np.float32)
            # One by one: in one large product the rounding of a subject might depend on previous ones.
            with np.errstate(all="ignore"):
                for number, (first, last) in enumerate(pairwise(packed.offsets)):
                    power = np.trace(self._sphered_moments(number, number + 1)[0])
                    factor = math.sqrt((last - first) * packed.n_features / power) if power > 0 else 1.0
                    own = white[first:last]
                    room.touch(own.nbytes)
                    np.matmul(packed.subject(number), sphering, out=own)
                    own *= np.float32(factor)
            self._whitened = PackedSubjects(white, packed.offsets, packed.longest, room)
        return self._whitened

    def _sphered_moments(self, first: int, last: int) -> FloatArray:
        assert self._reduced is not None
        size = self._reduced.n_features
        moments = self._moments.array((len(self._subjects), size, size), np.float64)[first:last]
        self._moments.touch(moments.nbytes)
        sphered: FloatArray = self._sphering.T @ moments @ self._sphering
        return sphered


def filled_up(rows: FloatArray, size: int) -> FloatArray:
    """Return rows padded with zeros to the given size."""
    return np.pad(rows, ((0, 0), (0, size - rows.shape[1])))


def _skew_rows(packed: PackedSubjects, W: FloatArray, size: int) -> FloatArray:
    return filled_up(skew_statistics(packed, W), size)


def store_moments(packed: PackedSubjects, room: Reserved) -> None:
    """Store the sums of x x' over the time points of every subject, (M, R, R)."""
    size = packed.n_features
    moments = room.array((packed.n_subjects, size, size), np.float64)
    # Always of the maximum size: allocating memory for one subject could fail for all.
    exact = np.empty((packed.longest, size))
    with np.errstate(all="ignore"):
        for number in range(packed.n_subjects):
            subject = packed.subject(number)
            samples = exact[: len(subject)]
            samples[:] = subject
            room.touch(moments[number].nbytes)
            np.matmul(samples.T, samples, out=moments[number])


def centred(subject: Scan) -> NDArray[np.float32]:
    """Return a subject minus its mean over time, divided by a power of two if single precision requires it.

    NaN and infinity are preserved. All further results are independent of the units of the subject.
    """
    # A scan in single precision is used directly: double precision would double the work.
    exact = np.promote_types(subject.dtype, np.float32) == np.float32
    values: Scan = np.ascontiguousarray(subject, dtype=np.float32 if exact else np.float64)
    single = np.empty(values.shape, dtype=np.float32)
    _centre(values, single)
    return single


@compiled
def _centre(subject: Scan, single: NDArray[np.float32]) -> None:
    """Subtract means in the precision of the scan, in two passes, which takes a third of NumPy's time."""
    length, size = subject.shape
    means, largest = np.zeros(size), np.zeros(size)
    for t in range(length):
        for d in range(size):
            means[d] += subject[t, d]
            largest[d] = max(largest[d], abs(subject[t, d]))
    own = (means / max(length, 1)).astype(subject.dtype)
    exponent = math.frexp(largest.max())[1] if size else 0
    if abs(exponent) <= _ORDINARY:
        for t in range(length):
            for d in range(size):
                single[t, d] = subject[t, d] - own[d]
        return
    factor = math.ldexp(1.0, -max(exponent, _SMALLEST))
    for t in range(length):
        for d in range(size):
            single[t, d] = np.float64(subject[t, d] - own[d]) * factor


def _projected(subject: Scan, directions: NDArray[np.float32]) -> FloatArray:
    with np.errstate(all="ignore"):
        return unit_power((centred(subject) @ directions).astype(np.float64))


def unit_power(samples: FloatArray) -> FloatArray:
    """Scale a subject to a mean squared norm of R, so that a source has about unit variance."""
    size = math.sqrt(float(np.mean(np.einsum("ij,ij->i", samples, samples)))) if len(samples) else 0.0
    return samples * (math.sqrt(samples.shape[1]) / size) if size > 0 else samples


def projector(
    features: NDArray[np.float32], n_components: int, exact: bool = False, unshared: bool = False
) -> FloatArray:
    """Return the projector onto the leading directions of a subject; zero if there are none.

    Weak directions are computed again in double precision if ``exact``, and without a public start if
    ``unshared``.
    """
    length, size = features.shape
    if not length or not np.isfinite(features).all():
        return np.zeros((size, size))
    leading = _leading_directions(features, n_components, exact, unshared)
    result: FloatArray = leading @ leading.T
    return result


def _leading_directions(features: Scan, n_components: int, exact: bool, unshared: bool) -> FloatArray:
    """Return orthonormal columns, at most R, from the smaller of the two Gram matrices."""
    length, size = features.shape
    wide = size > length
    scaled = features.astype(np.float64) if wide else features
    gram = scaled @ scaled.T if wide else scaled.T @ scaled
    values, vectors = leading_eigenvectors(gram, n_components, nearly=not unshared)
    if exact and gram.dtype == np.float32 and values[0] < _WEAK * values[-1]:
        return _leading_directions(features.astype(np.float64), n_components, exact, unshared)
    least = values[-1] * _RANK_TOLERANCE[gram.dtype]
    vectors = vectors[:, values > least] if values[-1] > 0 else vectors[:, :0]
    directions = scaled.T @ vectors if wide else vectors.astype(np.float64)
    # The sensitivity requires exactly orthonormal columns.
    return np.linalg.qr(directions)[0]


def leading_eigenvectors(gram: Scan, n_components: int, nearly: bool = True) -> tuple[Scan, Scan]:
    """Return the largest eigenvalues, ascending, and their eigenvectors, approximately if allowed.

    For a large matrix the approximation uses two steps of subspace iteration from a fixed public matrix with
    `OVERSAMPLED` more columns than requested, and Rayleigh-Ritz eigenvectors within it (Halko, Martinsson and
    Tropp 2011, algorithms 4.4 and 5.3): at a signal-to-noise ratio of 1 and R = 20 of 144, 0.99997 of the
    exact projector, in two fifths of the time. Vectors of nearly equal eigenvalues, such as those of noise,
    retain a part of the starting matrix, and thus share it with those of other matrices.
    """
    width = n_components + OVERSAMPLED
    if not nearly or len(gram) <= 2 * width:
        values, vectors = np.linalg.eigh(gram)
        return values[-n_components:], vectors[:, -n_components:]
    block = gram @ _public_start(len(gram), width).astype(gram.dtype)
    for _ in range(POWER_STEPS):
        block = gram @ np.linalg.qr(block)[0]
    inside = np.linalg.qr(block)[0]
    values, vectors = np.linalg.eigh(inside.T @ gram @ inside)
    return values[-n_components:], inside @ vectors[:, -n_components:]


@cache
def _public_start(size: int, width: int) -> FloatArray:
    """Return public random numbers, which are independent of all data."""
    return np.random.default_rng(0).standard_normal((size, width))


def log_covariance(moments: FloatArray, floor: float = FLOOR) -> FloatArray:
    """Return the logarithm of a subject's covariance without its trace; NaN if it cannot be computed.

    The covariance is given as sums of x x', and scaled to a mean eigenvalue of 1; eigenvalues are floored. A
    stack of several (n, R, R) gives a stack.
    """
    finite = np.isfinite(moments).all(axis=(-2, -1), keepdims=True)
    values, vectors = np.linalg.eigh(np.where(finite, moments, 0.0))
    power = values.sum(axis=-1, keepdims=True)
    scaled = values * (moments.shape[-1] / np.where(power > 0, power, np.nan))
    logarithms = np.log(np.maximum(scaled, floor))
    logarithms -= logarithms.mean(axis=-1, keepdims=True)
    result: FloatArray = (vectors * logarithms[..., np.newaxis, :]) @ vectors.mT
    return result


def log_covariances(moments: FloatArray, floor: float) -> FloatArray:
    """Return the logarithm of every subject's covariance (n, R, R), as :func:`log_covariance` does."""
    try:
        return log_covariance(moments, floor)
    except np.linalg.LinAlgError:
        if len(moments) == 1:
            return np.full_like(moments, np.nan)
        # A subject whose eigenvalues cannot be computed must not affect others.
        return np.concatenate([log_covariances(one[np.newaxis], floor) for one in moments])
