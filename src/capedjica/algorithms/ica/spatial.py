r"""Spatial group ICA from one private mean: the common subspace, then rotation of the published maps.

Group ICA as in GIFT, MELODIC and CanICA searches for maps that are independent over *space*. It requires only
the R-dimensional subspace that the subjects have in common; the most independent maps within it are then
determined by the published subspace alone. The whole budget is therefore spent on one release:

1. *Subspace.* The mean of the projectors onto every subject's own R leading directions
   (:class:`capedjica.algorithms.ica.subject_level.ProjectorSite`), whose noise is known.
2. *Denoising*, without cost (:func:`smooth_subspace`): maps are smooth, and the noise is not.
3. *Rotation*, without cost (:func:`independent_rotation`): FastICA of the maps over features.

Unlike joint ICA (:mod:`capedjica.algorithms.ica.subject_level`), it does not use or describe time courses:
only joint ICA can separate overlapping maps whose time courses are independent. ``python -m
benchmarks.utility spatial`` compares it with CanICA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import scipy

from capedjica.algorithms.analysis import Means, Progress, ReleasedMean
from capedjica.algorithms.ica.maps.calibration import SPATIAL, calibrated
from capedjica.algorithms.ica.maps.component_number import ComponentNumber, component_number
from capedjica.algorithms.ica.maps.denoising import NEIGHBOURS, averaged
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.algorithms.ica.scan_length import check_scan_length, longest_scan
from capedjica.algorithms.ica.subject_level import DRAWS, ProjectorSite, redrawn
from capedjica.algorithms.ica.varimax_start import nearest_rotation
from capedjica.algorithms.parallel import InParallel, one_thread
from capedjica.algorithms.pca import PSD_SPREAD, leading_subspace
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Query, Stage
from capedjica.tools.arrays import FloatArray, Scan

STARTS: Final = 4
MAX_ITERATIONS: Final = 300
TOLERANCE: Final = 1e-6
# E[log cosh] of a standard normal variable.
GAUSSIAN: Final = 0.374567


@dataclass(frozen=True, eq=False)
class SpatialMethod:
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
    basis : array (K, D), optional
        A public basis with orthonormal rows, the smoothest first
        (:func:`capedjica.algorithms.ica.basis.low_pass_within`), which represents the features by K numbers.
    auto : bool
        Whether R is the maximum number of components, and the estimate has as many as are recoverable
        (:mod:`capedjica.algorithms.ica.maps.component_number`).
    """

    n_features: int
    n_components: int
    scan_length: int
    noise: float = 0.0
    basis: FloatArray | None = None
    auto: bool = False

    def __post_init__(self) -> None:
        check_scan_length(self.scan_length)
        if self.n_kept < self.n_components:
            what = "number of features" if self.basis is None else "size of the basis"
            raise InputError(
                f"n_components must be at most {self.n_kept}, the {what}; got {self.n_components}"
            )

    @property
    def n_kept(self) -> int:
        """Number K of coefficients that represent the features."""
        return self.n_features if self.basis is None else len(self.basis)

    def stages(self) -> tuple[Stage, ...]:
        """Return the single query."""
        return (Stage(Query("subspace", svec_size(self.n_kept), math.sqrt(self.n_components), PSD_SPREAD)),)

    def site(self, subjects: Sequence[Scan]) -> ProjectorSite:
        """Return the statistics of a site."""
        longest = longest_scan(self.scan_length)
        return ProjectorSite(
            subjects, self.n_components, self.basis, longest, exact=self.noise == 0, unshared=self.auto
        )

    def estimate(self, means: Means, progress: Progress | None = None) -> Networks:
        """Request the subspace and rotate its maps; ``progress(unmixing, 1)`` is called at the end."""
        means.mean(0)
        number = component_number(means.released[-1], self.n_components, self.auto)
        return replace(self, n_components=number.kept)._rotated(means.released[-1], number, progress)

    def _rotated(
        self, released: ReleasedMean, number: ComponentNumber, progress: Progress | None
    ) -> Networks:
        with one_thread():
            maps = self._span(released.value, released.noise)
            found = maps @ independent_rotation(maps).T
            unmixing = pseudo_inverse(found)
        if progress is not None:
            progress(unmixing, 1)
        predict = partial(calibrated, constants=SPATIAL)
        told = number if number.auto or released.noise > 0 else None
        # Without noise, another run gives the same maps.
        draws = partial(self.draws, found, released) if released.noise > 0 else lambda: iter([found])
        return Networks(unmixing, draws, number=told, predict=predict)

    def draws(self, found: FloatArray, released: ReleasedMean) -> Iterator[FloatArray]:
        """Yield (D, R) maps that might have resulted with different noise, in the order of ``found``.

        The noise is drawn again and added to the published value (which has its own noise, so the draws vary
        somewhat more than runs would), and the maps are rotated again.
        """

        def draw(number: int) -> FloatArray:
            rng = np.random.default_rng(number)  # input and output are public: nothing needs protection
            maps = self._span(redrawn(released, rng), released.noise)
            return in_order(maps @ independent_rotation(maps).T, found)

        return InParallel(draw, range(DRAWS))

    def _span(self, mean: FloatArray, noise: float) -> FloatArray:
        """Return orthonormal (D, R) maps that span the subspace."""
        if self.basis is None:
            return leading_subspace(mean, self.n_components)
        span: FloatArray = self.basis.T @ smooth_subspace(mean, self.n_components, noise)
        return span


