r"""Joint ICA that starts from a template and departs from it only as far as the data provide evidence.

The statistics are those of the default method (:mod:`capedjica.algorithms.ica.subject_level`) and one more;
the differences are in the queries, the starting point and the use of the means.

1. *Support*, always: how much of each network of the template lies in the subject's own R leading directions,
   :math:`t' P_i t` for the unit map t and the projector :math:`P_i`, minus 1/2; R numbers of at most 1/2
   each. A random direction has R/K; networks of real templates have 0.4 to 0.95 on ABIDE. It costs little,
   and shows at any epsilon which networks the data do not support.
2. *Subspace*, only if its noise is below `QUIET` (determined by K, R and the budget, all public). With E the
   part of the mean projector that leads out of the template's subspace and :math:`\nu` the noise on each of
   its numbers,

   .. math:: f = \Bigl(1 - \frac{(n_E - 2)\,\nu^2}{\lVert E \rVert^2}\Bigr)_+                             (1)

   is the fraction of E that is signal (James and Stein 1961), and 0 unless it is significant in a chi-square
   test at `EVIDENCE`. If it is at least `TAKEN`, the subspace of the data replaces that of the template, and
   networks without support, or that lie mostly outside, are replaced by the most concentrated maps of the
   remainder (:func:`capedjica.algorithms.ica.varimax_start.varimax`); otherwise the template's is kept.
3. *Whitening.* In the template's subspace the log-covariance is that of the template's own time courses,
   which is 0 if they are independent and of equal power: its diagonal and the rest are shrunk separately,
   each by its known noise. In the subspace of the data, the time courses of a wrong template may be nearly
   identical; with A its maps there and A = QH, Q orthogonal and H symmetric, the log-covariance is measured
   after Q, and compared with 2 log H. If the subspace is released, it is measured again after the first
   whitening.
4. *Rotations*, starting from the template's position in white data. In the subspace of the data every mean
   is used in full, with steps that decrease in the second half.

While the template's subspace is kept, log-covariances and rotations are shrunk by (1), with :math:`\nu^2` the
sum of privacy noise and sampling noise, since a template that is as close to these subjects as other similar
subjects would be cannot be improved by them. Rotations without sufficient evidence are stored: W is
unchanged, and the mean of all of them, which has less privacy noise, is tested with the next one. Thus
nothing moves if there is nothing to find. Sampling noise is :math:`2 C^2 / (n M)` on each of n numbers, with
C the clip and M the number of subjects.

If even rotations would be dominated by noise (`AUDIBLE`), the whole budget is used for the support, and the
networks are those of the template.

Shares, clips, `QUIET`, `TAKEN`, `MOSTLY` and the number of rotations were chosen on ABIDE, with USM, UCLA_1
and UM_1 as the public sites (docs/development/research-notes.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from capedjica.algorithms.analysis import Means, Progress, ReleasedMean
from capedjica.algorithms.ica.maps.calibration import between_runs, of_guided
from capedjica.algorithms.ica.maps.networks import Networks, pseudo_inverse
from capedjica.algorithms.ica.maps.template_shift import LEVEL, Movement
from capedjica.algorithms.ica.rotation_steps import angle_errors
from capedjica.algorithms.ica.scan_length import check_scan_length, longest_scan
from capedjica.algorithms.ica.subject_level import (
    COARSE,
    DRAWS,
    FINE,
    FLOOR,
    QUIET_FLOOR,
    QUIET_ROTATIONS,
    ROTATION,
    SMALLEST_ANGLE,
    SUBSPACE,
    SubjectSite,
    centred,
    coarse_clip,
    fine_clip,
    projector,
    redrawn,
    rotate,
    rotation_clip,
    step_length,
)
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.varimax_start import nearest_rotation, varimax
from capedjica.algorithms.parallel import InParallel, one_thread
from capedjica.algorithms.pca import PSD_SPREAD, leading_subspace
from capedjica.algorithms.state import pack
from capedjica.algorithms.svec import svec_size, unsvec
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Query, Stage
from capedjica.tools.arrays import FloatArray, Scan

SUPPORT: Final = 4
# Queries and their shares of the budget: if rotations are too noisy to be useful, if the subspace is, and if
# neither is.
DEAF_PLAN: Final = {SUPPORT: 1.0}
LOUD_PLAN: Final = {SUPPORT: 0.08, COARSE: 0.12, ROTATION: 0.80}
QUIET_PLAN: Final = {SUPPORT: 0.08, SUBSPACE: 0.30, COARSE: 0.12, FINE: 0.08, ROTATION: 0.42}
# Norm of the noise on a rotation, in units of its clip, up to which rotations are requested: on ABIDE the
# mean of a good template has 0.11.
AUDIBLE: Final = 0.25
# Largest eigenvalue of the noise on the mean projector up to which it is requested: at 0.16 a good template
# loses nothing by it on ABIDE, at 0.25 what it would have gained from rotations.
QUIET: Final = 0.2
# Fraction of signal, in what leads out of the template's subspace, that is required to leave it.
TAKEN: Final = 0.25
# Probability of moving by one mean of pure noise; some ten means are tested in a study.
EVIDENCE: Final = 0.005
# Between a random direction (0) and one common to all subjects (1): below this, a network has no support.
LEAST_SUPPORT: Final = 0.11
# Fraction of a map that must lie in the subspace of the data for its network to be estimated there.
MOSTLY: Final = 0.5
# Number of rotations, relative to the noise of one with their whole budget, and its range: if the subspace is
# requested, and if it is the template's.
QUIET_COUNT: Final = (0.04, 4, 24)
LOUD_COUNT: Final = (0.015, 1, 16)
# Response of the mean to an angle, for the prediction of stability.
RESPONSE: Final = 0.2
# Divisor of a mean for one of many steps: above half of its response to an angle on synthetic data, 0.35.
STIFFNESS: Final = 0.2
# Limit on the power of time courses of maps that are nearly linear combinations of others in the subspace.
WORST_FRAME: Final = 30.0
# Subjects may differ more in some networks than in others: sampling noise is multiplied by this factor.
UNEVEN: Final = 2.0


def support_clip(n_networks: int) -> float:
    """Return the clip of a subject's support: 0.8 of the maximum."""
    return 0.4 * math.sqrt(n_networks)


