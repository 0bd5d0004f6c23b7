"""The words that all readers of scans share: a person, their recordings, and the features made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from capedjica.data.timeseries import Problem, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Recording:
    """One run of the scanner.

    Attributes
    ----------
    path : Path
        A 4-D image, or a table or array (time, features).
    confounds : Path, optional
        fMRIPrep's table of confounds that belongs to it.
    """

    path: Path
    confounds: Path | None = None


@dataclass(frozen=True)
class Person:
    """One subject with all their recordings, which count as one: privacy is that of people."""

    name: str
    recordings: tuple[Recording, ...]


class Features(Protocol):
    """What a study makes of a recording, the same at every site and from this recording alone."""

    @property
    def n_features(self) -> int:
        """D, columns of every series."""

    @property
    def basis(self) -> FloatArray | None:
        """The public basis (K, D) of smooth maps on the grid of the features, None where there is none."""

    @property
    def key(self) -> bytes:
        """What determines a series besides the recording; another key makes other series."""

    def series(self, recording: Recording) -> Scan:
        """Return (time, features) of one recording; raise whatever comes when there is none."""

    def problems(self, recording: Recording) -> list[Problem]:
        """Return everything that is wrong with a recording, for its own site to read."""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return maps (R, D) as a 4-D image in the space of the features, None where they have none."""
