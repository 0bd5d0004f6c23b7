r"""Synthetic studies from the paper's model: heavy-tailed time courses mixed by smooth spatial maps.

**Sources.** Time course r of every subject is a separate autoregressive process, driven by GARCH(1, 1) noise
(Engle 1982; Bollerslev 1986; the model of Baker et al. 2018):

.. math:: s_t = \sum_{l=1}^{p} \phi_l s_{t-l} + e_t, \qquad e_t = \sigma_t \eta_t, \qquad
          \sigma_t^2 = (1 - \alpha - \beta) + \alpha e_{t-1}^2 + \beta \sigma_{t-1}^2,        (1)

with p uniform on 1..10, :math:`\phi_1` uniform on [0.55, 0.8], the other coefficients on [-0.35, 0.35],
redrawn until every characteristic root is within 0.95 (the process is then stationary, and forgets its
initial state within the burn-in), and :math:`\eta_t` standard normal. With :math:`\alpha` = 0.22 and
:math:`\beta` = 0.7 the variance is positive, 1 in the long run (:math:`\alpha + \beta < 1`), and the noise is
heavy-tailed, with excess kurtosis :math:`6 \alpha^2 / (1 - \beta^2 - 2 \alpha \beta - 3 \alpha^2) \approx 5`.
After filtering and standardisation over the subject's own time points, the sources have an excess kurtosis of
about 1.3, and :math:`\kappa = E[\tanh'(s)] - E[s \tanh(s)]`, which drives ICA by tanh (0 if Gaussian), is
about 0.06.

**Maps.** In the style of SimTB (Erhardt et al. 2012), component r is an elongated Gaussian blob with random
orientation, near a point of a jittered lattice that covers the image. About every second blob of the left
half is bilateral, with a mirror image in the right half. Neighbours overlap. Bilateral pairs originate only
in the left half, so no two components share both positions, and the maps remain linearly independent.
Networks that are not compact are available as ``"scattered"`` maps: each has three blobs anywhere in the
image; each of the last two is negative as often as positive, and every fourth has a mirror image.

**Observations.** :math:`x_t = A s_t + \text{noise}`, with the maps as columns of A.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.parallel import compiled, one_thread, over_subjects
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray

Float32Array = NDArray[np.float32]

MapKind = Literal["compact", "scattered"]
MAP_KINDS: Final[tuple[str, ...]] = get_args(MapKind)
MAX_ORDER: Final = 10
MAX_ROOT: Final = 0.95
GARCH_ALPHA: Final = 0.22
GARCH_BETA: Final = 0.7
# 0.95^200 < 4e-5: the remaining influence of the zero initial state.
_BURN_IN: Final = 200
# Number of subjects that share a seed: enough for NumPy to process many series at once.
BATCH: Final = 32
_MIN_SPACING: Final = 2.0  # pixels between the centres of neighbouring maps


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticStudy:
    """A simulated study with known ground truth.

    Attributes
    ----------
    sites : list of list of ndarray of float32, shape (T_m, D)
        The subjects of every site, each (time, features).
    mixing : ndarray of float64, shape (D, R)
        The mixing matrix A, with one flattened map per column.
    maps : ndarray of float64, shape (R, side, side)
        The same maps as images.
    sources : ndarray of float32, shape (n_subjects, T, R)
        True time courses, with subjects in the order of the sites; mean 0 and variance 1 for each subject. T
        is the length of the longest scan; shorter ones are padded with NaN.
    """

    sites: list[list[Float32Array]]
    mixing: FloatArray
    maps: FloatArray
    sources: Float32Array

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of the images."""
        return int(self.maps.shape[1]), int(self.maps.shape[2])

    def __repr__(self) -> str:
        sizes = [len(site) for site in self.sites]
        facts = f"site_sizes={sizes}, n_components={len(self.maps)}, image_shape={self.image_shape}"
        return f"SyntheticStudy({facts})"


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticModel:
    """Model of a simulated study, which generates the same subjects every time.

    Attributes
    ----------
    maps : ndarray of float64, shape (R, side, side)
        One map per component.
    scan_lengths : ndarray of int64, shape (n_subjects,)
        Number of time points T_m of each subject.
    noise : float
        Standard deviation of the white noise in every pixel.
    seeds : list of numpy.random.SeedSequence
        One for each batch of ``BATCH`` subjects.
    gains : ndarray of shape (n_subjects, R), optional
        Factors by which the time courses of each subject are multiplied.
    """

    maps: FloatArray
    scan_lengths: NDArray[np.int64]
    noise: float
    seeds: list[np.random.SeedSequence]
    gains: FloatArray | None = None

    @classmethod
    def draw(
        cls,
        n_subjects: int,
        n_components: int,
        n_timepoints: int | tuple[int, int],
        image_side: int,
        random_state: int | np.random.Generator | None = None,
        *,
        noise: float = 0.0,
        maps: MapKind = "compact",
    ) -> SyntheticModel:
        """Draw the maps and the scan lengths; parameters as for :func:`make_synthetic`."""
        n_subjects = validate.count("n_subjects", n_subjects)
        n_components = validate.count("n_components", n_components)
        shortest, longest = _shortest_and_longest(n_timepoints)
        if math.isinf(validate.nonnegative("noise", noise)):
            raise InputError("noise must be finite, got inf")
        rng = _generator(random_state)
        if maps not in MAP_KINDS:
            raise InputError(f"maps must be one of {', '.join(MAP_KINDS)}, got {maps!r}")
        side = validate.count("image_side", image_side)
        images = (_spatial_maps if maps == "compact" else _scattered_maps)(n_components, side, rng)
        lengths = rng.integers(shortest, longest, size=n_subjects, endpoint=True)
        root = np.random.SeedSequence(rng.integers(2**32, size=4).tolist())
        signal = math.sqrt(np.sum(images**2) / images[0].size)
        return cls(images, lengths, noise * signal, root.spawn(math.ceil(n_subjects / BATCH)))

    def conditioned(self, number: float) -> SyntheticModel:
        """Return the same model with a mixing matrix of the given condition number.

        The singular vectors and the largest singular value are preserved; the other singular values decrease
        geometrically.
        """
        if not 1 <= number < math.inf:
            raise InputError(f"the condition number must be finite and at least 1, got {number:g}")
        left, singular, right = np.linalg.svd(self.mixing, full_matrices=False)
        mixing = (left * (singular[0] * np.geomspace(1, 1 / number, len(singular)))) @ right
        return replace(self, maps=np.ascontiguousarray(mixing.T).reshape(self.maps.shape))

    @cached_property
    def mixing(self) -> FloatArray:
        """The mixing matrix A (D, R)."""
        return np.ascontiguousarray(self.maps.reshape(len(self.maps), -1).T)

    @cached_property
    def _loadings(self) -> Float32Array:
        return self.mixing.T.astype(np.float32)

    def subjects(self) -> Iterator[Float32Array]:
        """Yield the images (T_m, D) of one subject after another; memory use is that of one subject."""
        for batch in range(len(self.seeds)):
            sources, rng = self.sources(batch)
            for own in sources:
                images = np.empty((len(own), len(self.mixing)), dtype=np.float32)
                with one_thread():
                    self.mix(own, rng, images)
                yield images

    def sources(self, batch: int) -> tuple[list[Float32Array], np.random.Generator]:
        """Return the time courses (T_m, R) of a batch of subjects, and the generator for their noise."""
        rng = np.random.default_rng(self.seeds[batch])
        own = slice(batch * BATCH, (batch + 1) * BATCH)
        sources = _sources(self.scan_lengths[own], len(self.maps), rng)
        if self.gains is not None:
            sources = [
                one * gain.astype(np.float32) for one, gain in zip(sources, self.gains[own], strict=True)
            ]
        return sources, rng

    def mix(self, sources: Float32Array, rng: np.random.Generator, out: Float32Array) -> Float32Array:
        """Write A s_t plus noise for the time points of one subject to ``out``, and return it."""
        np.matmul(sources, self._loadings, out=out)
        if self.noise > 0:
            out += np.float32(self.noise) * rng.standard_normal(out.shape, dtype=np.float32)
        return out


