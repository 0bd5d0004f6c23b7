r"""Runs of every algorithm that the paper compares, on its synthetic study and on ABIDE.

**Noise.** As in the paper's experiments, an iteration's gradients get noise
:math:`\tau = \Delta\, \epsilon_i^{-1} \sqrt{2 \ln(1.25/\delta_i)}` with :math:`\delta_i = 0.01`, that of the
pooled mean (:math:`\Delta = 2/M` in units of the clips) for cape, :math:`\sqrt S` times it for conventional
(the same noise at a site), of the site's own for local. The budget of the protocol is whatever that noise
costs; the protocol itself is the real one, with the paper's masks.

**PCA.** On synthetic data capePCA reduces the images, with the noise that :math:`\epsilon_i` asks for when
one *time point* is the neighbour, as the paper has it (:math:`\Delta = \sqrt 2/N`): a person's loss is that
of T such points. One reduction serves all descents with the same noise, conventional ones too, so that these
differ from cape in the descent alone. On real data the subspace is that of the pooled non-private PCA, as in
the paper.

**Synthetic images** are :math:`X = S A'` without noise, so a subject is held as :math:`Y = S R'`, with
:math:`A = Q R`: all lengths and angles are those of :math:`X = Y Q'`, in 20 numbers instead of 900.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.utility.abide import Sites, everybody
from benchmarks.utility.shared.problems import DELTA, Problem, Scan
from benchmarks.utility.shared.runs import gain
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.djica import djica
from capedjica.algorithms.ica.dp_djica import dp_djica
from capedjica.algorithms.ica.infomax import (
    B_G,
    B_H,
    BLOW_UP,
    TOLERANCE,
    Infomax,
    default_learning_rate,
    descend,
    gradient_query,
    subject_gradients,
)
from capedjica.algorithms.ica.maps.networks import mixing_of, pseudo_inverse
from capedjica.algorithms.ica.paper_method import reduce
from capedjica.algorithms.kernels import PackedSubjects
from capedjica.algorithms.pca import PSD_SPREAD, leading_subspace, pca_query, within_unit_ball
from capedjica.algorithms.state import read_arrays
from capedjica.algorithms.svec import svec
from capedjica.data.simulated.synthetic import SyntheticModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName, Stage, Statistics
from capedjica.metrics import matched_map_correlation
from capedjica.privacy import gaussian_epsilon, gaussian_mu
from capedjica.privacy.paper import gaussian_mechanism_tau
from capedjica.study.planned_releases import planned_releases, spendable_delta
from paper.shared.runs import Kept, Outcome, Run
from paper.shared.truth import pooled_ica

FloatArray = NDArray[np.float64]
Scheme = Literal["cape", "conventional", "local"]
NOISE_DELTA: Final = 1e-2
# Bound of a reduced sample for dp-djica, whose mean squared norm is R; a public constant.
DP_DJICA_CLIP: Final = 2.0
# Seconds on a quiet core of one subject of 250 time points: a gradient with 20 components, and other things.
_GRADIENT, _MOMENTS, _LAPLACE, _PASS, _FEATURES = 25e-6, 6e-3, 2e-4, 1.2e-4, 3e-3
_TYPICAL_SCAN: Final = 190  # time points, of the real data


# Data -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Which people, at which sites, with what to compare.

    Parameters
    ----------
    n_subjects, n_components : int
        M and R.
    repeat : int
        Seed of the simulation, or of who is at which site.
    n_sites : int
        Equal sites; 0 for the true ones (real data only).
    n_timepoints : int
        T of synthetic data, of real data the longest scan.
    image_side : int
        Of synthetic data.
    fingerprint : str
        Of real data: a hash of the files; "" for synthetic data.
    folder : str
        Where they are.
    """

    n_subjects: int = 1024
    n_components: int = 20
    repeat: int = 0
    n_sites: int = 4
    n_timepoints: int = 250
    image_side: int = 30
    fingerprint: str = ""
    folder: str = field(default="", compare=False)

    @property
    def real(self) -> bool:
        """Whether people were scanned."""
        return bool(self.fingerprint)

    @property
    def work(self) -> float:
        """What a pass over the data costs, in subjects of 250 time points with 20 components."""
        length = _TYPICAL_SCAN if self.real else self.n_timepoints
        return self.n_subjects * length / 250 * math.pow(self.n_components / 20, 1.7)


