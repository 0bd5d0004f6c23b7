r"""Individual results of one subject, computed from the group's maps; not private, kept at the site.

With the maps as columns of A (D, R), W = A^+ their pseudo-inverse, and X (T, D) one subject's centred scan:

.. math:: S = X W', \qquad B = \operatorname{argmin}_B \lVert X - \tilde S B \rVert_F ,               (1)

the two steps of dual regression (Nickerson et al. 2017). The first, spatial regression gives the time courses
S that best explain every volume (least squares, as W' = A (A'A)^{-1}). The second, temporal regression gives
the subject's own maps B (R, D) from time courses :math:`\tilde S` of mean 0 and variance 1, so that maps are
in the units of the scan and can be compared between subjects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from capedjica.tools.arrays import FloatArray, Scan

# Number of time points in a segment of a spectrum, or the whole run if it is shorter.
SEGMENT: Final = 128
# Correlations are kept this far from 1, where Fisher's z is infinite.
_LARGEST_CORRELATION: Final = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class SingleSubject:
    """Individual results of one subject.

    Attributes
    ----------
    courses : list of ndarray, shape (T_i, R)
        The time courses of each run.
    connectivity : ndarray, shape (R, R)
        Fisher's z of the correlations between time courses over all runs; 0 on the diagonal.
    maps : ndarray, shape (R, D)
        The subject's own maps, from all runs.
    """

    courses: list[FloatArray]
    connectivity: FloatArray
    maps: FloatArray


def analyse_subject(runs: Sequence[Scan], unmixing: FloatArray) -> SingleSubject:
    """Return the time courses, connectivity and maps of a subject with runs (T_i, D), by equation (1)."""
    centred = [centre(run) for run in runs]
    courses = [run @ unmixing.T for run in centred]
    standard = np.concatenate([standardise(course) for course in courses])
    return SingleSubject(courses, connectivity(standard), regress(standard, np.concatenate(centred)))


def centre(run: Scan) -> FloatArray:
    """Subtract the mean over time from every feature."""
    values = np.asarray(run, dtype=np.float64)
    centred: FloatArray = values - values.mean(axis=0)
    return centred


def standardise(courses: FloatArray) -> FloatArray:
    """Return time courses of mean 0 and variance 1; a constant time course stays 0."""
    centred = centre(courses)
    spread = centred.std(axis=0)
    tiny = 1e-12 * float(spread.max(initial=0.0))
    scaled: FloatArray = np.where(spread > tiny, centred / np.where(spread > tiny, spread, 1.0), 0.0)
    return scaled


def connectivity(courses: FloatArray) -> FloatArray:
    """Return Fisher's z, artanh(r), of the correlations between standardised time courses (T, R)."""
    correlations = courses.T @ courses / len(courses)
    np.fill_diagonal(correlations, 0.0)
    return fishers_z(correlations)


def fishers_z(correlations: FloatArray) -> FloatArray:
    """Return artanh(r), which is kept finite if r is 1 or -1."""
    z: FloatArray = np.arctanh(np.clip(correlations, -_LARGEST_CORRELATION, _LARGEST_CORRELATION))
    return z


def regress(courses: FloatArray, run: FloatArray) -> FloatArray:
    """Return the maps (R, D) that best explain a run, given its time courses."""
    maps: FloatArray = np.linalg.lstsq(courses, run, rcond=None)[0].astype(np.float64)
    return maps


def power_spectra(courses: FloatArray, repetition_time: float | None) -> tuple[FloatArray, FloatArray]:
    """Return frequencies (F,) and the power spectral densities (F, R) of one run, by Welch's method.

    Frequencies are in Hz if a repetition time in seconds is given, otherwise in cycles per time point.
    Segments of ``SEGMENT`` time points overlap by half, each with a Hann window.
    """
    rate = 1.0 if repetition_time is None else 1 / repetition_time
    frequencies, power = scipy.signal.welch(courses, fs=rate, nperseg=min(SEGMENT, len(courses)), axis=0)
    return frequencies, power
