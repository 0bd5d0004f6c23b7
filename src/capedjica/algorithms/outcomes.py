r"""Outcomes of one subject: a vector computed from the time courses and maps of networks, of any method.

========================  =============================================================================
``connectivity``          functional network connectivity: Fisher's z of every pair's correlation
``partial-connectivity``  Fisher's z of the partial correlations, from a shrunken correlation matrix
``blocks``                connectivity averaged within groups of networks and between them
``amplitudes``            log standard deviation of every time course, minus the subject's mean of these
``band-power``            log power in frequency bands, relative to that of the whole time course
``spectra``               the same in bands of equal width from 0 to the Nyquist frequency
``loadings``              Fisher's z of the correlation of a subject's own map with the group's
========================  =============================================================================

An outcome is computed from one scan only, so it has no privacy cost. Partial correlations are computed from
:math:`P = ((1 - \lambda) R + \lambda I)^{-1}` as :math:`-P_{ij} / \sqrt{P_{ii} P_{jj}}`, which exist for
:math:`\lambda > 0` however short the scan. A subject's own maps are computed by dual regression
(:mod:`capedjica.algorithms.ica.individual`).

**Centre and scale** standardise the numbers, so that one bound C on the norm suits all of them. They are
public: from theory (:func:`from_theory`), a public cohort (:func:`from_public_cohort`) or the results of an
earlier study, never from the participants of the study. Poor values reduce power but not privacy, which
depends on C alone. In theory, the variance of a number between subjects is

.. math:: s^2 = \tau^2 + v / T_{\text{eff}},                                                          (1)

where :math:`\tau` is the standard deviation between subjects and v / T_eff the variance due to the length of
the scan: :math:`1 / (T_{\text{eff}} - 3)` for Fisher's z (Fisher 1921), :math:`1 / (2 T_{\text{eff}})` for a
log standard deviation, and :math:`1 / (w T)` for the log power in a band of width w (cycles per time point),
which contains wT pairs of Fourier coefficients. Time points are correlated: for two time courses with lag-one
autocorrelation :math:`\varphi`, the effective number of time points of a correlation is
:math:`T_{\text{eff}} = T (1 - \varphi^2) / (1 + \varphi^2)` (Bartlett 1935), with `AUTOCORRELATION` for scans
with a TR of two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, pairwise
from typing import Final, Literal, get_args

import numpy as np

from capedjica.algorithms.ica.individual import (
    centre,
    connectivity,
    fishers_z,
    power_spectra,
    regress,
    standardise,
)
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

OutcomeName = Literal[
    "connectivity", "partial-connectivity", "blocks", "amplitudes", "band-power", "spectra", "loadings"
]
OUTCOMES: Final[tuple[str, ...]] = get_args(OutcomeName)
Band = tuple[float, float]

AUTOCORRELATION: Final = 0.5
"""Lag-one autocorrelation of time courses, as assumed by theory."""

NYQUIST: Final = 0.5
"""The Nyquist frequency in cycles per time point."""

N_BANDS: Final = 8
"""Number of bands of equal width in a spectrum."""

# Standard deviations between subjects, in the units of the numbers (tau of equation 1): rounded from 20
# networks of 249 participants of three public sites of ABIDE. All sites of a study must use the same values:
# its hash covers them. Different numbers, or a different formula, require a new version.
_THEORY: Final = 1
_BETWEEN: Final[Mapping[str, float]] = {
    "connectivity": 0.12,
    "partial-connectivity": 0.08,
    "blocks": 0.08,
    "amplitudes": 0.16,
    "band-power": 0.3,
    "spectra": 0.4,
    "loadings": 0.12,
}
# A subject's own map resembles the group's, except for the noise of one scan: here a correlation of 0.83.
_LOADING: Final = 1.2
_CLIP: Final = 0.8


@dataclass(frozen=True)
class Outcome:
    """Definition of the numbers computed from a scan.

    Parameters
    ----------
    kind : str
        One of `OUTCOMES`.
    n_courses : int
        Number of time courses R: networks, or features if there are no networks.
    groups : tuple of str
        For "blocks": the group of each time course.
    bands : tuple of (float, float)
        For "band-power": lowest and highest frequency of each band, in cycles per time point, up to
        `NYQUIST`.
    shrinkage : float
        For "partial-connectivity": lambda, greater than 0 and at most 1.
    """

    kind: OutcomeName
    n_courses: int
    groups: tuple[str, ...] = ()
    bands: tuple[Band, ...] = ()
    shrinkage: float = 0.1

    @property
    def size(self) -> int:
        """Number of elements of the vector."""
        pairs = self.n_courses * (self.n_courses - 1) // 2
        if self.kind in ("connectivity", "partial-connectivity"):
            return pairs
        if self.kind == "blocks":
            return len(self.blocks)
        if self.kind in ("band-power", "spectra"):
            return self.n_courses * len(self.frequency_bands)
        return self.n_courses

    @property
    def blocks(self) -> dict[str, list[int]]:
        """Blocks of networks by name, each with the indices of its pairs."""
        names = list(dict.fromkeys(self.groups))
        found: dict[str, list[int]] = {
            _block(one, other): [] for one, other in combinations_with_replacement(names, 2)
        }
        order = {name: place for place, name in enumerate(names)}
        for place, pair in enumerate(combinations(self.groups, 2)):
            found[_block(*sorted(pair, key=order.__getitem__))].append(place)
        return {name: pairs for name, pairs in found.items() if pairs}

    @property
    def frequency_bands(self) -> tuple[Band, ...]:
        """Frequency bands of the outcome."""
        if self.kind == "band-power":
            return self.bands
        edges = [NYQUIST * number / N_BANDS for number in range(N_BANDS + 1)]
        return tuple(pairwise(edges))

    def problems(self) -> list[str]:
        """Return the reasons why the settings are invalid."""
        found = []
        if self.kind == "blocks" and len(self.groups) != self.n_courses:
            found.append(
                f"groups must give a group for each of the {self.n_courses} networks, got {len(self.groups)}"
            )
        elif self.kind != "blocks" and self.groups:
            found.append(f"groups is only for outcome 'blocks', got outcome {self.kind!r}")
        if (self.kind == "band-power") != bool(self.bands):
            found.append(f"bands must be given for outcome 'band-power', and only for it; got {self.kind!r}")
        found += [
            f"bands must increase between 0 and {NYQUIST:g} cycles per time point; got {low:g} to {high:g}"
            for low, high in self.bands
            if not 0 <= low < high <= NYQUIST
        ]
        if not 0 < self.shrinkage <= 1:
            found.append(f"shrinkage must be greater than 0 and at most 1, got {self.shrinkage:g}")
        return found

    def names(self, courses: Sequence[str]) -> tuple[str, ...]:
        """Return the name of every number, given the names of the time courses."""
        if self.kind in ("connectivity", "partial-connectivity"):
            return tuple(f"{one} - {other}" for one, other in combinations(courses, 2))
        if self.kind == "blocks":
            return tuple(self.blocks)
        if self.kind in ("band-power", "spectra"):
            return tuple(
                f"{course}, {low:g} to {high:g}" for course in courses for low, high in self.frequency_bands
            )
        return tuple(courses)

    def numbers(self, courses: FloatArray, scan: FloatArray, unmixing: FloatArray | None) -> FloatArray:
        """Return the vector of a subject; elements that cannot be computed are not finite.

        Parameters
        ----------
        courses : array (T, R)
            Time courses.
        scan : array (T, D)
            The scan from which they were computed; used only for loadings.
        unmixing : array (R, D), optional
            The unmixing matrix that gave the time courses.
        """
        if self.kind == "loadings":
            return _loadings(courses, scan, unmixing)
        if self.kind == "partial-connectivity":
            return _partial(courses, self.shrinkage)
        if self.kind == "amplitudes":
            return _amplitudes(courses)
        if self.kind in ("band-power", "spectra"):
            return _band_power(courses, self.frequency_bands)
        pairs = _upper(connectivity(standardise(courses)))
        return self._block_means(pairs) if self.kind == "blocks" else pairs

    def _block_means(self, pairs: FloatArray) -> FloatArray:
        return np.array([pairs[own].mean() for own in self.blocks.values()])


def _block(one: str, other: str) -> str:
    return f"within {one}" if one == other else f"{one} - {other}"


def _upper(matrix: FloatArray) -> FloatArray:
    upper: FloatArray = matrix[np.triu_indices(len(matrix), 1)]
    return upper


def _partial(courses: FloatArray, shrinkage: float) -> FloatArray:
    standard = standardise(courses)
    shrunken = (1 - shrinkage) * (standard.T @ standard) / len(courses)
    np.fill_diagonal(shrunken, 1.0)
    precision = np.linalg.inv(shrunken)
    spread = np.sqrt(np.diag(precision))
    partial = -_upper(precision / np.outer(spread, spread))
    return fishers_z(partial)


def _amplitudes(courses: FloatArray) -> FloatArray:
    logarithms = np.log(courses.std(axis=0))
    relative: FloatArray = logarithms - logarithms.mean()
    return relative


def _band_power(courses: FloatArray, bands: Sequence[Band]) -> FloatArray:
    """Return the log ratio of the mean density in each band to the overall mean, one course after another.

    Frequency 0, the mean, is excluded. If a scan is too short to have a frequency in a band, the number is
    not finite.
    """
    frequencies, power = power_spectra(courses, None)
    frequencies, power = frequencies[1:], power[1:]
    inside = [(low <= frequencies) & (frequencies <= high) for low, high in bands]
    means = np.stack([power[own].sum(axis=0) / max(1, own.sum()) for own in inside], axis=1)
    relative: FloatArray = np.log(means / power.mean(axis=0)[:, np.newaxis])
    return relative.ravel()


def _loadings(courses: FloatArray, scan: FloatArray, unmixing: FloatArray | None) -> FloatArray:
    if unmixing is None:
        return np.full(courses.shape[1], np.nan)
    group = centre(np.linalg.pinv(unmixing)).T
    own = centre(regress(standardise(courses), centre(scan)).T).T
    lengths = np.linalg.norm(group, axis=1) * np.linalg.norm(own, axis=1)
    alike = np.sum(group * own, axis=1) / lengths
    return fishers_z(alike)


# Public centre and scale ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Standard:
    """Public standardisation of an outcome: centre and scale of each number, and the clip C.

    ``origin`` describes their source.
    """

    center: FloatArray
    scale: FloatArray
    clip: float
    origin: str


def default_clip(size: int) -> float:
    r"""Return C = 0.8 √d, where √d is the norm of a typical vector of standardised numbers.

    Noise is proportional to C. Clipping preserves the direction of a vector, so it reduces effects by a
    factor close to that of a typical norm, and does not change their sign.
    """
    return float(_CLIP * np.sqrt(size))


def effective_length(scan_length: int) -> float:
    """Return the effective number of independent time points of a scan, always more than 4."""
    ratio = (1 - AUTOCORRELATION**2) / (1 + AUTOCORRELATION**2)
    return max(4.0, scan_length * ratio)


def from_theory(outcome: Outcome, scan_length: int) -> Standard:
    """Return centre 0 and the scale of equation (1), for scans of ``scan_length`` time points.

    Loadings have centre 1.2, because a subject's own map is expected to resemble the group's.
    """
    variance = _BETWEEN[outcome.kind] ** 2 + _sampling(outcome, scan_length)
    center = _LOADING if outcome.kind == "loadings" else 0.0
    return Standard(
        np.full(outcome.size, center),
        np.broadcast_to(np.sqrt(variance), (outcome.size,)).copy(),
        default_clip(outcome.size),
        f"theory, for scans of {scan_length:,} time points",
    )


def theory_constants(kind: OutcomeName) -> dict[str, float]:
    """Return all numbers on which :func:`from_theory` depends, and the version of its formula."""
    return {
        "version": _THEORY,
        "between": _BETWEEN[kind],
        "autocorrelation": AUTOCORRELATION,
        "loading": _LOADING,
        "bands": N_BANDS,
        "clip": _CLIP,
    }


def _sampling(outcome: Outcome, scan_length: int) -> FloatArray:
    """Return the variance of each number due to the length of a scan."""
    length = effective_length(scan_length)
    if outcome.kind == "amplitudes":
        return np.array(1 / (2 * length))
    if outcome.kind in ("band-power", "spectra"):
        return _of_bands(outcome, scan_length)
    n_pairs = np.array([len(own) for own in outcome.blocks.values()]) if outcome.kind == "blocks" else 1.0
    return np.asarray(1 / ((length - 3) * n_pairs))


def _of_bands(outcome: Outcome, scan_length: int) -> FloatArray:
    widths = np.array([high - low for low, high in outcome.frequency_bands])
    return np.tile(1 / np.maximum(1.0, widths * scan_length), outcome.n_courses)


def from_public_cohort(rows: FloatArray, *, attested_public: bool, source: str) -> Standard:
    """Return the mean and standard deviation of participants whose data are public.

    Parameters
    ----------
    rows : array (subjects, numbers)
        Outcomes of a publicly available cohort, none of whom is a participant of the study.
    attested_public : bool
        Must be True: the caller attests this. Values computed from participants of the study would be
        released unprotected.
    source : str
        Name of the cohort, for the description of the study.
    """
    if attested_public is not True:
        raise InputError(
            "from_public_cohort needs attested_public=True: centre and scale are published without noise, so "
            "they must come from public data alone, never from participants of the study"
        )
    values = np.asarray(rows, dtype=np.float64)
    values = values[np.isfinite(values).all(axis=1)] if values.ndim == 2 else values
    if values.ndim != 2 or len(values) < 3 or not (values.std(axis=0) > 0).all():
        raise InputError(
            "rows must be an array (subjects, numbers) with at least 3 subjects and finite numbers that vary "
            f"between subjects; got shape {np.shape(rows)}"
        )
    scale = values.std(axis=0, ddof=1)
    return Standard(values.mean(axis=0), scale, default_clip(values.shape[1]), f"a public cohort: {source}")
