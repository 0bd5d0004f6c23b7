"""The complete method of the paper: capePCA followed by capeDJICA (Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress
from capedjica.algorithms.ica.infomax import (
    B_G,
    B_H,
    TOLERANCE,
    Infomax,
    default_learning_rate,
    descend,
    gradient_query,
    subject_gradients,
)
from capedjica.algorithms.ica.maps.networks import Networks
from capedjica.algorithms.ica.scan_length import (
    TYPICAL_SCAN,
    CutScans,
    check_scan_length,
    longest_scan,
    reserve,
)
from capedjica.algorithms.kernels import PackedSubjects
from capedjica.algorithms.parallel import one_thread
from capedjica.algorithms.pca import leading_subspace, pca_query, subject_moments, within_unit_ball
from capedjica.algorithms.state import pack, read_arrays, unpack
from capedjica.errors import InputError, ProtocolError
from capedjica.mechanisms.contract import Stage
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray, Scan

PCA: Final = 0
DESCENT: Final = 1
PCA_SHARE: Final = 0.3


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """Rarely changed settings of the paper's method.

    Parameters
    ----------
    learning_rate : float, optional
        Learning rate rho; by default the paper's 0.015 / ln R.
    pca_share : float
        Fraction of the budget (of mu^2) for the PCA.
    clip_g, clip_h : float
        Bounds B_G and B_h on the gradients at one time point.
    tol : float
        Squared change of the unmixing matrix at which to stop.

    Examples
    --------
    >>> from capedjica import CapeDJICA, PaperOptions
    >>> ica = CapeDJICA(5, epsilon=2.0, method="paper", paper_options=PaperOptions(pca_share=0.5))
    >>> ica.paper_options.pca_share
    0.5
    """

    learning_rate: float | None = None
    pca_share: float = PCA_SHARE
    clip_g: float = B_G
    clip_h: float = B_H
    tol: float = TOLERANCE

    def __post_init__(self) -> None:
        for name in ("clip_g", "clip_h", "tol"):
            validate.positive(name, getattr(self, name))
        if self.learning_rate is not None:
            validate.positive("learning_rate", self.learning_rate)
        if not 0 < self.pca_share < 1:
            raise InputError(f"pca_share must be between 0 and 1, got {self.pca_share}")


@dataclass(frozen=True)
class PaperMethod(PaperOptions):
    """The paper's method with its parameters, including those of `PaperOptions`.

    Parameters
    ----------
    n_features, n_components : int
        D and R.
    max_iter : int
        Maximum number of iterations J.
    scan_length : int
        Planned number of time points of a typical scan.
    """

    n_features: int
    n_components: int
    max_iter: int = 1000
    scan_length: int = TYPICAL_SCAN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scan_length(self.scan_length)

    def stages(self) -> tuple[Stage, ...]:
        """Return all possible queries: second moments once, gradients at most ``max_iter`` times."""
        return (
            Stage(pca_query(self.n_features), 1, self.pca_share),
            Stage(gradient_query(self.n_components), self.max_iter, 1 - self.pca_share),
        )

    def site(self, subjects: Sequence[Scan]) -> PaperSite:
        """Return the statistics of a site."""
        longest = longest_scan(self.scan_length)
        return PaperSite(subjects, self.n_components, self.clip_g, self.clip_h, longest)

    def estimate(self, means: Means, progress: Progress | None = None) -> Networks:
        """Run the method; ``progress(unmixing, iteration)`` is called after each step of the descent.

        The result is bitwise identical for the same means; the number of threads would affect the
        eigenvectors. The stability of the maps is not predicted, because the effect of noise on a descent
        with a stopping rule is unknown.
        """
        rate = self.learning_rate or default_learning_rate(self.n_components)
        infomax = Infomax(self.n_components, rate, self.clip_g, self.clip_h, self.tol)
        with one_thread():
            V = leading_subspace(means.mean(PCA), self.n_components)
            means.publish(pack(V=V))

            def report(infomax: Infomax, iteration: int) -> None:
                if progress is not None:
                    progress(infomax.W @ V.T, iteration)

            n_iter = descend(infomax, lambda state: means.mean(DESCENT, state), self.max_iter, report)
            return Networks(infomax.W @ V.T, n_iter=n_iter)


class PaperSite:
    """Statistics of a site for the paper's method, from subjects that are read one at a time.

    Each subject is centred and scaled by its own largest sample, so that the norms are at most 1, as capePCA
    requires. After the projection it is scaled to a mean squared norm of R, so that a source has about unit
    variance. Both steps use one subject only and have no privacy cost.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        n_components: int,
        clip_g: float = B_G,
        clip_h: float = B_H,
        longest: int = longest_scan(TYPICAL_SCAN),
    ) -> None:
        self._subjects, self._n_components = CutScans(subjects, longest), n_components
        self._room = reserve(len(subjects), longest, n_components)
        self._clip_g, self._clip_h = clip_g, clip_h
        self._projection = b""
        self._packed: PackedSubjects | None = None

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors for a stage; reject public values that do not belong to the method."""
        if stage == PCA:
            return subject_moments(map(within_unit_ball, self._subjects))
        r = self._n_components
        public = read_arrays(state, W=(r, r), b=(r,))
        gradients = partial(
            subject_gradients, W=public["W"], b=public["b"], clip_g=self._clip_g, clip_h=self._clip_h
        )
        return map(gradients, self._reduced(published).parts())

    def _reduced(self, published: bytes) -> PackedSubjects:
        """Project the subjects, once for every published projection."""
        if self._packed is None or self._projection != published:
            V = unpack(published).get("V", np.empty(0))
            if V.ndim != 2 or V.shape[1] != self._n_components:
                raise ProtocolError(f"the published projection must have {self._n_components} columns")
            project = partial(reduce, V=V.astype(np.float32))
            longest, width = self._subjects.longest, self._n_components
            self._packed = PackedSubjects.computed(project, self._subjects, self._room, longest, width)
            self._projection = published
        return self._packed


def reduce(subject: Scan, V: NDArray[np.float32]) -> NDArray[np.float32]:
    """Project a subject onto R directions and scale it to a mean squared norm of R."""
    with np.errstate(all="ignore"):
        reduced = within_unit_ball(subject) @ V
        power = np.einsum("ij,ij->i", reduced, reduced, dtype=np.float64)
        size = np.sqrt(np.mean(power)) if len(power) else 0.0
        return reduced * np.float32(np.sqrt(V.shape[1]) / size) if size > 0 else reduced
