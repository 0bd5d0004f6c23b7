r"""Joint ICA with far less noise: subspace, whitening and rotation, each a mean of one vector per subject.

The model is the paper's, x = A s. What differs is what is asked of a subject: what a person can move little.

1. *Subspace.* The projector on the subject's own R leading directions: every component counts the same,
   however strong it is, and the norm is sqrt(R) by construction, so nothing is clipped. The R leading
   eigenvectors of the mean span the common subspace.
2. *Whitening.* The logarithm of the covariance of the projected data, which are scaled to a mean squared norm
   of R; eigenvalues floored, clipped as a vector. The exponential of the mean is the common covariance.
3. *Rotation.* W stays orthogonal. With z = W x whitened and psi = tanh the statistic is the skew part of
   E[psi(z) z'], R(R-1)/2 numbers, clipped at about its typical norm. It is the gradient of the likelihood
   along rotations. Near the solution it equals (kappa_i + kappa_j) times the angle still to be turned, where
   kappa = E[psi'(s)] - E[s psi(s)], so each iteration turns by the mean over 2 kappa, and by less and less
   in the second half, which averages the noise.

Clips, floor, kappa and the split of the budget are fixed by R and the length of a scan. They were chosen on
synthetic data of the paper's model (:mod:`capedjica.data.synthetic`), never on the data at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm

from capedjica.algorithms.compiled import one_thread
from capedjica.algorithms.kernels import PackedSubjects, skew_statistics
from capedjica.algorithms.method import Means, Progress, Subject
from capedjica.algorithms.pca import PSD_SPREAD, leading_subspace
from capedjica.algorithms.state import pack, read_arrays, unpack
from capedjica.algorithms.symmetric import svec, svec_size, unsvec
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.contract import Query, Stage

FloatArray = NDArray[np.float64]
SUBSPACE: Final = 0
WHITENING: Final = 1
ROTATION: Final = 2
SHARES: Final = (0.3, 0.2, 0.5)
ROTATIONS: Final = 20
KAPPA: Final = 0.06
# Eigenvalues of a subject's covariance (their mean is 1) count as at least this much.
FLOOR: Final = 1e-3


def covariance_clip(n_components: int) -> float:
    """Clip of log-covariances: 4.2 at R = 20, the typical norm."""
    return 0.95 * math.sqrt(n_components)


def rotation_clip(n_components: int, scan_length: int) -> float:
    """Clip of the skew part of E[tanh(z) z']: 0.28 at R = 20 and 250 time points, the typical norm."""
    return math.sqrt(0.05 * n_components * (n_components - 1) / scan_length)


@dataclass(frozen=True, eq=False)
class SubjectMethod:
    """The method with its parameters, all of them public.

    Parameters
    ----------
    n_features, n_components : int
        D and R.
    scan_length : int
        Time points of the longest scan that was planned.
    n_rotations : int
        J, the number of iterations.
    basis : array (K, D), optional
        A public basis with orthonormal rows; afterwards K numbers stand for the features.
    """

    n_features: int
    n_components: int
    scan_length: int
    n_rotations: int = ROTATIONS
    basis: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.n_kept < self.n_components:
            raise InputError(
                f"the basis keeps {self.n_kept} numbers, fewer than the {self.n_components} components"
            )

    @property
    def n_kept(self) -> int:
        """K, the numbers that stand for the features."""
        return self.n_features if self.basis is None else len(self.basis)

    def stages(self) -> tuple[Stage, ...]:
        """Return everything the method asks."""
        r = self.n_components
        queries = (
            Query("subspace", svec_size(self.n_kept), math.sqrt(r), PSD_SPREAD),
            Query("log-covariance", svec_size(r), covariance_clip(r)),
            Query("rotation", r * (r - 1) // 2, rotation_clip(r, self.scan_length)),
        )
        counts = (1, 1, self.n_rotations)
        return tuple(Stage(*stage) for stage in zip(queries, counts, SHARES, strict=True))

    def site(self, subjects: Sequence[Subject]) -> SubjectSite:
        """Return what a site computes."""
        return SubjectSite(subjects, self.n_components, self.basis)

    def estimate(self, means: Means, progress: Progress | None = None) -> tuple[FloatArray, int]:
        """Run the method; return the (R, D) unmixing matrix of centred data and the number of iterations.

        ``progress(unmixing, iteration)`` is called after each rotation.
        """
        V = leading_subspace(means.mean(SUBSPACE), self.n_components)
        means.publish(pack(V=V))
        sphering = _power(unsvec(means.mean(WHITENING)), -0.5)
        means.publish(pack(V=V, sphering=sphering))
        whiten = sphering @ V.T if self.basis is None else sphering @ V.T @ self.basis
        W = np.eye(self.n_components)
        for iteration in range(1, self.n_rotations + 1):
            mean = means.mean(ROTATION, pack(W=W))
            W = rotate(W, mean, step_length(iteration, self.n_rotations))
            if progress is not None:
                progress(W @ whiten, iteration)
        return W @ whiten, self.n_rotations


def step_length(iteration: int, n_rotations: int) -> float:
    """Return 1 in the first half of the iterations, then fall to zero in equal steps."""
    return min(1.0, 2 * (n_rotations - iteration + 1) / n_rotations)


def rotate(W: FloatArray, skew: FloatArray, length: float) -> FloatArray:
    """Turn W against the gradient ``skew``, the entries i < j of E[psi(z) z'] less its transpose."""
    size = len(W)
    turn = np.zeros((size, size))
    turn[np.triu_indices(size, 1)] = -length * skew / (2 * KAPPA)
    rotated: FloatArray = expm(turn - turn.T) @ W
    return rotated


def _power(log_covariance: FloatArray, power: float) -> FloatArray:
    """Return exp(power * log_covariance) of a symmetric matrix."""
    values, vectors = np.linalg.eigh(log_covariance)
    result: FloatArray = (vectors * np.exp(power * values)) @ vectors.T
    return result


class SubjectSite:
    """What a site computes for the method, from subjects that are read one at a time.

    Parameters
    ----------
    subjects : sequence of arrays (time, features)
        The site's data; each subject is centred over time.
    n_components : int
        R.
    basis : array (K, features), optional
        A public basis; afterwards K numbers stand for the features.
    """

    def __init__(
        self, subjects: Sequence[Subject], n_components: int, basis: FloatArray | None = None
    ) -> None:
        self._subjects, self._n_components = subjects, n_components
        self._basis = None if basis is None else basis.T.astype(np.float32)
        self._key = b""
        self._packed: PackedSubjects | None = None

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors for a stage; refuse public values that are not of the method."""
        if stage == SUBSPACE:
            return map(self._projector, self._subjects)
        if stage == WHITENING:
            return map(partial(self._log_covariance, V=self._subspace(published)), self._subjects)
        r = self._n_components
        W = read_arrays(state, W=(r, r))["W"]
        return [skew_statistics(self._whitened(published), W)]

    def _subspace(self, published: bytes) -> FloatArray:
        V = unpack(published).get("V", np.empty(0))
        if V.ndim != 2 or V.shape[1] != self._n_components:
            raise ProtocolError(f"the published subspace must have {self._n_components} columns")
        return V

    def _features(self, subject: Subject) -> NDArray[np.float32]:
        """Return a subject centred, in the basis; NaN and infinity stay what they are."""
        with np.errstate(all="ignore"):
            centred: NDArray[np.float32] = (subject - subject.mean(axis=0, dtype=np.float64)).astype(
                np.float32
            )
            return centred if self._basis is None else centred @ self._basis

    def _projector(self, subject: Subject) -> FloatArray:
        with one_thread():
            return svec(_projector(self._features(subject), self._n_components))[np.newaxis]

    def _reduced(self, subject: Subject, V: FloatArray) -> FloatArray:
        """Return a subject in the common subspace, scaled to a mean squared norm of R."""
        with np.errstate(all="ignore"):
            reduced = (self._features(subject) @ V.astype(np.float32)).astype(np.float64)
            size = math.sqrt(float(np.mean(np.einsum("ij,ij->i", reduced, reduced))))
            return reduced * (math.sqrt(V.shape[1]) / size) if size > 0 else reduced

    def _log_covariance(self, subject: Subject, V: FloatArray) -> FloatArray:
        with one_thread():
            return svec(_log_covariance(self._reduced(subject, V)))[np.newaxis]

    def _whitened(self, published: bytes) -> PackedSubjects:
        """Whiten the subjects once for every subspace and covariance that are published."""
        if self._packed is None or self._key != published:
            V, r = self._subspace(published), self._n_components
            sphering = read_arrays(published, V=V.shape, sphering=(r, r))["sphering"]

            def whiten(subject: Subject) -> FloatArray:
                whitened: FloatArray = self._reduced(subject, V) @ sphering
                return whitened

            with one_thread():
                self._packed, self._key = PackedSubjects.computed(whiten, self._subjects, r), published
        return self._packed


def _projector(features: NDArray[np.float32], n_components: int) -> FloatArray:
    """Return the projector on the leading directions of a subject; zero where there are none to be found."""
    size = features.shape[1]
    if not len(features) or not np.isfinite(features).all():
        return np.zeros((size, size))
    moments = (features.T @ features).astype(np.float64)
    values, vectors = np.linalg.eigh(moments)
    leading = vectors[:, -n_components:][:, values[-n_components:] > 0]
    projector: FloatArray = leading @ leading.T
    return projector


def _log_covariance(reduced: FloatArray) -> FloatArray:
    """Return the logarithm of a subject's covariance, eigenvalues floored; NaN where it cannot be had."""
    size = reduced.shape[1]
    if not len(reduced) or not np.isfinite(reduced).all():
        return np.full((size, size), np.nan)
    values, vectors = np.linalg.eigh(reduced.T @ reduced / len(reduced))
    logarithm: FloatArray = (vectors * np.log(np.maximum(values, FLOOR))) @ vectors.T
    return logarithm
