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

Methods that begin at a template are given one that is as good as public templates are: the true maps, each
with so much of other smooth maps that both correlate by `TEMPLATE_CORRELATION`.
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
# With the true maps; templates from other people of ABIDE correlate with a study's networks by 0.7 to 0.8.
TEMPLATE_CORRELATION: Final = 0.75
# Statistics whose noise grows with the features.
_OF_FEATURES: Final = ("subspace", DIFFERENCE)
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
    ``template_correlation`` is how good the template was, for methods that begin at one.
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
        """The planned study."""
        return next(quality for quality in self.qualities if quality.planned)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON; null for an infinite epsilon."""
        result = asdict(self) | {"usable_below": USABLE, "caveat": CAVEAT}
        for quality in result["qualities"]:
            quality["epsilon"] = quality["epsilon"] if math.isfinite(quality["epsilon"]) else None
        return result


# What is simulated


Predictable = SubjectMethod | GuidedMethod | TemplateMethod | SpatialMethod


@dataclass(frozen=True, eq=False)
class Simulated:
    """A study as it is simulated: the method, and the noise of each stage's means."""

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
        """Return the same with a template near the true maps, where the method begins at one."""
        if not isinstance(self.method, GuidedMethod | TemplateMethod):
            return self
        return replace(self, method=replace(self.method, template=near(data.mixing.T)))


def near(maps: FloatArray) -> Template:
    """Return a template of maps (R, side x side), each with so much of a smooth map of public numbers."""
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
    """What a study is simulated with."""

    n_subjects: int
    n_components: int
    scan_length: int
    image_side: int
    n_planned: int

    @classmethod
    def of(cls, study: Study) -> Setup:
        """Choose the numbers for a study; refuse one whose simulation would take too long."""
        method = _predictable(study)
        n_components = _size_of(method)[2]
        for key, given, most in (
            ("n_components", n_components, MOST_COMPONENTS),
            ("scan_length", method.scan_length, LONGEST_SIMULATED),
        ):
            if given > most:
                raise InputError(f"a prediction is for {key} of at most {most}, got {given}")
        side = image_side(method)
        n_planned = sum(study.contract.participants.values())
        affordable = max(FEWEST_SUBJECTS, MOST_NUMBERS // (side**2 * method.scan_length))
        n_subjects = min(n_planned, MOST_SUBJECTS, affordable)
        return cls(n_subjects, n_components, method.scan_length, side, n_planned)

    def data(self, seed: int) -> SyntheticStudy:
        """Make maps and subjects."""
        return make_synthetic(1, self.n_subjects, self.n_components, self.scan_length, self.image_side, seed)

    def simulated(self, study: Study) -> Simulated:
        """Return a study as it is simulated on images of this size."""
        planned, side = _predictable(study), self.image_side
        method = _of_size(planned, side)
        factor = subspace_noise_factor(planned, method)
        noise = tuple(
            release.output_std * (factor if stage.query.label in _OF_FEATURES else 1.0)
            for release, stage in zip(planned_releases(study.contract), method.stages(), strict=True)
        )
        return Simulated(method, noise)


def _of_size(planned: Predictable, side: int) -> Predictable:
    """Return a method for images of ``side`` x ``side`` pixels that asks what the planned one asks."""
    basis = None if planned.basis is None else low_pass((side, side))
    if isinstance(planned, SubjectMethod):
        return replace(planned, n_features=side**2, max_rotations=planned.n_rotations, basis=basis)
    if isinstance(planned, SpatialMethod):
        return replace(planned, n_features=side**2, basis=basis)
    # In place of the one that is near the true maps of each simulation.
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
        "only brain networks alone, by method 'subject', 'guided', 'template' or 'spatial', can be "
        f"predicted; the plan has '{kinds}'"
    )


def _size_of(method: Predictable) -> tuple[int, int, int]:
    """Return D, K and R."""
    if isinstance(method, TemplateMethod):
        networks, features = method.template.maps.shape
        return features, features if method.basis is None else len(method.basis), networks
    return method.n_features, method.n_kept, method.n_components


def image_side(method: Predictable) -> int:
    """Return the side of a square image of about the features, within what is of use and quick."""
    n_features, _, n_components = _size_of(method)
    along, in_basis = math.ceil(math.sqrt(n_components)), method.basis is not None
    fewest = along * (FEWEST_PIXELS_IN_BASIS if in_basis else FEWEST_PIXELS)
    most = max(LARGEST_SIDE, along * ENOUGH_PIXELS) if in_basis else LARGEST_SIDE
    return min(max(round(math.sqrt(n_features)), fewest), most)


def subspace_noise_factor(planned: Predictable, simulated: Predictable) -> float:
    """Return by what the noise of statistics of all features makes up for the numbers that are left out."""
    (_, kept, r), (_, kept_simulated, _) = _size_of(planned), _size_of(simulated)
    return math.sqrt((kept - r) / (kept_simulated - r))


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

    def __init__(self, data: SyntheticStudy) -> None:
        self.data = data
        self._subspace: FloatArray | None = None

    def means_of(self, method: Predictable) -> Callable[[int, bytes, bytes], FloatArray]:
        """Return what gives the mean of a stage's vectors, without noise."""
        site, stages = method.site(self.data.sites[0]), method.stages()

        def mean(stage: int, published: bytes, state: bytes) -> FloatArray:
            query = stages[stage].query
            # The same whatever was published, and for every analysis.
            known = self._subspace if query.label == "subspace" else None
            vectors = cast(Iterable[FloatArray], site(stage, published, state))
            value = clipped_mean(vectors, query.clip) if known is None else known
            if query.label == "subspace":
                self._subspace = value
            return value

        return mean

    @property
    def n_subjects(self) -> int:
        """How many there are."""
        return len(self.data.sites[0])

    def score(self, simulated: Simulated, seed: int) -> tuple[float, float]:
        """Return gain index and map correlation of one analysis; the worst if noise makes it break down."""
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
    """Means over simulated subjects with the noise of the planned releases; it protects nobody real."""

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
