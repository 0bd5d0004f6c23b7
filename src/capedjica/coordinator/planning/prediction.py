r"""How good the maps of a planned study will be: predicted by simulation, from public quantities alone.

The method's own code analyses simulated subjects (:mod:`capedjica.data.simulated.synthetic`), and the means
it asks for get Gaussian noise of exactly the standard deviation that each release of the plan will have
(:mod:`capedjica.study.planned_releases`). No scan is looked at, so a prediction costs no privacy, and it
follows the method when that changes. Three things make it quick.

**Fewer subjects.** The noise of a mean is planned, whatever the number of subjects; what changes with fewer
of them is the sampling error, :math:`\sqrt{M/m}` times that of the study when m stand for M. An index of
errors adds independent ones in squares, so with :math:`q_0` that of the same subjects without noise

.. math:: \hat q^2 = \max\bigl(q^2 - (1 - m/M)\, q_0^2,\; (m/M)\, q_0^2\bigr)                             (1)

(:math:`q_0` is the median over the repetitions: without noise an analysis may by chance come to rest with two
networks exchanged in part). The correlation of the maps is left as it is, too low by what few subjects cost.

**Smaller images.** Maps of networks are compact, so what an image of D pixels adds, beyond a few pixels per
network, is noise in the first stage. Noise of standard deviation :math:`\sigma` on the svec of a mean
projector turns the subspace out of its place by :math:`E = V_\perp' N V`, a (K - R, R) matrix of independent
numbers of variance :math:`\sigma^2/2`. What is lost inside is :math:`1 - E'E/2`, of mean
:math:`1 - \sigma^2 (K - R)/4`: the same when :math:`\sigma` is multiplied by
:math:`\sqrt{(K - R)/(K' - R)}` for K' numbers in place of K.

**Few repetitions**, each with maps and subjects of its own: the median is shown, and the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.networks import pseudo_inverse
from capedjica.algorithms.ica.subject_level import SUBSPACE, SubjectMethod
from capedjica.algorithms.parallel import one_thread
from capedjica.data.simulated.synthetic import SyntheticStudy, make_synthetic
from capedjica.errors import InputError
from capedjica.metrics import matched_map_correlation, normalized_gain_index
from capedjica.study.planned_releases import planned_releases
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray

CAVEAT: Final = (
    "Predicted on simulated data of compact, independent networks, as the paper's. Real data are harder: on "
    "ABIDE (1,017 people, 20 components) the gain index against a pooled analysis was about 0.15 at epsilon "
    "3, 0.11 at 5 and 0.09 at 10. No scan was looked at, so a prediction costs no privacy."
)
# Budgets that are predicted, against the planned one.
FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
REPETITIONS: Final = 3
# The paper calls an estimate usable up to this gain index.
USABLE: Final = 0.1
# Gain index and map correlation at worst.
NOTHING_FOUND: Final = (1.0, 0.0)
MOST_SUBJECTS: Final = 128
FEWEST_SUBJECTS: Final = 16
# Numbers of all simulated scans together, 256 MB in single precision, unless so few subjects are too large.
MOST_NUMBERS: Final = 2**26
LARGEST_SIDE: Final = 30
# Pixels of a side for each network along it: fewer would not show the maps, more would show no more of them.
FEWEST_PIXELS: Final = 2
FEWEST_PIXELS_IN_BASIS: Final = 3
ENOUGH_PIXELS: Final = 6
MOST_COMPONENTS: Final = 100
LONGEST_SIMULATED: Final = 4096


@dataclass(frozen=True)
class PredictedQuality:
    """What is predicted at one budget: medians over the repetitions, and the least and the most of them.

    ``epsilon`` is the guarantee, the largest budget of a site.
    """

    epsilon: float
    planned: bool
    gain_index: float
    gain_index_range: tuple[float, float]
    map_correlation: float
    map_correlation_range: tuple[float, float]


@dataclass(frozen=True)
class Prediction:
    """What is predicted at some budgets, in rising order; ``epsilon`` is infinite without privacy.

    In each of ``repetitions``, ``simulated_subjects`` stood for the ``subjects`` that take part, images of
    ``image_side`` x ``image_side`` pixels for the features; ``subspace_noise_factor`` made up for their size.
    """

    qualities: list[PredictedQuality]
    subjects: int
    simulated_subjects: int
    image_side: int
    subspace_noise_factor: float
    repetitions: int

    @property
    def planned(self) -> PredictedQuality:
        """The planned study."""
        return next(quality for quality in self.qualities if quality.planned)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON; null for an infinite epsilon."""
        result = asdict(self) | {"usable_below": USABLE, "caveat": CAVEAT}
        for quality in result["qualities"]:
            quality["epsilon"] = quality["epsilon"] if math.isfinite(quality["epsilon"]) else None
        return result