@dataclass(frozen=True, eq=False)
class Scans:
    """Subjects (time, K) by site, and the (D, K) frame of orthonormal columns that takes them to features."""

    sites: Mapping[str, Sequence[Scan]]
    frame: FloatArray

    @property
    def sizes(self) -> dict[str, int]:
        """M_s by site."""
        return {name: len(scans) for name, scans in self.sites.items()}

    @cached_property
    def n_timepoints(self) -> dict[str, int]:
        """N_s by site."""
        return {name: sum(map(len, scans)) for name, scans in self.sites.items()}

    def reduced(self, V: FloatArray) -> dict[str, list[Scan]]:
        """Return the subjects in the R directions V (D, R), scaled as the paper's method has them."""
        directions = (self.frame.T @ V).astype(np.float32)
        return {name: [reduce(scan, directions) for scan in scans] for name, scans in self.sites.items()}


def fingerprint(folder: Path) -> str:
    """Return a hash of the real data."""
    digest = hashlib.sha256()
    for name in ("participants.tsv", "timeseries.npz"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=2)
def scans_of(data: Data) -> Scans:
    """Return the scans; the last ones are held."""
    return _real_scans(data) if data.real else _synthetic_scans(data)


@lru_cache(maxsize=2)
def _model(data: Data) -> SyntheticModel:
    return SyntheticModel.draw(
        data.n_subjects, data.n_components, data.n_timepoints, data.image_side, data.repeat
    )


def _synthetic_scans(data: Data) -> Scans:
    model = _model(data)
    frame, triangle = np.linalg.qr(model.mixing)
    loadings = triangle.T.astype(np.float32)
    sources = (own for batch in range(len(model.seeds)) for own in model.sources(batch)[0])
    return Scans(_equal_sites([own @ loadings for own in sources], data.n_sites), frame)


@lru_cache(maxsize=1)
def _people(folder: str) -> Sites:
    return everybody(Path(folder))


@cache
def longest_scan(folder: Path) -> int:
    """Return the time points of the longest scan of those enrolled."""
    return max(len(scan) for site in everybody(folder).values() for scan in site)


def _real_scans(data: Data) -> Scans:
    sites = _people(data.folder)
    if data.n_sites:
        people = [scan for site in sites.values() for scan in site]
        order = np.random.default_rng(data.repeat).permutation(len(people))[: data.n_subjects]
        sites = _equal_sites([people[place] for place in order], data.n_sites)
    return Scans(sites, np.eye(next(iter(sites.values()))[0].shape[1]))


def _equal_sites(people: Sequence[Scan], n_sites: int) -> Sites:
    bounds = np.linspace(0, len(people), n_sites + 1).astype(int)
    return {f"site-{s + 1}": list(people[bounds[s] : bounds[s + 1]]) for s in range(n_sites)}


@dataclass(frozen=True)
class Truth(Run):
    """The pooled non-private analysis of all real data, which stands for the truth, and its subspace."""

    n_components: int
    fingerprint: str
    folder: str = field(compare=False)

    @property
    def cost(self) -> float:
        """Seconds."""
        return 0.04 * self.n_components**2

    def make(self, kept: Kept) -> Outcome:
        """Run PCA and ICA on everybody."""
        scans = [scan for site in _people(self.folder).values() for scan in site]
        unmixing, V = pooled_ica(scans, self.n_components)
        return Outcome({}, {"unmixing": unmixing, "V": V[:, ::-1]})


# Private means with the paper's noise ---------------------------------------------------------------------


def paper_tau(sensitivity: float, epsilon_i: float, noise_delta: float) -> float:
    """Return tau of the paper's experiments."""
    return gaussian_mechanism_tau(sensitivity, epsilon_i, noise_delta)


