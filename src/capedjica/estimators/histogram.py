"""``PrivateHistogram``: differentially private histograms across sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from capedjica.algorithms.tables.histogram import HistogramOfRows, cells
from capedjica.errors import InputError
from capedjica.estimators.base import TableEstimator
from capedjica.estimators.inputs import Sites
from capedjica.estimators.tables import read_people, read_tables
from capedjica.tools.arrays import FloatArray


@dataclass(eq=False, repr=False)
class PrivateHistogram(TableEstimator):
    """Private histogram and density estimate (:mod:`capedjica.algorithms.tables.histogram`).

    Parameters
    ----------
    edges : sequence of float, or list of such sequences
        Public, increasing bin edges of a single feature, or of each feature for a joint histogram.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Attributes
    ----------
    edges_ : tuple of arrays
        Bin edges of each feature.
    counts_ : array, one number per bin
        Noisy number of subjects in each bin. It is unbiased, and may therefore be negative.
    noise_ : float
        Standard deviation of the noise on each count.
    shares_ : array, one number per bin
        Estimated fraction of all subjects in each bin, never negative. One minus their sum is the fraction
        outside the edges.
    density_ : array, one number per bin
        Estimated density of the subjects inside the edges; it integrates to 1.
    privacy_ : PrivacyStatement
        The privacy guarantee.

    Examples
    --------
    >>> from capedjica.applications import PrivateHistogram
    >>> ages = {"north": [30, 34, 61], "south": [25, 80, 38], "west": [44, 37, 52]}
    >>> PrivateHistogram([20, 40, 60, 80], epsilon=1.0).fit(ages).counts_.shape
    (3,)
    """

    edges: ArrayLike | Sequence[ArrayLike]
    edges_: tuple[FloatArray, ...] = field(init=False)
    counts_: FloatArray = field(init=False)
    noise_: float = field(init=False)
    shares_: FloatArray = field(init=False)
    density_: FloatArray = field(init=False)

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Count the subjects in each bin.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is an array (subjects, features), or (subjects,) for one feature.
        y : None
            Ignored.
        """
        self.edges_ = _read_edges(self.edges)
        tables = read_tables(X, len(self.edges_))
        analysis = HistogramOfRows(self.edges_)
        study = self._study("private histogram", analysis, tables, self._terms())
        found = analysis.estimate(study)
        self.counts_, self.noise_ = found.counts, found.noise
        self.shares_, self.density_ = found.shares, found.density
        self.privacy_ = study.privacy
        return self

    def pdf(self, X: ArrayLike) -> FloatArray:
        """Return the density at each row; zero outside the edges."""
        people = read_people(X, len(self.edges_))
        return np.append(self.density_, 0.0)[cells(people, self.edges_)]


def _read_edges(edges: Any) -> tuple[FloatArray, ...]:
    """Return the edges of each feature; a flat sequence of numbers is taken as a single feature."""
    if not np.iterable(edges):
        raise InputError(
            f"edges must be a sequence of increasing numbers, or one for each feature; got {edges!r}"
        )
    axes = list(edges)
    if all(np.ndim(axis) == 0 for axis in axes):
        axes = [axes]
    return tuple(_read_axis(number, axis) for number, axis in enumerate(axes))


def _read_axis(number: int, axis: Any) -> FloatArray:
    try:
        values = np.asarray(axis, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise InputError(f"edges: feature {number} must have at least two edges, finite and increasing")
    return values
