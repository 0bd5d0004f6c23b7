r"""Synthetic studies after the paper's model: heavy-tailed time courses mixed by smooth spatial maps.

**Sources.** Time course r of every subject is an autoregressive process of its own, driven by GARCH(1, 1)
noise (Engle 1982; Bollerslev 1986; the model of Baker et al. 2018):

.. math:: s_t = \sum_{l=1}^{p} \phi_l s_{t-l} + e_t, \qquad e_t = \sigma_t \eta_t, \qquad
          \sigma_t^2 = (1 - \alpha - \beta) + \alpha e_{t-1}^2 + \beta \sigma_{t-1}^2,        (1)

with p uniform on 1..10, :math:`\phi_1` uniform on [0.55, 0.8], the other coefficients on [-0.35, 0.35], drawn
again until every characteristic root is within 0.95 (the process is stationary, and forgets its start within
the burn-in), and :math:`\eta_t` standard normal. With :math:`\alpha` = 0.22 and :math:`\beta` = 0.7 the
variance is positive, 1 in the long run (:math:`\alpha + \beta < 1`), and the noise heavy-tailed, of excess
kurtosis :math:`6 \alpha^2 / (1 - \beta^2 - 2 \alpha \beta - 3 \alpha^2) \approx 5`. Filtered and standardised
over the subject's own time points, the sources have an excess kurtosis of about 1.3, and
:math:`\kappa = E[\tanh'(s)] - E[s \tanh(s)]`, what drives ICA by tanh (0 if Gaussian), is about 0.06.

**Maps.** In the style of SimTB (Erhardt et al. 2012) component r is a Gaussian blob, elongated and turned at
random, near a point of a jittered lattice that covers the image; about every second one of the left half is
bilateral, with a mirror image in the right half. Neighbours overlap. Only the left half owns pairs, so no two
components share both places, and the maps stay linearly independent.

**Observations.** :math:`x_t = A s_t + \text{noise}`, with the maps as columns of A.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.compiled import compiled, over_subjects
from capedjica.errors import InputError
from capedjica.privacy import validate

Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]

MAX_ORDER: Final = 10
MAX_ROOT: Final = 0.95
GARCH_ALPHA: Final = 0.22
GARCH_BETA: Final = 0.7
# 0.95^200 < 4e-5: what is left of the zero start.
_BURN_IN: Final = 200
_MIN_SPACING: Final = 2.0  # pixels between the centres of neighbouring maps


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticStudy:
    """A study with known truth.

    Attributes
    ----------
    sites : list of list of ndarray of float32, shape (T, D)
        The subjects of every site, (time, features).
    mixing : ndarray of float64, shape (D, R)
        The mixing matrix A: one flattened map per column.
    maps : ndarray of float64, shape (R, side, side)
        The same maps as images.
    sources : ndarray of float32, shape (n_subjects, T, R)
        True time courses, subjects in the order of the sites; mean 0 and variance 1 for each subject.
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