def study_with_noise(
    sizes: Mapping[str, int],
    statistics: Mapping[str, Statistics],
    stage: Stage,
    noise: float,
    mechanism: MechanismName,
) -> tuple[EmbeddedStudy, float]:
    """Return a study whose releases have this noise on each number, and the exact mu of one of them.

    The mu of a release is inversely proportional to its noise, so the budget follows from a trial.
    """

    def study(epsilon: float) -> EmbeddedStudy:
        return EmbeddedStudy(
            stage.query.label,
            sizes,
            statistics,
            [stage],
            in_process(epsilon=epsilon, delta=DELTA, mechanism=mechanism, masking="paper"),
        )

    trial = study(1.0).contract
    (plan,) = planned_releases(trial)
    mu = max(plan.mu.values()) * plan.output_std / noise
    return study(gaussian_epsilon(mu * math.sqrt(stage.count), spendable_delta(trial))), mu


@dataclass(frozen=True)
class _Moments:
    """What a site computes for capePCA: the second moment of each subject's samples, of norm at most 1."""

    scans: Sequence[Scan]
    frame: FloatArray

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        return map(self._row, self.scans)

    def _row(self, scan: Scan) -> FloatArray:
        samples = within_unit_ball(scan).astype(np.float64)
        moments = samples.T @ samples / len(samples)
        return svec(self.frame @ moments @ self.frame.T)[np.newaxis]


@dataclass(frozen=True)
class _Gradients:
    """What a site computes for an iteration of the paper's method."""

    packed: PackedSubjects

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[FloatArray]:
        size = self.packed.n_features
        public = read_arrays(state, W=(size, size), b=(size,))
        return [subject_gradients(self.packed, public["W"], public["b"], B_G, B_H)]


def _units(counts: Mapping[str, int], mechanism: Scheme) -> int:
    """Return how many units the mean is over: all, or those of the largest site, which works alone."""
    return max(counts.values()) if mechanism == "local" else sum(counts.values())


@dataclass(frozen=True)
class Reduction(Run):
    """CapePCA of the images, or the largest site's own private PCA."""

    data: Data
    epsilon_i: float
    mechanism: Scheme = "cape"
    noise_delta: float = NOISE_DELTA

    @property
    def cost(self) -> float:
        """Seconds."""
        share = 1 / self.data.n_sites if self.mechanism == "local" else 1.0
        return 1.5 + share * self.data.n_subjects * _MOMENTS * (self.data.image_side / 30) ** 4

    def make(self, kept: Kept) -> Outcome:
        """Make the one release."""
        scans = scans_of(self.data)
        statistics = {name: _Moments(site, scans.frame) for name, site in scans.sites.items()}
        shift = PSD_SPREAD / _units(scans.n_timepoints, self.mechanism)
        noise = paper_tau(shift, self.epsilon_i, self.noise_delta)
        stage = Stage(pca_query(len(scans.frame)))
        study, mu = study_with_noise(scans.sizes, statistics, stage, noise, self.mechanism)
        return Outcome({"mu": mu}, {"V": leading_subspace(study.mean(0), self.data.n_components)})


# Analyses -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Analysis(Run):
    """An algorithm on some data, compared with the truth.

    All give ``gain_index``, ``map_correlation`` and ``n_iter``, and the (R, D) ``unmixing``.
    """

    data: Data

    @property
    def truth(self) -> tuple[Run, ...]:
        """What stands for the truth of real data."""
        data = self.data
        return (Truth(data.n_components, data.fingerprint, data.folder),) if data.real else ()

    @property
    def needs(self) -> tuple[Run, ...]:
        """Runs that must be made before."""
        return self.truth

    def mixing(self, kept: Kept) -> FloatArray:
        """Return the (D, R) mixing matrix to be found."""
        if not self.data.real:
            return _model(self.data).mixing
        return pseudo_inverse(kept.load(self.truth[0]).arrays["unmixing"])

    def subspace(self, kept: Kept) -> FloatArray:
        """Return the directions (D, R) of the PCA without noise."""
        if self.data.real:
            return np.asarray(kept.load(self.truth[0]).arrays["V"])
        scans = scans_of(self.data)
        balls = (within_unit_ball(scan) for site in scans.sites.values() for scan in site)
        moments = sum(ball.T.astype(np.float64) @ ball / len(ball) for ball in balls)
        return np.asarray(scans.frame @ np.linalg.eigh(moments)[1][:, ::-1])

    def scored(self, unmixing: FloatArray, n_iter: int, kept: Kept, **more: float) -> Outcome:
        """Compare an unmixing matrix with the truth."""
        mixing = self.mixing(kept)
        numbers = {
            "gain_index": gain(unmixing, mixing),
            "map_correlation": matched_map_correlation(mixing_of(unmixing).T, mixing.T),
            "n_iter": float(n_iter),
            **more,
        }
        return Outcome(numbers, {"unmixing": unmixing.astype(np.float32)})


