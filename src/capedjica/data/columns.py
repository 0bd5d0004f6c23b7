"""Tables of region time series taken as they are: every column is a feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capedjica.data.scans import FloatArray, Problem, Recording, Scan
from capedjica.data.timeseries import read_scan, scan_problems

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


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
        scan = read_scan(recording.path)
        if scan.ndim != 2 or scan.shape[1] != self.n_features:
            raise ValueError("not (time, features)")
        return self._cleaned(scan) if self.detrend or self.standardize else scan

    def _cleaned(self, scan: Scan) -> Scan:
        from nilearn.signal import clean

        cleaned: Scan = clean(
            scan,
            detrend=self.detrend,
            standardize="zscore_sample" if self.standardize else None,
            ensure_finite=False,
        )
        return cleaned

    def problems(self, recording: Recording) -> list[Problem]:
        """Return why a file cannot be used."""
        return scan_problems(recording.path, self.n_features)

    def layout(self, recording: Recording) -> str:
        """Return nothing: columns are not on a grid."""
        return ""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return None: columns have no places."""
        return None