def make_synthetic(
    n_sites: int = 4,
    n_subjects: int = 1024,
    n_components: int = 20,
    n_timepoints: int = 250,
    image_side: int = 30,
    random_state: int | np.random.Generator | None = None,
    *,
    noise: float = 0.0,
    site_sizes: Sequence[int] | None = None,
) -> SyntheticStudy:
    """Simulate a study; the default is the size of the paper's (0.9 GB of images).

    Parameters
    ----------
    n_sites, n_subjects : int
        Sites, and subjects of all sites together.
    n_components : int
        Number of sources, R.
    n_timepoints : int
        Time points of each subject, at least 2.
    image_side : int
        Images are square, D = image_side^2 pixels; at least 2 ceil(sqrt(R)), or maps would coincide.
    random_state : int, numpy.random.Generator or None
        Seed; the same seed and parameters give the same study.
    noise : float
        Standard deviation of white noise in every pixel, relative to the root mean square of the signal.
    site_sizes : sequence of int, optional
        Subjects of each site, adding up to ``n_subjects``; as equal as possible when not given.

    Examples
    --------
    >>> make_synthetic(n_sites=2, n_subjects=6, n_components=3, image_side=12, random_state=0)
    SyntheticStudy(site_sizes=[3, 3], n_components=3, image_shape=(12, 12))
    """
    sizes = _site_sizes(n_sites, n_subjects, site_sizes)
    n_components = validate.count("n_components", n_components)
    n_timepoints = validate.count("n_timepoints", n_timepoints, minimum=2)
    if math.isinf(validate.nonnegative("noise", noise)):
        raise InputError("noise must be finite, got inf")
    rng = _generator(random_state)
    maps = _spatial_maps(n_components, validate.count("image_side", image_side), rng)
    mixing = np.ascontiguousarray(maps.reshape(n_components, -1).T)
    sources = _sources(sum(sizes), n_components, n_timepoints, rng)
    images = _mix(sources, mixing)
    _add_noise(images, noise * math.sqrt(np.mean(np.sum(mixing**2, axis=1))), rng)
    edges = np.cumsum([0, *sizes])
    sites = [list(images[first:last]) for first, last in itertools.pairwise(edges)]
    return SyntheticStudy(sites, mixing, maps, sources)


def _site_sizes(n_sites: int, n_subjects: int, site_sizes: Sequence[int] | None) -> list[int]:
    """Return the number of subjects of every site."""
    n_sites = validate.count("n_sites", n_sites)
    n_subjects = validate.count("n_subjects", n_subjects, minimum=n_sites)
    if site_sizes is None:
        return [n_subjects * (s + 1) // n_sites - n_subjects * s // n_sites for s in range(n_sites)]
    sizes = [validate.count(f"site_sizes[{s}]", size) for s, size in enumerate(site_sizes)]
    if len(sizes) != n_sites or sum(sizes) != n_subjects:
        raise InputError(
            f"site_sizes must hold n_sites = {n_sites} numbers adding up to n_subjects = {n_subjects}; "
            f"got {len(sizes)} adding up to {sum(sizes)}"
        )
    return sizes


def _generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise InputError(
            f"random_state must be a whole number of at least 0, a Generator or None, got {random_state!r}"
        ) from None


def _mix(sources: Float32Array, mixing: FloatArray) -> Float32Array:
    """Return A s_t for all subjects, (n_subjects, T, D), by one matrix product."""
    samples = sources.reshape(-1, sources.shape[2]) @ mixing.T.astype(np.float32)
    return samples.reshape(*sources.shape[:2], len(mixing))


def _add_noise(images: Float32Array, scale: float, rng: np.random.Generator) -> None:
    """Add white noise in place, one subject at a time so that no second copy of the images exists."""
    if scale > 0:
        for subject in images:
            subject += np.float32(scale) * rng.standard_normal(subject.shape, dtype=np.float32)


# Sources --------------------------------------------------------------------------------------------------


def _is_stationary(coefficients: FloatArray, radius: float) -> NDArray[np.bool_]:
    r"""Tell for every row phi whether the roots of :math:`x^p - \sum_l \phi_l x^{p-l}` are within the radius.

    Dividing phi_l by radius^l divides the roots by the radius; then the Schur-Cohn test, the Levinson
    recursion run backwards, asks that every reflection coefficient be below 1 in modulus.
    """
    order = coefficients.shape[1]
    phi = coefficients / radius ** np.arange(1, order + 1)
    stationary = np.ones(len(phi), dtype=bool)
    for level in range(order, 0, -1):
        reflection = phi[:, level - 1 : level]
        stationary &= np.abs(reflection[:, 0]) < 1
        phi[~stationary] = 0  # settled, and the recursion would overflow
        shorter = phi[:, : level - 1]
        phi = (shorter + reflection * shorter[:, ::-1]) / (1 - reflection**2)
    return stationary


def _ar_coefficients(n_series: int, rng: np.random.Generator) -> FloatArray:
    """Draw AR coefficients of random order, zeros beyond it; redraws keep the order, so it stays uniform."""
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
    first: int, last: int, normals: Float32Array, coefficients: FloatArray, out: Float32Array
) -> None:
    """Run equation (1) for series first..last; out holds the last points, standardised."""
    order, burn_in = coefficients.shape[1], normals.shape[1] - out.shape[1]
    series = np.zeros(order + normals.shape[1])
    for k in range(first, last):
        variance, innovation = 1.0, 0.0
        for t in range(normals.shape[1]):
            variance = 1 - GARCH_ALPHA - GARCH_BETA + GARCH_ALPHA * innovation**2 + GARCH_BETA * variance
            innovation = np.sqrt(variance) * normals[k, t]
            value = innovation
            for lag in range(order):
                value += coefficients[k, lag] * series[order + t - 1 - lag]
            series[order + t] = value
        kept = series[order + burn_in :]
        kept = (kept - kept.mean()) / kept.std()
        for t in range(out.shape[1]):
            out[k, t] = kept[t]