class Steady(Infomax):
    """Infomax that keeps its learning rate through turns; restarts and blow-ups lower it as ever."""

    def move(self, step_w: FloatArray, step_b: FloatArray) -> None:
        """Change W and b by these steps."""
        rate, restarts = self.learning_rate, self.n_restarts
        super().move(step_w, step_b)
        if self.n_restarts == restarts and self.change <= BLOW_UP:
            self.learning_rate = rate


@dataclass(frozen=True)
class Recipe:
    """How the descent is run: learning rate (None: 0.015/ln R), most iterations, slowed down in turns or not.

    A steady descent also makes all its iterations.
    """

    name: str
    max_iter: int
    learning_rate: float | None = None
    steady: bool = False

    def infomax(self, n_components: int, bound: float = B_G) -> Infomax:
        """Return the aggregator's side; the bounds are B_G and, as in the paper, B_h = sqrt(B_G)."""
        rate = self.learning_rate or default_learning_rate(n_components)
        kind, tolerance = (Steady, 0.0) if self.steady else (Infomax, TOLERANCE)
        return kind(n_components, rate, bound, math.sqrt(bound), tolerance)


PAPER: Final = Recipe("paper", 1000)
TUNED: Final = Recipe("tuned", 300, 1.0, steady=True)


@dataclass(frozen=True)
class Descent(Analysis):
    """The paper's method: capeDJICA, the same with conventional noise, or at the largest site alone.

    Gives also ``mu``, exact, of one iteration for one person, and ``pca_mu``, that of the reduction
    (infinite for the non-private PCA of real data).
    """

    epsilon_i: float
    mechanism: Scheme = "cape"
    recipe: Recipe = PAPER
    noise_delta: float = NOISE_DELTA

    @property
    def kind(self) -> str:
        """Iterations made depend on recipe and noise."""
        return f"Descent {self.recipe.name} {self.mechanism}"

    @property
    def needs(self) -> tuple[Run, ...]:
        """Return the truth or the reduction."""
        shared: Scheme = "local" if self.mechanism == "local" else "cape"
        return self.truth or (Reduction(self.data, self.epsilon_i, shared, self.noise_delta),)

    @property
    def cost(self) -> float:
        """Seconds; the smaller the noise, the later the paper's rule stops."""
        share = 1 / (self.data.n_sites or 6) if self.mechanism == "local" else 1.0
        quiet = 0.2 * self.epsilon_i * self.data.n_subjects * share
        steps = self.recipe.max_iter if self.recipe.steady else min(self.recipe.max_iter, max(45, quiet))
        return 0.3 + steps * (1.5e-3 + share * self.data.work * _GRADIENT)

    def make(self, kept: Kept) -> Outcome:
        """Reduce the data and descend."""
        scans, r = scans_of(self.data), self.data.n_components
        before = kept.load(self.needs[0])
        V = np.asarray(before.arrays["V"])
        packed = {name: PackedSubjects.from_list(site) for name, site in scans.reduced(V).items()}
        statistics = {name: _Gradients(site) for name, site in packed.items()}
        noise = paper_tau(2 / _units(scans.sizes, self.mechanism), self.epsilon_i, self.noise_delta)
        if self.mechanism == "conventional":
            noise *= math.sqrt(len(scans.sizes))
        stage = Stage(gradient_query(r), self.recipe.max_iter)
        study, mu = study_with_noise(scans.sizes, statistics, stage, noise, self.mechanism)
        infomax = self.recipe.infomax(r)
        n_iter = descend(infomax, partial(study.mean, 0), self.recipe.max_iter)
        pca_mu = before.numbers.get("mu", math.inf)
        return self.scored(infomax.W @ V.T, n_iter, kept, mu=mu, pca_mu=pca_mu)


