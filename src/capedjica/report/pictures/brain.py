"""Peaks of brain maps, as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.ndimage import label

from capedjica.data.templates import read_names
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


# Threshold for clusters, for maps with a largest absolute value of 1.
CLUSTER_HEIGHT: Final = 0.5


@dataclass(frozen=True)
class Peak:
    """The peak of one cluster of neighbouring voxels of a map.

    Attributes
    ----------
    component : int
        Number of the map, from 1.
    x, y, z : float
        Coordinates of the peak in mm, in the space of the image.
    value : float
        Value of the map at the peak.
    cluster_voxels, cluster_mm3 : int, float
        Size of the cluster.
    region : str
        Atlas region at the peak; empty if there is none.
    """

    component: int
    x: float
    y: float
    z: float
    value: float
    cluster_voxels: int
    cluster_mm3: float
    region: str = ""


def find_peaks(image: Nifti1Image, regions: RegionsAt | None = None) -> list[Peak]:
    """Return the peaks of every map of a 4-D image, by map and then by height."""
    affine: FloatArray = np.asarray(image.affine, dtype=np.float64)
    maps = np.moveaxis(np.asarray(image.dataobj, dtype=np.float64), -1, 0)
    found = [
        peak
        for number, values in enumerate(maps, start=1)
        for peak in _peaks(number, values, affine, regions)
    ]
    return sorted(found, key=lambda peak: (peak.component, -abs(peak.value)))


def _peaks(
    component: int, values: FloatArray, affine: FloatArray, regions: RegionsAt | None
) -> Iterator[Peak]:
    voxel = float(abs(np.linalg.det(affine[:3, :3])))
    for sign in (1.0, -1.0):
        clusters, count = label(sign * values >= CLUSTER_HEIGHT)
        for cluster in range(1, count + 1):
            places = np.argwhere(clusters == cluster)
            heights = values[tuple(places.T)]
            highest = places[np.abs(heights) == np.abs(heights).max()]
            # Values within an atlas region are equal: of several highest voxels, take the most central.
            distance = np.linalg.norm(highest - highest.mean(axis=0), axis=1)
            centre = affine[:3] @ [*highest[distance.argmin()], 1.0]
            x, y, z = (float(mm) for mm in np.round(centre, 1))
            height = float(heights[np.abs(heights).argmax()])
            size = len(places), len(places) * voxel
            yield Peak(component, x, y, z, height, *size, "" if regions is None else regions.at(x, y, z))


class RegionsAt:
    """Lookup of atlas regions by coordinates.

    Parameters
    ----------
    atlas : Nifti1Image
        3-D image of labels.
    names : mapping of int to str
        Names of labels; labels without a name are shown by their number.
    """

    def __init__(self, atlas: Nifti1Image, names: Mapping[int, str]) -> None:
        self._labels = np.asarray(atlas.dataobj)
        self._to_voxel, self._names = np.linalg.inv(np.asarray(atlas.affine)), names

    def at(self, x: float, y: float, z: float) -> str:
        """Return the region at coordinates in mm; empty outside all regions."""
        place = np.round(self._to_voxel[:3] @ [x, y, z, 1.0]).astype(int)
        if (place < 0).any() or (place >= self._labels.shape).any():
            return ""
        number = int(self._labels[tuple(place)])
        return self._names.get(number, f"region {number}") if number else ""


def read_region_names(path: Path) -> dict[int, str]:
    """Read a table of region names, numbered from 1 if it has no numbers; empty if it is unreadable."""
    try:
        table = read_names(path)
    except InputError:
        return {}
    return dict(zip(table.numbers or range(1, len(table.names) + 1), table.names, strict=True))


def peaks_csv(peaks: Sequence[Peak]) -> bytes:
    """Return peaks as a CSV table."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow([field.name for field in fields(Peak)])
    for peak in peaks:
        table.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in astuple(peak)])
    return text.getvalue().encode()