def _sources(n_subjects: int, n_components: int, n_timepoints: int, rng: np.random.Generator) -> Float32Array:
    """Simulate the time courses of all subjects, shape (n_subjects, T, R)."""
    n_series = n_subjects * n_components
    coefficients = _ar_coefficients(n_series, rng)
    normals = rng.standard_normal((n_series, _BURN_IN + n_timepoints), dtype=np.float32)
    series = np.empty((n_series, n_timepoints), dtype=np.float32)
    over_subjects(lambda first, last: _simulate(first, last, normals, coefficients, series), n_series)
    by_subject = series.reshape(n_subjects, n_components, n_timepoints)
    return np.ascontiguousarray(by_subject.transpose(0, 2, 1))


# Maps -----------------------------------------------------------------------------------------------------


def _centres(n_components: int, side: int, rng: np.random.Generator) -> FloatArray:
    """Return one (x, y) per component, in pixels from the middle: random cells of a lattice, jittered."""
    columns = math.ceil(math.sqrt(n_components))
    rows = math.ceil(n_components / columns)
    cells = np.sort(rng.permutation(columns * rows)[:n_components])
    position = np.column_stack([cells % columns, cells // columns]) + 0.5
    jitter = rng.uniform(-0.15, 0.15, size=position.shape)
    return np.asarray(((position + jitter) / (columns, rows) - 0.5) * side)


def _blob(grid: FloatArray, centre: FloatArray, widths: FloatArray, angle: float) -> FloatArray:
    """Evaluate a Gaussian of peak 1 with these widths along its axes, turned by the angle."""
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    along = (grid - centre) @ turn.T / widths
    return np.asarray(np.exp(-0.5 * np.sum(along**2, axis=-1)))


def _spatial_maps(n_components: int, side: int, rng: np.random.Generator) -> FloatArray:
    """Return the maps (R, side, side), of peak between about 0.7 and 1.3."""
    columns = math.ceil(math.sqrt(n_components))
    spacing = side / columns
    if spacing < _MIN_SPACING:
        raise InputError(
            f"image_side must be at least {math.ceil(_MIN_SPACING * columns)} for n_components = "
            f"{n_components}, got {side}"
        )
    axis = np.arange(side) - (side - 1) / 2
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    maps = np.empty((n_components, side, side))
    for r, centre in enumerate(_centres(n_components, side, rng)):
        widths, angle = spacing * rng.uniform(0.4, 0.6, size=2), rng.uniform(0, math.pi)
        maps[r] = _blob(grid, centre, widths, angle)
        if centre[0] < -spacing / 2 and rng.random() < 0.5:
            maps[r] += _blob(grid, centre * (-1, 1), widths, -angle)
    return maps * rng.uniform(0.7, 1.3, size=(n_components, 1, 1))