@dataclass(frozen=True)
class Quiet(Analysis):
    """The paper's descent with its bounds, but without noise in gradients or PCA: nothing is private."""

    recipe: Recipe = PAPER
    bound: float = B_G

    @property
    def cost(self) -> float:
        """Seconds."""
        return 0.3 + self.recipe.max_iter * (1e-3 + self.data.work * _GRADIENT)

    def make(self, kept: Kept) -> Outcome:
        """Descend along the mean over all subjects."""
        r, V = self.data.n_components, self.subspace(kept)
        people = [scan for site in scans_of(self.data).reduced(V).values() for scan in site]
        packed = PackedSubjects.from_list(people)

        def mean(state: bytes) -> FloatArray:
            public = read_arrays(state, W=(r, r), b=(r,))
            rows = subject_gradients(packed, public["W"], public["b"], self.bound, math.sqrt(self.bound))
            return np.asarray(rows.mean(axis=0))

        infomax = self.recipe.infomax(r, self.bound)
        n_iter = descend(infomax, mean, self.recipe.max_iter)
        return self.scored(infomax.W @ V.T, n_iter, kept)


@dataclass(frozen=True)
class Djica(Analysis):
    """djICA without privacy."""

    @property
    def cost(self) -> float:
        """Seconds."""
        return 80 * self.data.work * _PASS

    def make(self, kept: Kept) -> Outcome:
        """Run it to convergence."""
        V = self.subspace(kept)
        result = djica(list(scans_of(self.data).reduced(V).values()), self.data.repeat)
        return self.scored(result.unmixing @ V.T, result.n_iter, kept)


@dataclass(frozen=True)
class DpDjica(Analysis):
    """DP-djICA with one time point as the neighbour, in the subspace without noise: both flatter it."""

    epsilon_i: float
    max_iter: int = 100

    @property
    def cost(self) -> float:
        """Seconds."""
        return self.max_iter * self.data.work * _LAPLACE

    def make(self, kept: Kept) -> Outcome:
        """Reduce the data and descend."""
        V = self.subspace(kept)
        sites = list(scans_of(self.data).reduced(V).values())
        clip = DP_DJICA_CLIP * math.sqrt(self.data.n_components)
        result = dp_djica(sites, self.epsilon_i, self.max_iter, neighbour="sample", clip=clip)
        return self.scored(result.unmixing @ V.T, result.n_iter, kept)


@dataclass(frozen=True)
class Subject(Analysis):
    """The method of this package at a total epsilon for everything, one person as the neighbour."""

    epsilon: float
    delta: float = DELTA

    @property
    def cost(self) -> float:
        """Seconds."""
        return 1.0 + self.data.work * _FEATURES

    def make(self, kept: Kept) -> Outcome:
        """Run it in a public basis of smooth images, or on the regions themselves."""
        problem = _problem(self.data)
        # The same mu at the delta that the problem is analysed with.
        epsilon = gaussian_epsilon(gaussian_mu(self.epsilon, self.delta), DELTA)
        return self.scored(*problem.analyse(epsilon), kept)


@lru_cache(maxsize=1)
def _problem(data: Data) -> Problem:
    scans = scans_of(data)
    if data.real:
        unknown = np.zeros((len(scans.frame), data.n_components))
        return Problem({name: list(site) for name, site in scans.sites.items()}, unknown)
    basis = low_pass((data.image_side, data.image_side))
    loadings = (scans.frame.T @ basis.T).astype(np.float32)
    features = {name: [scan @ loadings for scan in site] for name, site in scans.sites.items()}
    return Problem(features, _model(data).mixing, basis)
