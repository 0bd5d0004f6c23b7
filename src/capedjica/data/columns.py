"""Columns of time-series tables as features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from capedjica.data.scans import Problem, Recording
from capedjica.data.timeseries import read_scan, scan_problems
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

    from capedjica.data.images import ImageFeatures


@dataclass(frozen=True)
class Columns:
    """Columns of a table or array, each of which is a feature.

    Attributes
    ----------
    n_features : int
        Number of columns D required in every file.
    detrend, standardize : bool
        Remove a linear trend from every column; divide it by its standard deviation.
    """

    n_features: int
    detrend: bool = False
    standardize: bool = False

    @property
    def basis(self) -> None:
        """None: columns have no spatial positions, so there is no smooth basis."""

    @property
    def key(self) -> None:
        """None: caching a table would not be faster than reading it."""

    def series(self, recording: Recording) -> Scan:
        """Return the numbers of a file; any exception means that it cannot be used."""
        # Rows of a participant table look like time points: all participants would be read as this one.
        if recording.row is not None:
            raise ValueError("expected a scan, got a row of a participant table")
        scan = read_scan(recording.path, self.n_features)
        if scan.ndim != 2 or scan.shape[1] != self.n_features:
            raise ValueError("expected an array (time, features) with the features of the study")
        scan = _without_line(scan) if self.detrend else scan
        return _standardised(scan) if self.standardize else scan

    def problems(self, recording: Recording) -> list[Problem]:
        """Return the reasons why a file cannot be used."""
        if recording.row is not None:
            return [Problem(recording.path, "a table with a row per participant", "one scan per participant")]
        return scan_problems(recording.path, self.n_features)

    def layout(self, recording: Recording) -> str:
        """Return an empty string: columns are not on a grid."""
        return ""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return None: columns have no spatial positions."""
        return None


@dataclass(frozen=True)
class RegionColumns(Columns):
    """Columns of a table that correspond to the regions of an atlas, in its order.

    Scans are read like any table; the atlas only provides the positions for results.

    Attributes
    ----------
    regions : ImageFeatures
        The regions, one for each column: labels in increasing order, or maps.
    """

    regions: ImageFeatures = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.regions.n_features != self.n_features:
            raise InputError(
                f"features.n_features is {self.n_features}, but the atlas has {self.regions.n_features} "
                "regions; every column of the tables must be one of its regions"
            )

    @property
    def approximate(self) -> bool:
        """Whether the regions are those of a table of centres, whose borders are approximate."""
        return self.regions.approximate

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image in the space of the atlas."""
        return self.regions.image(maps)

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the values of a 4-D image of maps in the regions, (R, D)."""
        return self.regions.of_maps(image, nearest)


def _without_line(scan: Scan) -> Scan:
    """Return columns with their means and linear trends removed; a constant column becomes zero."""
    time = np.arange(len(scan), dtype=scan.dtype) - (len(scan) - 1) / 2
    centred = _centred(scan)
    slopes = time @ centred / max(1.0, float(time @ time))
    return centred - np.outer(time, slopes).astype(scan.dtype)


def _standardised(scan: Scan) -> Scan:
    """Return columns with mean 0 and variance 1 over time; a constant column becomes zero."""
    centred = _centred(scan)
    scale = np.sqrt(np.sum(centred**2, axis=0) / max(1, len(scan) - 1))
    scaled: Scan = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    return scaled


def _centred(scan: Scan) -> Scan:
    if not len(scan):
        return scan
    # The mean of equal numbers is rounded, and scaling would amplify the remainder of a constant to noise.
    constant = scan.min(axis=0) == scan.max(axis=0)
    return np.where(constant, scan.dtype.type(0), scan - scan.mean(axis=0))
