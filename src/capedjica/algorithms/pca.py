r"""capePCA (Algorithm 3 of the paper): the leading eigenvectors of a private mean of second moments.

There is one release. Every unit (a subject, or for ``neighbour="sample"`` a time point) contributes a
positive semidefinite matrix of Frobenius norm at most 1: the mean of :math:`x x'` over its samples, each
clipped to :math:`\|x\| \le 1`. Two such matrices are at most sqrt(2) apart, so one unit moves the mean over M
of them by at most :math:`\sqrt 2 / M` (the paper's 1/N holds for samples that are only added or removed).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress, Result, ResultTable
from capedjica.algorithms.ica.scan_length import CutScans
from capedjica.algorithms.kernels import second_moments
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.errors import InputError
from capedjica.mechanisms.contract import CLIP_RANGE, Query, Stage, Statistics
from capedjica.privacy import validate
from capedjica.privacy.neighbour import Neighbour
from capedjica.tools.arrays import FloatArray, Scan

# sqrt(2), with a margin for the rounding of second moments in single precision: with T time points the error
# of each of the two matrices is below T 2^-24 in norm, 2.0e-3 / 2 for T up to LONGEST_BATCH.
PSD_SPREAD: Final = 1.4162
LONGEST_BATCH: Final = 1 << 14
_BATCH: Final = 64


def pca_query(n_features: int, clip: float = 1.0) -> Query:
    """Return the query of a unit's second moment as svec, with samples clipped to ``clip``."""
    least, most = map(math.sqrt, CLIP_RANGE)
    if not least <= validate.positive("clip", clip) <= most:
        raise InputError(f"clip must be between {least:.0e} and {most:.0e}, got {clip:g}")
    return Query("second moments (PCA)", svec_size(n_features), clip * clip, PSD_SPREAD)


def subject_moments(subjects: Iterable[Scan], clip: float = 1.0) -> Iterator[FloatArray]:
    """Return the svec of each subject's second moment, one row at a time.

    This is a `map` and not a generator: it continues after a subject that fails, so that no subject affects
    the contribution of another.
    """
    return map(partial(_subject_row, clip=clip), subjects)


def sample_moments(subjects: Iterable[Scan], clip: float = 1.0) -> Iterator[FloatArray]:
    """Return the svec of x x' for every sample of every subject, a few rows at a time."""
    batches = (
        subject[start : start + _BATCH] for subject in subjects for start in range(0, len(subject), _BATCH)
    )
    return map(partial(_sample_rows, clip=clip), batches)


def within_unit_ball(subject: Scan) -> NDArray[np.float32]:
    """Centre a subject's features over time and scale its longest sample to norm 1."""
    if not len(subject):
        return np.empty(subject.shape, dtype=np.float32)
    with np.errstate(all="ignore"):
        centred = subject - subject.mean(axis=0, dtype=np.float64)
        longest = np.sqrt(np.einsum("ij,ij->i", centred, centred).max(initial=0.0))
        scaled: NDArray[np.float32] = (centred / longest if longest != 0 else centred).astype(np.float32)
    return scaled


def leading_subspace(moments: FloatArray, n_components: int) -> FloatArray:
    """Return V_R, the (D, R) leading eigenvectors of the symmetric matrix whose svec is ``moments``."""
    _, vectors = np.linalg.eigh(unsvec(moments))
    return np.ascontiguousarray(vectors[:, ::-1][:, :n_components])


def _subject_row(subject: Scan, clip: float) -> FloatArray:
    exact = len(subject) > LONGEST_BATCH
    return svec(_exact_moments(subject, clip) if exact else second_moments(subject, clip))[np.newaxis]


def _sample_rows(samples: Scan, clip: float) -> FloatArray:
    return np.stack([svec(np.outer(x, x)) for x in _clipped(samples, clip)])


def _clipped(samples: Scan, clip: float) -> FloatArray:
    """Clip samples to the norm ``clip``; non-finite samples are kept, and their unit then counts as zero."""
    values = np.asarray(samples, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        clipped: FloatArray = values * (clip / np.maximum(norms, clip))
    return clipped


def _exact_moments(subject: Scan, clip: float) -> FloatArray:
    """Return the second moment in double precision, processing the subject in parts."""
    moments = np.zeros((subject.shape[1],) * 2)
    with np.errstate(invalid="ignore"):
        for start in range(0, len(subject), LONGEST_BATCH):
            values = _clipped(subject[start : start + LONGEST_BATCH], clip)
            moments += values.T @ values
        return moments / len(subject)


@dataclass(frozen=True, eq=False)
class Components(Result):
    """Orthonormal rows (R, D), ordered from the leading one, each with its largest entry positive."""

    components: FloatArray
    names: tuple[str, ...] = ()

    @property
    def maps(self) -> FloatArray | None:
        """The components; None for named columns, whose components are a table instead."""
        return None if self.names else self.components

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the components of named columns; otherwise they are the maps."""
        return {"components": self.components} if self.names else {}

    def tables(self) -> Sequence[ResultTable]:
        """Return the loading of each column on each component."""
        if not self.names:
            return ()
        columns = ("column", *(f"component {number}" for number in range(1, len(self.components) + 1)))
        rows = [(name, *map(float, part)) for name, part in zip(self.names, self.components.T, strict=True)]
        return (ResultTable("components", "Loading of each column on each component.", columns, rows),)


@dataclass(frozen=True)
class PrincipalComponents:
    """capePCA of scans.

    Parameters
    ----------
    n_features, n_components : int
        D and R.
    clip : float, optional
        Largest norm of a sample, which is then not centred; without it every scan is centred and scaled to a
        largest norm of 1.
    neighbour : {"subject", "sample"}
        Unit of privacy: a subject or a time point.
    longest : int, optional
        Largest number of time points of a scan that are used; all by default.
    names : tuple of str
        Names of the columns, if the features are those of a table.
    """

    n_features: int
    n_components: int
    clip: float | None = None
    neighbour: Neighbour = "subject"
    longest: int | None = None
    names: tuple[str, ...] = ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the only query."""
        return (Stage(pca_query(self.n_features, 1.0 if self.clip is None else self.clip)),)

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the second moment of every subject, or of every sample."""
        moments = subject_moments if self.neighbour == "subject" else sample_moments
        scans = subjects if self.longest is None else CutScans(subjects, self.longest)
        return partial(_moments, moments, scans, self.clip)

    def estimate(self, means: Means, progress: Progress | None = None) -> Components:
        """Request the moments and compute their leading eigenvectors."""
        basis = leading_subspace(means.mean(0), self.n_components)
        signs = np.sign(basis[np.argmax(np.abs(basis), axis=0), np.arange(self.n_components)])
        return Components((basis * signs).T, self.names)


def _moments(
    moments: Callable[[Iterable[Scan], float], Iterator[FloatArray]],
    subjects: Sequence[Scan],
    clip: float | None,
    stage: int,
    published: bytes,
    state: bytes,
) -> Iterator[FloatArray]:
    if clip is None:
        return moments(map(within_unit_ball, subjects), 1.0)
    return moments(subjects, clip)
