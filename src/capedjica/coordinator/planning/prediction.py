r"""Prediction of map quality for a planned study, by simulation from public quantities only.

The method's own code analyses simulated subjects (:mod:`capedjica.data.simulated.synthetic`). The means it
requests get Gaussian noise with exactly the standard deviation of each release of the plan
(:mod:`capedjica.study.planned_releases`). No scans are read, so a prediction has no privacy cost. Three
simplifications make it fast.

**Fewer subjects.** The noise of a mean is given by the plan, for any number of subjects. With m simulated
subjects in place of M, only the sampling error differs: it is :math:`\sqrt{M/m}` times that of the study.
Independent errors add in squares, so with the gain index :math:`q_0` of the same subjects without noise

.. math:: \hat q^2 = \max\bigl(q^2 - (1 - m/M)\, q_0^2,\; (m/M)\, q_0^2\bigr)                             (1)

(:math:`q_0` is the median over the repetitions: without noise an analysis may by chance converge with two
networks partly mixed). The correlation of the maps is not corrected, so it is too low if fewer subjects were
simulated.

**Smaller images.** Maps of networks are compact, so beyond a few pixels per network, more pixels only add
noise in the first stage. Noise of standard deviation :math:`\sigma` on the svec of a mean projector rotates
the subspace by :math:`E = V_\perp' N V`, a (K - R, R) matrix of independent numbers of variance
:math:`\sigma^2/2`. The part that remains inside is :math:`1 - E'E/2`, of mean :math:`1 - \sigma^2 (K - R)/4`.
This is unchanged for K' numbers in place of K if :math:`\sigma` is multiplied by
:math:`\sqrt{(K - R)/(K' - R)}`.

**Few repetitions**, each with its own maps and subjects: the median and the range are reported.

Methods that start from a template are given one of typical public quality: the true maps, each mixed with
another smooth map so that their correlation is `TEMPLATE_CORRELATION`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, cast

import msgspec
import numpy as np

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.guided import GuidedMethod
from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.ica.template import Template
from capedjica.algorithms.ica.template_method import LABEL as DIFFERENCE
from capedjica.algorithms.ica.template_method import TemplateMethod
from capedjica.algorithms.parallel import one_thread
from capedjica.data.simulated.synthetic import SyntheticStudy, make_synthetic
from capedjica.errors import InputError
from capedjica.metrics import matched_map_correlation, normalized_gain_index
from capedjica.study.planned_releases import planned_releases
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray

CAVEAT: Final = (
    "Predicted on simulated data with compact, independent networks, as in the paper. Real data are harder: "
    "on ABIDE (1,017 participants, 20 components) the gain index against a pooled analysis was about 0.15 at "
    "epsilon 3, 0.11 at 5 and 0.09 at 10. No scans were read, so a prediction has no privacy cost."
)
# Budgets for which a prediction is made, relative to the planned one.
FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
REPETITIONS: Final = 3
# The paper calls an estimate usable up to this gain index.
USABLE: Final = 0.1
# Worst possible gain index and map correlation.
NOTHING_FOUND: Final = (1.0, 0.0)
MOST_SUBJECTS: Final = 128
FEWEST_SUBJECTS: Final = 16
# Numbers in all simulated scans (256 MB in single precision), unless FEWEST_SUBJECTS need more.
MOST_NUMBERS: Final = 2**26
LARGEST_SIDE: Final = 30
# Pixels per network along each side: fewer would not resolve the maps, more would add no detail.
FEWEST_PIXELS: Final = 2
FEWEST_PIXELS_IN_BASIS: Final = 3
ENOUGH_PIXELS: Final = 6
MOST_COMPONENTS: Final = 100
# With the true maps; for templates from other ABIDE participants and a study's networks it is 0.7 to 0.8.
TEMPLATE_CORRELATION: Final = 0.75
# Statistics whose noise grows with the features.
_OF_FEATURES: Final = ("subspace", DIFFERENCE)
LONGEST_SIMULATED: Final = 4096


@dataclass(frozen=True)
class PredictedQuality:
    """Predicted quality at one budget: medians and ranges over the repetitions.

    ``epsilon`` is the guarantee, the largest budget of any site.
    """

    epsilon: float
    planned: bool
    gain_index: float
    gain_index_range: tuple[float, float]
    map_correlation: float
    map_correlation_range: tuple[float, float]


@dataclass(frozen=True)
class Prediction:
    """Predicted quality at several budgets, in increasing order; ``epsilon`` is infinite without privacy.

    In each of ``repetitions``, ``simulated_subjects`` represented the ``subjects`` of the study, and images
    of ``image_side`` x ``image_side`` pixels its features; ``subspace_noise_factor`` corrected for their
    size. ``template_correlation`` is the quality of the template, for methods that start from one.
    """

    qualities: list[PredictedQuality]
    subjects: int
    simulated_subjects: int
    image_side: int
    subspace_noise_factor: float
    repetitions: int
    template_correlation: float | None = None

    @property
    def planned(self) -> PredictedQuality:
        """Predicted quality of the planned study."""
        return next(quality for quality in self.qualities if quality.planned)

    def as_dict(self) -> dict[str, Any]:
        """Return all values in a form suitable for JSON, with null for an infinite epsilon."""
        result = asdict(self) | {"usable_below": USABLE, "caveat": CAVEAT}
        for quality in result["qualities"]:
            quality["epsilon"] = quality["epsilon"] if math.isfinite(quality["epsilon"]) else None
        return result


# Simulation


Predictable = SubjectMethod | GuidedMethod | TemplateMethod | SpatialMethod


@dataclass(frozen=True, eq=False)
class Simulated:
    """A simulated study: the method, and the noise of each stage's means."""

    method: Predictable
    noise: tuple[float, ...]

    @property
    def without_noise(self) -> Simulated:
        """The same method without noise."""
        method = replace(self.method, noise=0.0)
        if isinstance(method, SubjectMethod | GuidedMethod):
            method = replace(method, max_rotations=None)
        if isinstance(method, GuidedMethod):
            method = replace(method, asked=None)
        return Simulated(method, (0.0,) * len(method.stages()))

    def on(self, data: SyntheticStudy) -> Simulated:
        """Return the same study with a template close to the true maps, if the method starts from one."""
        if not isinstance(self.method, GuidedMethod | TemplateMethod):
            return self
        return replace(self, method=replace(self.method, template=near(data.mixing.T)))


