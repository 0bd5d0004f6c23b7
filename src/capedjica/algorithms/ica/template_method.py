r"""Networks of a template, adapted to the subjects of a study with at most one release.

The template determines the networks, and dual regression (:mod:`capedjica.algorithms.ica.individual`) gives
their maps in each subject, at that subject's site. The only query to all subjects is how their maps differ
from the template.

**Vector of a subject.** Let t be the map of a network in the template and b that of the subject, by dual
regression on the template's maps, both unchanged except that t has unit norm. The unit of b is that of the
scan, so b is scaled to fit t by least squares:

.. math:: u = \frac{\langle b, t \rangle}{\lVert b \rVert^2}\, b, \qquad v = u - t .                     (1)

u is the projection of t onto the line of b: it does not depend on the unit or the sign of b, and lies on the
sphere that has 0 and t at its poles, so :math:`\lVert v \rVert = \sin\theta \le 1` for the angle
:math:`\theta` between b and t, for any b; for a map unrelated to t, u = 0. One vector contains v of all R
networks, and has a norm of at most :math:`\sqrt R`.

**Interpretation of the mean.** Let :math:`b = a (t + \delta + e)` with a difference :math:`\delta` common to
all subjects and noise e. Then u is about :math:`c\,(t + \delta + e)` with :math:`c = \cos^2\theta`, and the
mean of u is about :math:`c\,(t + \delta)`: it has the right direction, and its length along t gives c. (It is
one step of power iteration from t on the mean over subjects of the projectors onto their maps.) With m the
released mean of v and :math:`q = 1 + \langle m, t \rangle`, the map is therefore

.. math:: t + \frac{s}{q}\,\bigl(m - \langle m, t \rangle\, t\bigr),                                   (2)

where s shrinks the difference according to its noise (:mod:`capedjica.algorithms.ica.maps.template_shift`).

**Clip.** Time courses of T time points leave an error in b with the energy of the noise over T. For R
networks of equal power in noise of four times their power, the energy of e is 4 R / T of that of t,
:math:`\sin^2\theta = 4 R / (T + 4 R)`, and the norm of the vector is

.. math:: C = \frac{2 R}{\sqrt{T + 4 R}} ,                                                              (3)

2.2 at R = 20 and T = 250, half of the largest norm. A subject that differs more is clipped
towards the template.

**Basis.** With a public basis of K smooth maps, v is projected onto it: K numbers instead of D, and less
noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from capedjica.algorithms.analysis import Means, Progress
from capedjica.algorithms.ica.individual import regress, standardise
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.algorithms.ica.maps.template_shift import Movement, movement
from capedjica.algorithms.ica.scan_length import CutScans, check_scan_length, longest_scan
from capedjica.algorithms.ica.subject_level import DRAWS, centred
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.parallel import InParallel, one_thread
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

LABEL: Final = "difference from the template"
# If subjects show less of a network than this, its map in them is unknown, and no difference is scaled up.
LEAST_SHOWN: Final = 0.1


def difference_clip(n_networks: int, scan_length: int) -> float:
    """Return the clip of a subject's difference from the template, equation (3)."""
    return 2 * n_networks / math.sqrt(scan_length + 4 * n_networks)