@dataclass(frozen=True, eq=False)
class GuidedMethod:
    """The method with its public parameters.

    Parameters
    ----------
    template : Template
        Starting point.
    scan_length : int
        Planned number of time points of a typical scan.
    noise : float
        Standard deviation of the noise on each coordinate of a mean of vectors of norm at most 1, if the
        whole budget were spent on one release; 0 without noise.
    max_rotations : int, optional
        Number of iterations J; by default chosen for the noise level.
    basis : array (K, D), optional
        A public basis with orthonormal rows, which represents the features by K numbers.
    asked : dict, optional
        Queries and their shares of the budget; by default chosen for the noise level.
    """

    template: Template
    scan_length: int
    noise: float = 0.0
    max_rotations: int | None = None
    basis: FloatArray | None = None
    asked: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        if check_scan_length(self.scan_length) < self.n_components:
            raise InputError(
                f"the template has {self.n_components} networks, but scan_length is {self.scan_length}; "
                "a scan needs at least as many time points as there are networks"
            )
        self.template.check_kept(self.basis)

    @property
    def n_features(self) -> int:
        """Number of features D."""
        return self.template.n_features

    @property
    def n_components(self) -> int:
        """Number of networks R."""
        return self.template.n_networks

    @property
    def n_kept(self) -> int:
        """Number K of coefficients that represent the features."""
        return self.n_features if self.basis is None else len(self.basis)

    @cached_property
    def plan(self) -> Mapping[int, float]:
        """Queries and their shares of the budget (of mu^2)."""
        if self.asked is not None:
            return self.asked
        r = self.n_components
        if self.noise * math.sqrt(r * (r - 1) / 2 / LOUD_PLAN[ROTATION]) > AUDIBLE:
            return DEAF_PLAN
        eigenvalue = self.noise * math.sqrt(r * self.n_kept / QUIET_PLAN[SUBSPACE]) / 2
        return QUIET_PLAN if eigenvalue <= QUIET else LOUD_PLAN

    @cached_property
    def _queries(self) -> dict[int, Query]:
        r, length = self.n_components, self.scan_length
        coarse = coarse_clip(r) if self.noise > 0 else -math.log(QUIET_FLOOR) * math.sqrt(r)
        return {
            SUPPORT: Query("support of the template", r, support_clip(r)),
            SUBSPACE: Query("subspace", svec_size(self.n_kept), math.sqrt(r), PSD_SPREAD),
            COARSE: Query("log-covariance", svec_size(r), coarse),
            FINE: Query("log-covariance, whitened", svec_size(r), fine_clip(r, length)),
            ROTATION: Query("rotation", r * (r - 1) // 2, rotation_clip(r, length)),
        }

    @cached_property
    def n_rotations(self) -> int:
        """Number of rotations J."""
        if ROTATION not in self.plan:
            return 0
        if self.max_rotations is not None:
            return self.max_rotations
        noise = self.noise * self._queries[ROTATION].clip / self.plan[ROTATION] ** 0.5
        per_noise, fewest, most = QUIET_COUNT if SUBSPACE in self.plan else LOUD_COUNT
        return max(fewest, round(min(per_noise / noise, most))) if noise else QUIET_ROTATIONS

    def stages(self) -> tuple[Stage, ...]:
        """Return all queries of the method."""
        return tuple(
            Stage(self._queries[kind], self.n_rotations if kind == ROTATION else 1, share)
            for kind, share in self.plan.items()
        )

    def site(self, subjects: Sequence[Scan]) -> GuidedSite:
        """Return the statistics of a site."""
        longest = longest_scan(self.scan_length)
        return GuidedSite(subjects, tuple(self.plan), self._poles, self.basis, longest, self.noise == 0)

    @cached_property
    def _poles(self) -> FloatArray:
        """The maps of the template in the K coefficients (R, K), with unit norm."""
        maps = self.template.maps if self.basis is None else self.template.maps @ self.basis.T
        unit: FloatArray = maps / np.linalg.norm(maps, axis=1, keepdims=True)
        return unit

    @property
    def least_support(self) -> float:
        """Support below which a network is not considered part of these data."""
        at_random = self.n_components / self.n_kept
        return at_random + LEAST_SUPPORT * (1 - at_random)

    def estimate(self, means: Means, progress: Progress | None = None) -> Networks:
        """Run the method; ``progress(unmixing, iteration)`` is called after each rotation."""
        asked = _Asked(means, tuple(self.plan))
        with one_thread():
            support = asked.mean(SUPPORT)
            support = replace(support, value=support.value + 0.5)
            if ROTATION not in self.plan:
                return self._unmoved(support)
            outside = self._outside(asked.mean(SUBSPACE)) if SUBSPACE in self.plan else None
            V = self._template_subspace if outside is None else outside.subspace
            taken = outside is not None and outside.taken
            inside = self._inside(V, support.value, taken=taken)
            frame = nearest_rotation(inside) if taken else pseudo_inverse(inside).T
            before, sphering = self._whitening(asked, V, frame, inside, taken=taken)
            means.publish(pack(V=V, sphering=sphering))
            turned = begun = _Turned(start(inside, sphering) if taken else np.eye(self.n_components))
            for turned in self._rotations(asked, begun, shrunk=not taken):
                if progress is not None:
                    progress(self._unmixing(V, sphering, turned.W), len(turned.means))
            unmixing = self._unmixing(V, sphering, turned.W)
            draws = list(self._draws(asked.released, V, inside, before, turned, outside))
            movements = self._movements(unmixing, draws, support, turned, outside)
        return Networks(
            unmixing,
            lambda: iter(draws),
            self.template,
            movements,
            # The method already uses the template as a prior; without feature positions no more is known.
            denoises=self.noise > 0 and self.basis is not None,
            basis=self.basis,
            predict=of_guided if self.noise > 0 else between_runs,
            n_iter=len(turned.means),
        )

    def _unmoved(self, support: ReleasedMean) -> Networks:
        """Return the template's own networks, with their support."""
        maps = self.template.maps.T
        movements = tuple(
            Movement(name, 0.0, 0.0, 1.0, False, float(shown), support.noise, self.least_support)
            for name, shown in zip(self.template.names, support.value, strict=True)
        )
        return Networks(pseudo_inverse(maps), lambda: iter([maps]), self.template, movements, n_iter=0)

    @cached_property
    def _template_subspace(self) -> FloatArray:
        return np.linalg.qr(self._poles.T)[0]

    def _outside(self, released: ReleasedMean) -> _Outside:
        """Decide by equation (1) whether the subspace of the data replaces that of the template."""
        own = self._template_subspace
        mean, noise = unsvec(released.value), released.noise / math.sqrt(2)
        leading_out = mean @ self._poles.T
        leading_out -= own @ (own.T @ leading_out)
        block = mean @ own - own @ (own.T @ mean @ own)
        n_out = (self.n_kept - self.n_components) * self.n_components
        signal = signal_part(float(np.sum(block**2)), n_out, noise)
        taken = signal >= TAKEN
        subspace = leading_subspace(released.value, self.n_components) if taken else own
        return _Outside(subspace, taken, np.sum(leading_out**2, axis=0), noise, released.n_people)

    def _inside(self, V: FloatArray, support: FloatArray, *, taken: bool) -> FloatArray:
        """Return the template's maps in a subspace, as the columns of an invertible (R, R) matrix.

        In a subspace of the data, networks without support or outside it are replaced by concentrated maps of
        the remainder.
        """
        inside = V.T @ self._poles.T
        if not taken:
            return inside
        lost = (support < self.least_support) | (np.sum(inside**2, axis=0) < MOSTLY)
        if lost.any():
            n_known = int(np.sum(~lost))
            rest = np.linalg.qr(inside[:, ~lost], mode="complete")[0][:, n_known:]
            inside[:, lost] = rest @ varimax(self._in_features(V @ rest)).T
        left, singular, right = np.linalg.svd(inside)
        guarded: FloatArray = (left * np.maximum(singular, singular[0] / WORST_FRAME)) @ right
        return guarded

    def _whitening(
        self, asked: _Asked, V: FloatArray, frame: FloatArray, inside: FloatArray, *, taken: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return the spherings before and after the last whitening."""
        before = sphering = frame
        for kind in (COARSE, FINE):
            if kind in self.plan:
                asked.publish(pack(V=V, sphering=sphering))
                released = asked.mean(kind)
                before, sphering = sphering, self._whitened(sphering, released, kind, inside, taken=taken)
        return before, sphering

    def _whitened(
        self, sphering: FloatArray, released: ReleasedMean, kind: int, inside: FloatArray, *, taken: bool
    ) -> FloatArray:
        """Return the sphering that whitens data with the released log-covariance, closest to the previous."""
        known = unsvec(released.value)
        if not taken and self.noise > 0:
            known = without_observation_noise(known, sphering)
        if kind == COARSE:
            expected = template_log_covariance(sphering.T @ inside)
            known = expected + shrunk_apart(known - expected, self._spread(kind, released))
        elif not taken:
            known = shrunk_apart(known, self._spread(kind, released))
        values, vectors = np.linalg.eigh(known)
        most = -math.log(FLOOR if self.noise > 0 else QUIET_FLOOR)
        factors = np.exp(-np.clip(values, -most, most) / 2)
        white: FloatArray = sphering @ (vectors * factors) @ vectors.T
        return white

    def _rotations(self, asked: _Asked, turned: _Turned, *, shrunk: bool) -> Iterator[_Turned]:
        """Yield W after each rotation; without noise, stop at convergence."""
        stiffness = stiffness_of(self.n_rotations)
        for iteration in range(1, self.n_rotations + 1):
            released = asked.mean(ROTATION, pack(W=turned.W))
            if turned.means and overshot(turned.means[-1], released):
                stiffness *= 2
            turned = turned.heard(released, step_length(iteration, self.n_rotations) / stiffness)
            mean, kept = turned.unused_mean, 1.0
            if shrunk:
                noise = self._spread(ROTATION, released, len(turned.waiting))
                kept = signal_part(float(np.sum(mean**2)), mean.size, noise)
            last, turned = turned, turned.turned_by(kept) if kept > 0 else turned
            yield turned
            if self.noise == 0 and np.abs(sum(last.waiting) * mean).max() < SMALLEST_ANGLE:
                return

    def _spread(self, kind: int, released: ReleasedMean, count: int = 1) -> float:
        """Return the privacy and sampling noise on each number of a mean of ``count`` releases.

        All releases have the same subjects. Without privacy nothing is shrunk.
        """
        if released.noise == 0:
            return 0.0
        query = self._queries[kind]
        return math.sqrt(released.noise**2 / count + _sampling(query.clip, query.size, released.n_people))

    def _unmixing(self, V: FloatArray, sphering: FloatArray, W: FloatArray) -> FloatArray:
        return W @ self._in_features(V @ sphering).T

    def _in_features(self, inside: FloatArray) -> FloatArray:
        """Convert columns of K coefficients to columns of D features."""
        return inside if self.basis is None else self.basis.T @ inside

    def _draws(
        self,
        released: dict[int, ReleasedMean],
        V: FloatArray,
        inside: FloatArray,
        before: FloatArray,
        turned: _Turned,
        outside: _Outside | None,
    ) -> Iterator[FloatArray]:
        """Yield (K, R) coefficients of mixing matrices that might have resulted with different noise.

        As :meth:`capedjica.algorithms.ica.subject_level.SubjectMethod.draws`, from what was published; the
        start is the template, which has no noise.
        """
        last = FINE if FINE in released else COARSE
        taken = outside is not None and outside.taken
        _, spread = angle_errors([one.noise for one in turned.means], turned.all_turns, RESPONSE)
        # Noise drawn again and added to the published value doubles its variance.
        noise = math.sqrt(2) * released[last].noise

        def draw(number: int) -> FloatArray:
            rng = np.random.default_rng(number)  # input and output are public: nothing needs protection
            again = replace(released[last], value=redrawn(released[last], rng), noise=noise)
            other = self._whitened(before, again, last, inside, taken=taken)
            angles = spread * rng.standard_normal(self.n_components * (self.n_components - 1) // 2)
            mixing = V @ np.linalg.inv(other).T @ rotate(turned.W, angles).T
            if taken:
                elsewhere = leading_subspace(redrawn(released[SUBSPACE], rng), self.n_components)
                mixing = elsewhere @ (elsewhere.T @ mixing)
            return mixing

        return InParallel(draw, range(DRAWS))

    def _movements(
        self,
        unmixing: FloatArray,
        draws: Sequence[FloatArray],
        support: ReleasedMean,
        turned: _Turned,
        outside: _Outside | None,
    ) -> tuple[Movement, ...]:
        """Return the distance of each network from the template, and whether noise explains it."""
        # Parts of the template outside the basis do not count as distance.
        maps = self._in_features(self._poles.T)
        distances = across(pseudo_inverse(unmixing), maps)
        # Draws contain the noise of the published values once more.
        squares = np.mean([across(self._in_features(draw), maps) ** 2 for draw in draws], axis=0)
        excess = np.sqrt(np.maximum(squares - distances**2, 0.0))
        energy, n_numbers = self._evidence(turned, outside)
        moved = scipy.stats.chi2.sf(energy, n_numbers) < LEVEL / self.n_components
        return tuple(
            Movement(
                name,
                float(distance),
                float(noise),
                1.0,
                bool(far),
                float(shown),
                support.noise,
                self.least_support,
            )
            for name, distance, noise, far, shown in zip(
                self.template.names, distances, excess, moved, support.value, strict=True
            )
        )

    def _evidence(self, turned: _Turned, outside: _Outside | None) -> tuple[FloatArray, int]:
        r"""Return chi-squares of quantities that vanish at the template, one per network, and their df.

        These are the mean of all rotation statistics, which decreases as W moves and thus does not overstate
        the evidence, and the part of the mean projector that leads out of the template's subspace. Each
        number has privacy noise and sampling noise: for M subjects whose vectors of n numbers have norms of
        at most C, :math:`C^2 / (n M)` on each number, and twice that, since networks differ.
        """
        r = self.n_components
        mean = np.mean([one.value for one in turned.means], axis=0)
        matrix = np.zeros((r, r))
        matrix[np.triu_indices(r, 1)] = mean
        energies = np.sum(matrix**2, axis=0) + np.sum(matrix**2, axis=1)
        last = turned.means[-1]
        privacy = float(np.mean([one.noise**2 for one in turned.means])) / len(turned.means)
        sampling = _sampling(self._queries[ROTATION].clip, mean.size, last.n_people)
        chi = energies / max(privacy + sampling, np.finfo(float).tiny)
        if outside is None or self.n_kept == r:
            return chi, r - 1
        n_out = self.n_kept - r
        sampling = _sampling(math.sqrt(r) / 2, n_out * r, outside.n_people)
        return chi + outside.energies / max(outside.noise**2 + sampling, np.finfo(float).tiny), r - 1 + n_out


def template_log_covariance(inside: FloatArray) -> FloatArray:
    """Return log A'A, without its trace, for maps A = QH as columns: 2 log H after Q, 0 for time courses."""
    _, singular, right = np.linalg.svd(inside)
    logarithms = 2 * np.log(singular)
    expected: FloatArray = (right.T * (logarithms - logarithms.mean())) @ right
    return expected


def without_observation_noise(log_covariance: FloatArray, frame: FloatArray) -> FloatArray:
    r"""Return a log-covariance of a template's time courses without the possible effect of observation noise.

    Time courses are :math:`F' x` with a frame F that corrects for overlaps of maps, so noise in the scans
    with variance :math:`s` in every direction adds :math:`s F'F` to their covariance: time courses of
    overlapping networks are correlated, however exact the template is. With :math:`d_i` their powers, this is
    :math:`s (F'F)_{ij} / \sqrt{d_i d_j}` to first order off the diagonal of the logarithm. The part along it,
    if s is positive, contains no information on the maps.
    """
    powers = np.exp(np.diag(log_covariance) / 2)
    pattern = frame.T @ frame / np.outer(powers, powers)
    np.fill_diagonal(pattern, 0.0)
    energy = float(np.sum(pattern**2))
    if energy == 0:
        return log_covariance
    cleared: FloatArray = (
        log_covariance - max(0.0, float(np.sum(log_covariance * pattern)) / energy) * pattern
    )
    return cleared


def start(inside: FloatArray, sphering: FloatArray) -> FloatArray:
    """Return the rotation of white data that is nearest to the template's time courses."""
    rows = np.linalg.inv(inside) @ np.linalg.inv(sphering).T
    return nearest_rotation(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _sampling(clip: float, n_numbers: int, n_people: int) -> float:
    return UNEVEN * clip**2 / (n_numbers * n_people) if n_people else 0.0


def across(mixing: FloatArray, maps: FloatArray) -> FloatArray:
    """Return the norm of the part of each column orthogonal to that of ``maps``, both with unit norm."""
    cosines = np.sum(mixing * maps, axis=0) / np.linalg.norm(mixing, axis=0) / np.linalg.norm(maps, axis=0)
    sines: FloatArray = np.sqrt(np.maximum(1 - cosines**2, 0.0))
    return sines


def signal_part(energy: float, n_numbers: int, noise: float) -> float:
    """Return the fraction of the squared norm of n numbers that noise does not explain, equation (1).

    It is 0 unless pure noise would exceed this energy with a probability of at most `EVIDENCE`.
    """
    if noise == 0:
        return 1.0
    if energy <= float(scipy.stats.chi2.isf(EVIDENCE, n_numbers)) * noise**2:
        return 0.0
    return 1 - max(n_numbers - 2, 0) * noise**2 / energy


def stiffness_of(n_rotations: int) -> float:
    """Return the divisor of a mean for a step; with J rotations, a step is at most J times the mean.

    Long steps overshoot if the data respond strongly, and carry their noise along. Later rotations, if there
    are any, correct this; if there are few, each of them is also noisy.
    """
    return max(STIFFNESS, 1 / n_rotations)


def overshot(before: ReleasedMean, now: ReleasedMean) -> bool:
    """Return whether a mean has reversed; with noise, whether most of the signal has."""
    lengths = float(np.linalg.norm(before.value) * np.linalg.norm(now.value))
    return float(np.sum(before.value * now.value)) < (-0.5 * lengths if now.noise > 0 else 0.0)


def shrunk_apart(log_covariance: FloatArray, noise: float) -> FloatArray:
    """Return a log-covariance whose centred diagonal and off-diagonal are each shrunk by their noise."""
    size = len(log_covariance)
    diagonal = np.diag(log_covariance) - np.trace(log_covariance) / size
    rest = log_covariance - np.diag(np.diag(log_covariance))
    kept = signal_part(float(np.sum(diagonal**2)), size - 1, noise)
    # Off-diagonal numbers occur twice in the matrix, each with half of the noise variance.
    kept_rest = signal_part(float(np.sum(rest**2)), size * (size - 1) // 2, noise)
    shrunk: FloatArray = np.diag(kept * diagonal) + kept_rest * rest
    return shrunk


@dataclass(frozen=True, eq=False)
class _Outside:
    """Relation of the mean projector to the template's subspace."""

    subspace: FloatArray
    taken: bool
    energies: FloatArray
    noise: float
    n_people: int


@dataclass(frozen=True, eq=False)
class _Turned:
    """Current state of the rotations.

    Attributes
    ----------
    W : array (R, R)
        The rotation.
    turns : tuple of float
        Rotation per unit of a mean, for the means that were used.
    means : tuple of ReleasedMean
        The means of all rotations so far.
    waiting : tuple of float
        Full rotations of the last means, whose evidence has not sufficed yet.
    """

    W: FloatArray
    turns: tuple[float, ...] = ()
    means: tuple[ReleasedMean, ...] = ()
    waiting: tuple[float, ...] = ()

    @property
    def unused_mean(self) -> FloatArray:
        """Mean of the pending means, all of which were measured at the same W."""
        mean: FloatArray = np.mean([one.value for one in self.means[-len(self.waiting) :]], axis=0)
        return mean

    @property
    def all_turns(self) -> tuple[float, ...]:
        """Rotations of all means, 0 for those never used."""
        return (*self.turns, *[0.0] * len(self.waiting))

    def heard(self, released: ReleasedMean, turn: float) -> _Turned:
        """Return the same W with one more mean."""
        return replace(self, means=(*self.means, released), waiting=(*self.waiting, turn))

    def turned_by(self, kept: float) -> _Turned:
        """Rotate by the fraction ``kept`` of all pending means."""
        total = kept * sum(self.waiting)
        each = [total / len(self.waiting)] * len(self.waiting)
        return _Turned(rotate(self.W, total * self.unused_mean), (*self.turns, *each), self.means)


class _Asked:
    """Means by kind of statistic; released means are stored."""

    def __init__(self, means: Means, kinds: tuple[int, ...]) -> None:
        self._means, self._kinds = means, kinds
        self.publish = means.publish
        self.released: dict[int, ReleasedMean] = {}

    def mean(self, kind: int, state: bytes = b"") -> ReleasedMean:
        """Return the mean of a statistic, with its noise."""
        self._means.mean(self._kinds.index(kind), state)
        self.released[kind] = self._means.released[-1]
        return self.released[kind]


class GuidedSite(SubjectSite):
    """Statistics of a site: those of the default method, and the support.

    Parameters
    ----------
    subjects, basis, longest, exact
        See :class:`capedjica.algorithms.ica.subject_level.SubjectSite`.
    kinds : tuple of int
        Kind of statistic of each stage.
    poles : array (R, K)
        The maps of the template, with unit norm.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        kinds: tuple[int, ...],
        poles: FloatArray,
        basis: FloatArray | None,
        longest: int,
        exact: bool,
    ) -> None:
        super().__init__(subjects, len(poles), basis, longest, exact)
        self._kinds, self._poles = kinds, poles

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        """Return the subjects' vectors for a stage."""
        kind = self._kinds[stage]
        if kind == SUPPORT:
            return InParallel(self._support, self._subjects)
        return super().__call__(kind, published, state)

    def _support(self, subject: Scan) -> FloatArray:
        """Return the fraction of each map in a subject's directions, minus 1/2; zeros if there are none."""
        with np.errstate(all="ignore"):
            own = projector(self._coefficients(centred(subject)), self._n_components, self._exact)
            if not own.any():
                return np.zeros((1, self._n_components))
            shown: NDArray[np.float64] = np.einsum("rk,rk->r", self._poles @ own, self._poles) - 0.5
            return shown[np.newaxis]