# What is simulated


@dataclass(frozen=True, eq=False)
class Simulated:
    """A study as it is simulated: the method, and the noise of each stage's means."""

    method: SubjectMethod
    noise: tuple[float, ...]

    @property
    def without_noise(self) -> Simulated:
        """The same method without noise."""
        return Simulated(replace(self.method, noise=0.0, max_rotations=None), (0.0,) * len(self.noise))


@dataclass(frozen=True, eq=False)
class Setup:
    """What a study is simulated with."""

    n_subjects: int
    n_components: int
    scan_length: int
    image_side: int
    n_planned: int

    @classmethod
    def of(cls, study: Study) -> Setup:
        """Choose the numbers for a study; refuse one whose simulation would take too long."""
        method = _subject_method(study)
        for key, most in {"n_components": MOST_COMPONENTS, "scan_length": LONGEST_SIMULATED}.items():
            if getattr(method, key) > most:
                raise InputError(f"a prediction is for {key} of at most {most}, got {getattr(method, key)}")
        side = image_side(method)
        n_planned = sum(study.contract.participants.values())
        affordable = max(FEWEST_SUBJECTS, MOST_NUMBERS // (side**2 * method.scan_length))
        n_subjects = min(n_planned, MOST_SUBJECTS, affordable)
        return cls(n_subjects, method.n_components, method.scan_length, side, n_planned)

    def data(self, seed: int) -> SyntheticStudy:
        """Make maps and subjects."""
        return make_synthetic(1, self.n_subjects, self.n_components, self.scan_length, self.image_side, seed)

    def simulated(self, study: Study) -> Simulated:
        """Return a study as it is simulated on images of this size."""
        planned, side = _subject_method(study), self.image_side
        method = replace(
            planned,
            n_features=side**2,
            max_rotations=planned.n_rotations,
            basis=None if planned.basis is None else low_pass((side, side)),
        )
        noise = [release.output_std for release in planned_releases(study.contract)]
        noise[SUBSPACE] *= subspace_noise_factor(planned, method)
        return Simulated(method, tuple(noise))


def _subject_method(study: Study) -> SubjectMethod:
    if not isinstance(study.analysis, SubjectMethod):
        kinds = ", ".join(getattr(step.table, "method", step.table.kind) for step in study.steps)
        raise InputError(f"only method 'subject' alone can be predicted, the plan has '{kinds}'")
    return study.analysis


def image_side(method: SubjectMethod) -> int:
    """Return the side of a square image of about the features, within what is of use and quick."""
    along, in_basis = math.ceil(math.sqrt(method.n_components)), method.basis is not None
    fewest = along * (FEWEST_PIXELS_IN_BASIS if in_basis else FEWEST_PIXELS)
    most = max(LARGEST_SIDE, along * ENOUGH_PIXELS) if in_basis else LARGEST_SIDE
    return min(max(round(math.sqrt(method.n_features)), fewest), most)


def subspace_noise_factor(planned: SubjectMethod, simulated: SubjectMethod) -> float:
    """Return by what the noise of the subspace makes up for the numbers that are left out."""
    r = planned.n_components
    return math.sqrt((planned.n_kept - r) / (simulated.n_kept - r))


def with_budget(study: Study, factor: float) -> Study:
    """Return a study whose sites have so many times the budget."""

    def times(epsilon: float | None) -> float | None:
        return None if epsilon is None else factor * epsilon

    content, change = study.content, msgspec.structs.replace
    privacy = change(content.privacy, epsilon=times(content.privacy.epsilon))
    sites = tuple(change(site, epsilon=times(site.epsilon)) for site in content.sites)
    return study.varied(privacy=privacy, sites=sites)


# One analysis


def clipped_mean(batches: Iterable[FloatArray], clip: float) -> FloatArray:
    """Return the mean of rows, each shortened to ``clip``."""
    total, count = np.zeros(1), 0
    for rows in batches:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        total = total + np.sum(rows * (clip / np.maximum(norms, clip)), axis=0)
        count += len(rows)
    return total / count


class SimulatedSubjects:
    """Simulated subjects of known truth, analysed as often as wanted."""

    def __init__(self, data: SyntheticStudy, method: SubjectMethod) -> None:
        self.data, self._stages = data, method.stages()
        self._site = method.site(data.sites[0])

    @cached_property
    def _subspace(self) -> FloatArray:
        """The mean of the first stage, which depends on nothing that was published."""
        return self._mean(SUBSPACE, b"", b"")

    def mean(self, stage: int, published: bytes, state: bytes) -> FloatArray:
        """Return the mean of a stage's vectors, without noise."""
        return self._subspace if stage == SUBSPACE else self._mean(stage, published, state)

    def _mean(self, stage: int, published: bytes, state: bytes) -> FloatArray:
        return clipped_mean(self._site(stage, published, state), self._stages[stage].query.clip)

    def score(self, simulated: Simulated, seed: int) -> tuple[float, float]:
        """Return gain index and map correlation of one analysis; the worst if noise makes it break down."""
        try:
            with np.errstate(divide="raise", over="raise", invalid="raise"):
                found = simulated.method.estimate(NoisyMeans(self, simulated.noise, seed))
        except (FloatingPointError, np.linalg.LinAlgError):
            return NOTHING_FOUND
        mixing, truth = found.mixing, self.data.mixing
        gain_index = normalized_gain_index(pseudo_inverse(mixing) @ truth)
        return gain_index, matched_map_correlation(mixing.T, truth.T)


class NoisyMeans:
    """Means over simulated subjects with the noise of the planned releases; it protects nobody real."""

    def __init__(self, subjects: SimulatedSubjects, noise: tuple[float, ...], seed: int) -> None:
        self._subjects, self._noise = subjects, noise
        self._rng, self._published = np.random.default_rng(seed), b""
        self.released: list[ReleasedMean] = []

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the noisy mean of a stage's query."""
        value = self._subjects.mean(stage, self._published, state)
        noisy: FloatArray = value + self._noise[stage] * self._rng.standard_normal(value.shape)
        return noisy

    def publish(self, data: bytes) -> None:
        """Hand public data to the subjects."""
        self._published = data


# Predictions


def predict(study: Study, progress: Callable[[int], None] | None = None, seed: int = 0) -> Prediction:
    """Predict the quality of a planned study at its budget and some others around it.

    Parameters
    ----------
    study : Study
        Of method "subject".
    progress : callable, optional
        ``progress(total)`` after each of ``total`` analyses.
    seed : int
        Of maps, subjects and noise; predictions from the same seed differ by rounding, which analyses that
        are mostly noise magnify.
    """
    setup, budgets = Setup.of(study), _budgets(study)
    simulated = [setup.simulated(other) for other in budgets.values()]
    analyses = [simulated[0].without_noise, *simulated]
    total = REPETITIONS * len(analyses)
    with one_thread():
        runs = []
        for number in range(seed, seed + REPETITIONS):
            # The same subjects with the same noise, scaled, for each analysis.
            subjects, scores = SimulatedSubjects(setup.data(number), analyses[0].method), []
            for analysis in analyses:
                scores.append(subjects.score(analysis, number))
                if progress is not None:
                    progress(total)
            runs.append(scores)
    gains, correlations = np.moveaxis(np.array(runs), -1, 0)
    gains = as_with_more_subjects(gains[:, 1:], float(np.median(gains[:, 0])), setup)
    largest = max(study.contract.epsilon, default=math.inf)
    return Prediction(
        [
            _quality(factor * largest, factor == 1, gains[:, number], correlations[:, number + 1])
            for number, factor in enumerate(budgets)
        ],
        setup.n_planned,
        setup.n_subjects,
        setup.image_side,
        subspace_noise_factor(_subject_method(study), simulated[0].method),
        REPETITIONS,
    )


def _budgets(study: Study) -> dict[float, Study]:
    """Return the study at every budget at which it can be planned, by the factor to its own."""
    if study.contract.mechanism == "none":
        return {1.0: study}
    others = {factor: with_budget(study, factor) for factor in FACTORS}
    return {factor: other for factor, other in others.items() if not other.problems()}


def as_with_more_subjects(gains: FloatArray, floor: float, setup: Setup) -> FloatArray:
    """Apply equation (1) to gain indices; ``floor`` is that without noise."""
    part = setup.n_subjects / setup.n_planned
    if part == 1:
        return gains
    corrected: FloatArray = np.sqrt(np.maximum(gains**2 - (1 - part) * floor**2, part * floor**2))
    return corrected


def _quality(epsilon: float, planned: bool, gains: FloatArray, correlations: FloatArray) -> PredictedQuality:
    return PredictedQuality(
        epsilon,
        planned,
        float(np.median(gains)),
        (float(gains.min()), float(gains.max())),
        float(np.median(correlations)),
        (float(correlations.min()), float(correlations.max())),
    )