def smooth_subspace(mean: FloatArray, n_components: int, noise: float) -> FloatArray:
    r"""Return the most likely (K, R) subspace of maps that are as smooth as the mean projector indicates.

    The published value is :math:`N = V V' + \sigma G` with G symmetric and normal. If the coefficients of the
    maps in the basis have variances :math:`p_k / R`, the posterior of V is proportional to

    .. math:: \exp\Bigl( \frac{\operatorname{tr} V' N V}{\sigma^2} - \frac R2 \sum_k \frac{|v_k|^2}{p_k}
              \Bigr) ,

    with its maximum at the R leading eigenvectors of
    :math:`N - \frac12 R \sigma^2 \operatorname{diag}(1 / p)`. The diagonal of N has mean p, but with as much
    noise as the rest. The coefficients of the basis are ordered from the smoothest to the finest, so p is
    smooth too, and is averaged over neighbours.

    Parameters
    ----------
    mean : array
        The svec of N.
    n_components : int
        R.
    noise : float
        :math:`\sigma`; with 0 nothing is changed.
    """
    if noise == 0:
        return leading_subspace(mean, n_components)
    moments = unsvec(mean)
    n_neighbours = int(len(moments) * NEIGHBOURS)
    least = noise / math.sqrt(2 * n_neighbours + 1)
    power = np.maximum(averaged(np.diag(moments), n_neighbours), least)
    return leading_subspace(svec(moments - n_components * noise**2 / 2 * np.diag(1 / power)), n_components)


def independent_rotation(maps: FloatArray) -> FloatArray:
    r"""Return the orthogonal (R, R) matrix W of the most independent maps B = A W', best of several starts.

    This is symmetric FastICA (Hyvärinen 1999) with :math:`G = \log\cosh`, over features; the best start has
    the largest :math:`\sum_r (E[G(b_r)] - E[G(\nu)])^2`, :math:`\nu` standard normal. Maps are not centred:
    the mean of a map over the brain is part of it, and a subspace with a constant map is not a special case.

    Parameters
    ----------
    maps : array (D, R)
        A, with orthonormal columns. The starts are the same for all maps, so the result is deterministic.
    """
    rng = np.random.default_rng(0)
    size = maps.shape[1]
    scaled = maps * math.sqrt(len(maps))
    starts = [nearest_rotation(rng.standard_normal((size, size))) for _ in range(STARTS)]
    return max((_climb(scaled, start) for start in starts), key=lambda end: end[0])[1]


def _climb(maps: FloatArray, W: FloatArray) -> tuple[float, FloatArray]:
    """Return the contrast reached from one start, and its location."""
    for _ in range(MAX_ITERATIONS):
        score = np.tanh(maps @ W.T)
        slopes = np.mean(1 - score**2, axis=0)
        last, W = W, nearest_rotation(score.T @ maps / len(maps) - slopes[:, np.newaxis] * W)
        if np.abs(np.abs(np.einsum("ij,ij->i", W, last)) - 1).max() < TOLERANCE:
            break
    heights = np.abs(maps @ W.T)
    # log cosh, without overflow
    contrast = np.mean(heights + np.log1p(np.exp(-2 * heights)), axis=0) - math.log(2)
    return float(np.sum((contrast - GAUSSIAN) ** 2)), W


def in_order(maps: FloatArray, found: FloatArray) -> FloatArray:
    """Return maps (D, R) in the order of the most similar ones among ``found``."""
    likeness = np.abs(found.T @ maps)
    ordered: FloatArray = maps[:, scipy.optimize.linear_sum_assignment(likeness, maximize=True)[1]]
    return ordered