def make_synthetic(
    n_sites: int = 4,
    n_subjects: int = 1024,
    n_components: int = 20,
    n_timepoints: int | tuple[int, int] = 250,
    image_side: int = 30,
    random_state: int | np.random.Generator | None = None,
    *,
    noise: float = 0.0,
    site_sizes: Sequence[int] | None = None,
    maps: MapKind = "compact",
) -> SyntheticStudy:
    """Generate a synthetic study in memory; the default size is that of the paper (0.9 GB of images).

    Parameters
    ----------
    n_sites, n_subjects : int
        Number of sites, and total number of subjects over all sites.
    n_components : int
        Number of sources R.
    n_timepoints : int or pair of int
        Number of time points of each subject, at least 2. With a pair, the length of each subject is drawn
        uniformly between the two (both included).
    image_side : int
        Side of the square images, D = image_side^2 pixels; at least 2 ceil(sqrt(R)), because maps would
        otherwise coincide.
    random_state : int, numpy.random.Generator or None
        Seed; the same seed and parameters give the same study.
    noise : float
        Standard deviation of white noise in every pixel, relative to the root mean square of the signal.
    site_sizes : sequence of int, optional
        Number of subjects of each site, adding up to ``n_subjects``; by default as equal as possible.
    maps : {"compact", "scattered"}
        "compact" maps have one blob for each component (or two that mirror each other); "scattered" maps have
        three blobs of either sign.

    Returns
    -------
    SyntheticStudy
        The sites with their subjects, and the true maps, mixing matrix and sources.

    Examples
    --------
    >>> make_synthetic(n_sites=2, n_subjects=6, n_components=3, image_side=12, random_state=0)
    SyntheticStudy(site_sizes=[3, 3], n_components=3, image_shape=(12, 12))
    """
    sizes = _site_sizes(n_sites, n_subjects, site_sizes)
    model = SyntheticModel.draw(
        sum(sizes), n_components, n_timepoints, image_side, random_state, noise=noise, maps=maps
    )
    images, sources = _make_all(model)
    edges = np.cumsum([0, *sizes])
    sites = [images[first:last] for first, last in itertools.pairwise(edges)]
    return SyntheticStudy(sites, model.mixing, model.maps, sources)