def near(maps: FloatArray) -> Template:
    """Return a template from maps (R, side x side), each mixed with a smooth random map from a fixed seed."""
    side = math.isqrt(maps.shape[1])
    basis = low_pass((side, side))[1:]
    centred = maps - maps.mean(axis=1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    other = np.random.default_rng(0).standard_normal((len(maps), len(basis))) @ basis
    other -= np.sum(other * unit, axis=1, keepdims=True) * unit
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    part = math.sqrt(1 / TEMPLATE_CORRELATION**2 - 1)
    return Template.of(unit + part * other)


@dataclass(frozen=True, eq=False)
class Setup:
    """Sizes of a simulation."""

    n_subjects: int
    n_components: int
    scan_length: int
    image_side: int
    n_planned: int

    @classmethod
    def of(cls, study: Study) -> Setup:
        """Choose the sizes for a study; refuse one whose simulation would take too long."""
        method = _predictable(study)
        n_components = _size_of(method)[2]
        for key, given, most in (
            ("n_components", n_components, MOST_COMPONENTS),
            ("scan_length", method.scan_length, LONGEST_SIMULATED),
        ):
            if given > most:
                raise InputError(f"a prediction needs {key} of at most {most}, got {given}")
        side = image_side(method)
        n_planned = sum(study.contract.participants.values())
        affordable = max(FEWEST_SUBJECTS, MOST_NUMBERS // (side**2 * method.scan_length))
        n_subjects = min(n_planned, MOST_SUBJECTS, affordable)
        return cls(n_subjects, n_components, method.scan_length, side, n_planned)

    def data(self, seed: int) -> SyntheticStudy:
        """Simulate maps and subjects."""
        return make_synthetic(1, self.n_subjects, self.n_components, self.scan_length, self.image_side, seed)

    def simulated(self, study: Study) -> Simulated:
        """Return the simulated study for images of this size."""
        planned, side = _predictable(study), self.image_side
        method = _of_size(planned, side)
        factor = subspace_noise_factor(planned, method)
        noise = tuple(
            release.output_std * (factor if stage.query.label in _OF_FEATURES else 1.0)
            for release, stage in zip(planned_releases(study.contract), method.stages(), strict=True)
        )
        return Simulated(method, noise)


def _of_size(planned: Predictable, side: int) -> Predictable:
    """Return a method for images of ``side`` x ``side`` pixels with the same queries as the planned one."""
    basis = None if planned.basis is None else low_pass((side, side))
    if isinstance(planned, SubjectMethod):
        return replace(planned, n_features=side**2, max_rotations=planned.n_rotations, basis=basis)
    if isinstance(planned, SpatialMethod):
        return replace(planned, n_features=side**2, basis=basis)
    # A placeholder, replaced in each simulation by a template close to its true maps.
    maps = np.eye(side**2) if basis is None else basis
    template = Template.of(maps[: planned.template.n_networks])
    if isinstance(planned, TemplateMethod):
        return replace(planned, template=template, basis=basis)
    rotations = planned.n_rotations or None
    return replace(planned, template=template, max_rotations=rotations, basis=basis, asked=planned.plan)


def _predictable(study: Study) -> Predictable:
    if isinstance(study.analysis, Predictable) and study.analysis.stages():
        return study.analysis
    kinds = ", ".join(getattr(step.table, "method", step.table.kind) for step in study.steps)
    raise InputError(
        "a prediction needs a study with a single analysis, of brain networks by method 'subject', 'guided', "
        f"'template' or 'spatial'; the plan has '{kinds}'"
    )


def _size_of(method: Predictable) -> tuple[int, int, int]:
    """Return the numbers of features (D), of kept basis coefficients (K) and of networks (R)."""
    if isinstance(method, TemplateMethod):
        networks, features = method.template.maps.shape
        return features, features if method.basis is None else len(method.basis), networks
    return method.n_features, method.n_kept, method.n_components


def image_side(method: Predictable) -> int:
    """Return the side of a square image with about as many pixels as features, within useful limits."""
    n_features, _, n_components = _size_of(method)
    along, in_basis = math.ceil(math.sqrt(n_components)), method.basis is not None
    fewest = along * (FEWEST_PIXELS_IN_BASIS if in_basis else FEWEST_PIXELS)
    most = max(LARGEST_SIDE, along * ENOUGH_PIXELS) if in_basis else LARGEST_SIDE
    return min(max(round(math.sqrt(n_features)), fewest), most)


def subspace_noise_factor(planned: Predictable, simulated: Predictable) -> float:
    """Return the noise factor for statistics of all features that compensates for smaller images."""
    (_, kept, r), (_, kept_simulated, _) = _size_of(planned), _size_of(simulated)
    return math.sqrt((kept - r) / (kept_simulated - r))


def with_budget(study: Study, factor: float) -> Study:
    """Return a study with all budgets multiplied by ``factor``."""

    def times(epsilon: float | None) -> float | None:
        return None if epsilon is None else factor * epsilon

    content, change = study.content, msgspec.structs.replace
    privacy = change(content.privacy, epsilon=times(content.privacy.epsilon))
    sites = tuple(change(site, epsilon=times(site.epsilon)) for site in content.sites)
    return study.varied(privacy=privacy, sites=sites)


# One analysis


def clipped_mean(batches: Iterable[FloatArray], clip: float) -> FloatArray:
    """Return the mean of rows, each clipped to norm ``clip``."""
    total, count = np.zeros(1), 0
    for rows in batches:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        total = total + np.sum(rows * (clip / np.maximum(norms, clip)), axis=0)
        count += len(rows)
    return total / count


class SimulatedSubjects:
    """Simulated subjects with known ground truth, for any number of analyses."""

    def __init__(self, data: SyntheticStudy) -> None:
        self.data = data
        self._subspace: FloatArray | None = None

    def means_of(self, method: Predictable) -> Callable[[int, bytes, bytes], FloatArray]:
        """Return a function that computes the mean of a stage's vectors, without noise."""
        site, stages = method.site(self.data.sites[0]), method.stages()

        def mean(stage: int, published: bytes, state: bytes) -> FloatArray:
            query = stages[stage].query
            # This mean does not depend on published data and is the same for every analysis.
            known = self._subspace if query.label == "subspace" else None
            vectors = cast(Iterable[FloatArray], site(stage, published, state))
            value = clipped_mean(vectors, query.clip) if known is None else known
            if query.label == "subspace":
                self._subspace = value
            return value

        return mean

    @property
    def n_subjects(self) -> int:
        """Number of simulated subjects."""
        return len(self.data.sites[0])

    def score(self, simulated: Simulated, seed: int) -> tuple[float, float]:
        """Return gain index and map correlation of one analysis; the worst values if it fails numerically."""
        try:
            with np.errstate(divide="raise", over="raise", invalid="raise"):
                means = NoisyMeans(self.means_of(simulated.method), simulated.noise, seed, self.n_subjects)
                found = simulated.method.estimate(means)
        except (FloatingPointError, np.linalg.LinAlgError):
            return NOTHING_FOUND
        mixing, truth = found.mixing, self.data.mixing
        gain_index = normalized_gain_index(pseudo_inverse(mixing) @ truth)
        return gain_index, matched_map_correlation(mixing.T, truth.T)


class NoisyMeans:
    """Means over simulated subjects with the noise of the planned releases, not for real data."""

    def __init__(
        self,
        mean: Callable[[int, bytes, bytes], FloatArray],
        noise: tuple[float, ...],
        seed: int,
        n_people: int,
    ) -> None:
        self._mean, self._noise, self._n_people = mean, noise, n_people
        self._rng, self._published = np.random.default_rng(seed), b""
        self.released: list[ReleasedMean] = []

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the noisy mean of a stage's query."""
        value = self._mean(stage, self._published, state)
        noisy: FloatArray = value + self._noise[stage] * self._rng.standard_normal(value.shape)
        self.released.append(ReleasedMean(stage, noisy, self._noise[stage], self._n_people))
        return noisy

    def publish(self, data: bytes) -> None:
        """Make public data available to the subjects."""
        self._published = data


# Predictions


def predict(study: Study, progress: Callable[[int], None] | None = None, seed: int = 0) -> Prediction:
    """Predict the quality of a planned study at its budget and at several others.

    Parameters
    ----------
    study : Study
        A study with one analysis of brain networks, by method "subject", "guided", "template" or "spatial".
    progress : callable, optional
        ``progress(total)`` is called after each of ``total`` analyses.
    seed : int
        Seed of maps, subjects and noise. Predictions from the same seed differ only by rounding, which is
        amplified in analyses that are mostly noise.
    """
    setup, budgets = Setup.of(study), _budgets(study)
    simulated = [setup.simulated(other) for other in budgets.values()]
    analyses = [simulated[0].without_noise, *simulated]
    total = REPETITIONS * len(analyses)
    with one_thread():
        runs = []
        for number in range(seed, seed + REPETITIONS):
            # Each analysis uses the same subjects and the same noise, scaled.
            subjects, scores = SimulatedSubjects(setup.data(number)), []
            for analysis in analyses:
                scores.append(subjects.score(analysis.on(subjects.data), number))
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
        subspace_noise_factor(_predictable(study), simulated[0].method),
        REPETITIONS,
        TEMPLATE_CORRELATION if isinstance(simulated[0].method, GuidedMethod | TemplateMethod) else None,
    )


def _budgets(study: Study) -> dict[float, Study]:
    """Return the study at every budget at which it can be planned, by factor relative to its own."""
    if study.contract.mechanism == "none":
        return {1.0: study}
    others = {factor: with_budget(study, factor) for factor in FACTORS}
    return {factor: other for factor, other in others.items() if not other.problems()}


def as_with_more_subjects(gains: FloatArray, floor: float, setup: Setup) -> FloatArray:
    """Apply equation (1) to gain indices; ``floor`` is the gain index without noise."""
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
