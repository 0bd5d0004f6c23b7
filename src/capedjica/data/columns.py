"""Tables of region time series taken as they are: every column is a feature."""

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
    """The columns of a table or an array.

    Attributes
    ----------
    n_features : int
        D, columns that every file must have.
    detrend, standardize : bool
        Take out a line; divide every column by its standard deviation.
    """

    n_features: int
    detrend: bool = False
    standardize: bool = False

    @property
    def basis(self) -> None:
        """Columns have no places, so nothing is known to be smooth."""

    @property
    def key(self) -> None:
        """A table is read as quickly as what would be kept of it."""

    def series(self, recording: Recording) -> Scan:
        """Return the numbers of a file; raise whatever comes when it cannot be used."""
        # The rows of a table of people look like time points, and everybody's would be this person's.
        if recording.row is not None:
            raise ValueError("a row, not a scan")
        scan = read_scan(recording.path, self.n_features)
        if scan.ndim != 2 or scan.shape[1] != self.n_features:
            raise ValueError("not (time, features)")
        scan = _without_line(scan) if self.detrend else scan
        return _standardised(scan) if self.standardize else scan

    def problems(self, recording: Recording) -> list[Problem]:
        """Return why a file cannot be used."""
        if recording.row is not None:
            return [Problem(recording.path, "a table with a row per person", "a scan of each person")]
        return scan_problems(recording.path, self.n_features)

    def layout(self, recording: Recording) -> str:
        """Return nothing: columns are not on a grid."""
        return ""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return None: columns have no places of their own."""
        return None


@dataclass(frozen=True)
class RegionColumns(Columns):
    """The columns of a table, of which it is known where they are: regions of an atlas, in its order.

    Scans are read as any table is; the atlas only gives places to what was found.

    Attributes
    ----------
    regions : ImageFeatures
        The regions, one for each column: labels in the order of their numbers, or maps.
    """

    regions: ImageFeatures = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.regions.n_features != self.n_features:
            raise InputError(
                f"features.n_features is {self.n_features}; the atlas has {self.regions.n_features} regions: "
                "every column of the tables must be one of its regions"
            )

    def image(self, maps: FloatArray) -> Nifti1Image:
        """Return maps (R, D) as a 4-D image in the space of the atlas."""
        return self.regions.image(maps)

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return what a 4-D image of maps is in the regions, (R, D)."""
        return self.regions.of_maps(image, nearest)


def _without_line(scan: Scan) -> Scan:
    """Return columns without their means and slopes over time; one that never changes is zero."""
    time = np.arange(len(scan), dtype=scan.dtype) - (len(scan) - 1) / 2
    centred = _centred(scan)
    slopes = time @ centred / max(1.0, float(time @ time))
    return centred - np.outer(time, slopes).astype(scan.dtype)


def _standardised(scan: Scan) -> Scan:
    """Return columns of mean 0 and variance 1 over time; one that never changes is zero."""
    centred = _centred(scan)
    scale = np.sqrt(np.sum(centred**2, axis=0) / max(1, len(scan) - 1))
    scaled: Scan = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    return scaled


def _centred(scan: Scan) -> Scan:
    if not len(scan):
        return scan
    # The mean of equal numbers is rounded, and what is left of a constant would be scaled up to noise.
    constant = scan.min(axis=0) == scan.max(axis=0)
    return np.where(constant, scan.dtype.type(0), scan - scan.mean(axis=0))