def _make_all(model: SyntheticModel) -> tuple[list[Float32Array], Float32Array]:
    """Generate all subjects on all cores; the images share one array, which is faster to allocate."""
    lengths = model.scan_lengths
    samples = np.empty((lengths.sum(), len(model.mixing)), dtype=np.float32)
    images = np.split(samples, np.cumsum(lengths)[:-1])
    sources = np.full((len(lengths), lengths.max(), len(model.maps)), np.nan, dtype=np.float32)

    def make(first: int, last: int) -> None:
        for batch in range(first, last):
            time_courses, rng = model.sources(batch)
            for m, own in enumerate(time_courses, start=batch * BATCH):
                sources[m, : len(own)] = own
                model.mix(own, rng, images[m])

    with one_thread():
        over_subjects(make, len(model.seeds))
    return images, sources


def _site_sizes(n_sites: int, n_subjects: int, site_sizes: Sequence[int] | None) -> list[int]:
    """Return the number of subjects of every site."""
    n_sites = validate.count("n_sites", n_sites)
    n_subjects = validate.count("n_subjects", n_subjects, minimum=n_sites)
    if site_sizes is None:
        return [n_subjects * (s + 1) // n_sites - n_subjects * s // n_sites for s in range(n_sites)]
    sizes = [validate.count(f"site_sizes[{s}]", size) for s, size in enumerate(site_sizes)]
    if len(sizes) != n_sites or sum(sizes) != n_subjects:
        raise InputError(
            f"site_sizes must contain n_sites = {n_sites} numbers that add up to n_subjects = {n_subjects}; "
            f"got {len(sizes)} that add up to {sum(sizes)}"
        )
    return sizes


def _shortest_and_longest(n_timepoints: int | tuple[int, int]) -> tuple[int, int]:
    """Return the bounds of the scan lengths."""
    given = tuple(n_timepoints) if isinstance(n_timepoints, Sequence) else (n_timepoints, n_timepoints)
    if isinstance(n_timepoints, str) or len(given) != 2:
        raise InputError(f"n_timepoints must be an integer or a pair of integers, got {n_timepoints!r}")
    shortest, longest = (validate.count("n_timepoints", length, minimum=2) for length in given)
    if shortest > longest:
        raise InputError(f"n_timepoints must be (shortest, longest), got ({shortest}, {longest})")
    return shortest, longest


def _generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise InputError(
            f"random_state must be a non-negative integer, a Generator or None, got {random_state!r}"
        ) from None


# Sources --------------------------------------------------------------------------------------------------


def _is_stationary(coefficients: FloatArray, radius: float) -> NDArray[np.bool_]:
    r"""Return for each row phi whether the roots of :math:`x^p - \sum_l \phi_l x^{p-l}` are within radius.

    Dividing phi_l by radius^l divides the roots by the radius. The Schur-Cohn test (the Levinson recursion
    run backwards) then requires every reflection coefficient to be below 1 in modulus.
    """
    order = coefficients.shape[1]
    phi = coefficients / radius ** np.arange(1, order + 1)
    stationary = np.ones(len(phi), dtype=bool)
    for level in range(order, 0, -1):
        reflection = phi[:, level - 1 : level]
        stationary &= np.abs(reflection[:, 0]) < 1
        phi[~stationary] = 0  # already decided, and the recursion would overflow
        shorter = phi[:, : level - 1]
        phi = (shorter + reflection * shorter[:, ::-1]) / (1 - reflection**2)
    return stationary


def _ar_coefficients(n_series: int, rng: np.random.Generator) -> FloatArray:
    """Draw AR coefficients of random order, zero-padded; redraws keep the order, so it stays uniform."""
    orders = rng.integers(1, MAX_ORDER + 1, size=n_series)
    within = np.arange(MAX_ORDER) < orders[:, np.newaxis]
    coefficients = np.zeros((n_series, MAX_ORDER))
    wanted = np.arange(n_series)
    while wanted.size:
        drawn = rng.uniform(-0.35, 0.35, size=(wanted.size, MAX_ORDER))
        drawn[:, 0] = rng.uniform(0.55, 0.8, size=wanted.size)
        coefficients[wanted] = np.where(within[wanted], drawn, 0.0)
        wanted = wanted[~_is_stationary(coefficients[wanted], MAX_ROOT)]
    return coefficients


@compiled
def _simulate(
    normals: Float32Array, coefficients: FloatArray, lengths: NDArray[np.int64], out: Float32Array
) -> None:
    """Run equation (1) for every series; ``out`` receives the points after the burn-in, standardised."""
    order, burn_in = coefficients.shape[1], normals.shape[1] - out.shape[1]
    series = np.zeros(order + normals.shape[1])
    for k in range(len(normals)):
        variance, innovation = 1.0, 0.0
        for t in range(burn_in + lengths[k]):
            variance = 1 - GARCH_ALPHA - GARCH_BETA + GARCH_ALPHA * innovation**2 + GARCH_BETA * variance
            innovation = np.sqrt(variance) * normals[k, t]
            value = innovation
            for lag in range(order):
                value += coefficients[k, lag] * series[order + t - 1 - lag]
            series[order + t] = value
        kept = series[order + burn_in : order + burn_in + lengths[k]]
        mean, deviation = kept.mean(), kept.std()
        for t in range(lengths[k]):
            out[k, t] = (kept[t] - mean) / deviation


def _sources(lengths: NDArray[np.int64], n_components: int, rng: np.random.Generator) -> list[Float32Array]:
    """Simulate the time courses of some subjects, (T_m, R) each."""
    n_series = len(lengths) * n_components
    coefficients = _ar_coefficients(n_series, rng)
    normals = rng.standard_normal((n_series, _BURN_IN + lengths.max()), dtype=np.float32)
    series = np.empty((n_series, lengths.max()), dtype=np.float32)
    _simulate(normals, coefficients, np.repeat(lengths, n_components), series)
    by_subject = series.reshape(len(lengths), n_components, -1)
    return [np.ascontiguousarray(own[:, :T].T) for own, T in zip(by_subject, lengths, strict=True)]


# Maps -----------------------------------------------------------------------------------------------------


def _centres(n_components: int, side: int, rng: np.random.Generator) -> FloatArray:
    """Return one (x, y) per component, in pixels from the centre: random cells of a lattice, jittered."""
    columns = math.ceil(math.sqrt(n_components))
    rows = math.ceil(n_components / columns)
    cells = np.sort(rng.permutation(columns * rows)[:n_components])
    position = np.column_stack([cells % columns, cells // columns]) + 0.5
    jitter = rng.uniform(-0.15, 0.15, size=position.shape)
    return np.asarray(((position + jitter) / (columns, rows) - 0.5) * side)


def _blob(grid: FloatArray, centre: FloatArray, widths: FloatArray, angle: float) -> FloatArray:
    """Evaluate a Gaussian of peak 1 with the given widths along its axes, rotated by the angle."""
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    along = (grid - centre) @ turn.T / widths
    return np.asarray(np.exp(-0.5 * np.sum(along**2, axis=-1)))


def _spatial_maps(n_components: int, side: int, rng: np.random.Generator) -> FloatArray:
    """Return the maps (R, side, side), with peaks between about 0.7 and 1.3."""
    columns = math.ceil(math.sqrt(n_components))
    spacing = side / columns
    if spacing < _MIN_SPACING:
        raise InputError(
            f"image_side must be at least {math.ceil(_MIN_SPACING * columns)} for n_components = "
            f"{n_components}, got {side}"
        )
    grid = _grid(side)
    maps = np.empty((n_components, side, side))
    for r, centre in enumerate(_centres(n_components, side, rng)):
        widths, angle = spacing * rng.uniform(0.4, 0.6, size=2), rng.uniform(0, math.pi)
        maps[r] = _blob(grid, centre, widths, angle)
        if centre[0] < -spacing / 2 and rng.random() < 0.5:
            maps[r] += _blob(grid, centre * (-1, 1), widths, -angle)
    return maps * rng.uniform(0.7, 1.3, size=(n_components, 1, 1))


def _scattered_maps(n_components: int, side: int, rng: np.random.Generator) -> FloatArray:
    """Return maps (R, side, side) of three blobs of either sign anywhere in the image, some mirrored."""
    spacing, grid = side / math.ceil(math.sqrt(n_components)), _grid(side)
    maps = np.zeros((n_components, side, side))
    for r in range(n_components):
        for height in (1.0, *(rng.uniform(0.5, 1.0, size=2) * rng.choice([-1, 1], size=2))):
            centre = rng.uniform(-0.45, 0.45, size=2) * side
            widths, angle = spacing * rng.uniform(0.4, 0.6, size=2), rng.uniform(0, math.pi)
            maps[r] += height * _blob(grid, centre, widths, angle)
            if rng.random() < 0.25:
                maps[r] += height * _blob(grid, centre * (-1, 1), widths, -angle)
    return maps * rng.uniform(0.7, 1.3, size=(n_components, 1, 1))


def _grid(side: int) -> FloatArray:
    """Return the (x, y) of every pixel, relative to the centre."""
    axis = np.arange(side) - (side - 1) / 2
    return np.stack(np.meshgrid(axis, axis), axis=-1)