@dataclass(frozen=True, eq=False)
class TemplateMethod:
    """The method with its public parameters.

    Parameters
    ----------
    template : Template
        The networks.
    scan_length : int
        Planned number of time points of a typical scan.
    noise : float
        Standard deviation of the noise on each coordinate of a mean of vectors of norm at most 1, if the
        whole budget were spent on one release; 0 without noise. The noise stated by a release takes
        precedence.
    group_maps : bool
        Whether the mean difference of all subjects from the template is released; otherwise nothing is
        released, and the result is the template itself.
    basis : array (K, D), optional
        A public basis with orthonormal rows, which represents the features by K numbers.
    """

    template: Template
    scan_length: int
    noise: float = 0.0
    group_maps: bool = True
    basis: FloatArray | None = None

    def __post_init__(self) -> None:
        if check_scan_length(self.scan_length) < self.template.n_networks:
            raise InputError(
                f"the template has {self.template.n_networks} networks, but scan_length is "
                f"{self.scan_length}; a scan needs at least as many time points as there are networks"
            )
        self.template.check_kept(self.basis)

    @cached_property
    def _unit(self) -> FloatArray:
        """The maps of the template (R, D), with unit norm."""
        maps = self.template.maps
        unit: FloatArray = maps / np.linalg.norm(maps, axis=1, keepdims=True)
        return unit

    @cached_property
    def _poles(self) -> FloatArray:
        """The same maps in the K coefficients, (R, K)."""
        return self._unit if self.basis is None else self._unit @ self.basis.T

    @property
    def _clip(self) -> float:
        return difference_clip(self.template.n_networks, self.scan_length)

    def stages(self) -> tuple[Stage, ...]:
        """Return the single query, or none."""
        return (Stage(Query(LABEL, self._poles.size, self._clip)),) if self.group_maps else ()

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the statistics of a site."""
        unmixing = pseudo_inverse(self._unit.T)
        one = partial(difference, unit=self._unit, unmixing=unmixing, basis=self.basis)
        scans = CutScans(subjects, longest_scan(self.scan_length))

        def statistics(stage: int, published: bytes, state: bytes) -> Iterator[FloatArray]:
            return InParallel(one, scans)

        return statistics

    def estimate(self, means: Means, progress: Progress | None = None) -> Networks:
        """Request the mean difference, if released, and return the template shifted by it."""
        if not self.group_maps:
            return Networks(pseudo_inverse(self.template.maps.T), template=self.template)
        mean = means.mean(0).reshape(self._poles.shape)
        noise = means.released[-1].noise if means.released else self.noise * self._clip
        with one_thread():
            along, shown, across = self._apart(mean)
            movements = self._movements(across, shown, noise)
            kept = across * _column([one.shrinkage for one in movements])
            unmixing = pseudo_inverse(self._maps(kept).T)
        # The best estimate of the mean, so that noise is drawn once and not added to its own.
        best = along * self._poles + shown * kept
        # Two runs differ from it and from each other by independent noise.
        return Networks(
            unmixing, lambda: self._draws(best, noise), self.template, movements, predict=np.square
        )

    def _draws(self, best: FloatArray, noise: float) -> Iterator[FloatArray]:
        """Yield (D, R) maps that might have resulted with different noise."""

        def draw(number: int) -> FloatArray:
            rng = np.random.default_rng(number)  # input and output are public: nothing needs protection
            _, shown, across = self._apart(best + noise * rng.standard_normal(best.shape))
            movements = self._movements(across, shown, noise)
            return self._maps(across * _column([one.shrinkage for one in movements])).T

        return InParallel(draw, range(DRAWS))

    def _apart(self, mean: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the part of a mean difference along the template, q, and the part across, scaled by 1/q."""
        poles = self._poles
        # With a basis the norm of the template is below 1; the part along it is unaffected.
        along = _column(np.einsum("rk,rk->r", mean, poles) / np.einsum("rk,rk->r", poles, poles))
        shown = np.maximum(1 + along, LEAST_SHOWN)
        return along, shown, (mean - along * poles) / shown

    def _movements(self, across: FloatArray, shown: FloatArray, noise: float) -> tuple[Movement, ...]:
        networks, numbers = across.shape
        distances = np.linalg.norm(across, axis=1)
        return tuple(
            movement(name, float(distance), noise / float(part), numbers - 1, networks)
            for name, distance, part in zip(self.template.names, distances, shown[:, 0], strict=True)
        )

    def _maps(self, kept: FloatArray) -> FloatArray:
        """Return the maps (R, D) of equation (2)."""
        return self._unit + (kept if self.basis is None else kept @ self.basis)


def _column(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)[:, np.newaxis]


def difference(
    subject: Scan, unit: FloatArray, unmixing: FloatArray, basis: FloatArray | None = None
) -> FloatArray:
    """Return the vector of equation (1) of one subject, as a row; NaN if it cannot be computed.

    A network whose map in the subject is zero everywhere is uninformative, and counts as the template.

    Parameters
    ----------
    subject : array (T, D)
        The scan.
    unit : array (R, D)
        The template's maps with unit norm.
    unmixing : array (R, D)
        The pseudo-inverse of these maps as columns.
    basis : array (K, D), optional
        Basis onto which the difference is projected.
    """
    with np.errstate(all="ignore"):
        # Scaled so that the squares below do not overflow, in any unit of the scan.
        run = centred(subject).astype(np.float64)
        if not len(run) or not np.isfinite(run).all():
            return np.full((1, unit.size if basis is None else len(unit) * len(basis)), np.nan)
        maps = regress(standardise(run @ unmixing.T), run)
        squares = np.einsum("rd,rd->r", maps, maps)[:, np.newaxis]
        along = np.einsum("rd,rd->r", maps, unit)[:, np.newaxis]
        fitted = np.where(squares > 0, maps * (along / squares), unit)
        apart = fitted - unit
        return (apart if basis is None else apart @ basis.T).reshape(1, -1)
