"""Maps of the brain for people: where they peak, as a table, and slices over the MNI152 template."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import label, map_coordinates

from capedjica.algorithms.ica.reliability import STABLE
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


# A cluster is what is at least this high, the largest absolute value of a map being 1.
CLUSTER_HEIGHT: Final = 0.5
# Axial slices, mm above the anterior commissure; pixels of 2 mm within the box of the template.
SLICES: Final = (-45, -30, -15, 0, 15, 30, 45, 60)
_X: Final = np.arange(-80.0, 81.0, 2.0)
_Y: Final = np.arange(-112.0, 79.0, 2.0)
# Lower values of a map let the brain be seen.
_SHOWN_FROM: Final = 0.25
_INK: Final = "#333333"


@dataclass(frozen=True)
class Peak:
    """A place where a map is high: one cluster of neighbouring voxels.

    Attributes
    ----------
    component : int
        Number of the map, from 1.
    x, y, z : float
        The peak in mm, in the space of the image.
    value : float
        Of the map at its peak.
    cluster_voxels, cluster_mm3 : int, float
        Size of the cluster.
    region : str
        Of the atlas at the peak, if there is one.
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
    """Return the peaks of every map of a 4-D image, the highest of a map first."""
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
            centre = affine[:3] @ [*_middle(places[np.abs(heights) == np.abs(heights).max()]), 1.0]
            x, y, z = (float(mm) for mm in np.round(centre, 1))
            height = float(heights[np.abs(heights).argmax()])
            size = len(places), len(places) * voxel
            yield Peak(component, x, y, z, height, *size, "" if regions is None else regions.at(x, y, z))


def _middle(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the one of several places that is closest to their mean: a region of an atlas is flat."""
    distance = np.linalg.norm(places - places.mean(axis=0), axis=1)
    nearest: NDArray[np.intp] = places[distance.argmin()]
    return nearest


class RegionsAt:
    """The regions of an atlas of labels by place.

    Parameters
    ----------
    atlas : Nifti1Image
        Labels, 3-D.
    names : mapping of int to str
        What labels are called; others are shown as numbers.
    """

    def __init__(self, atlas: Nifti1Image, names: Mapping[int, str]) -> None:
        self._labels = np.asarray(atlas.dataobj)
        self._to_voxel, self._names = np.linalg.inv(np.asarray(atlas.affine)), names

    def at(self, x: float, y: float, z: float) -> str:
        """Return the region at a place in mm; empty outside of all."""
        place = np.round(self._to_voxel[:3] @ [x, y, z, 1.0]).astype(int)
        if (place < 0).any() or (place >= self._labels.shape).any():
            return ""
        number = int(self._labels[tuple(place)])
        return self._names.get(number, str(number)) if number else ""


def read_region_names(path: Path) -> dict[int, str]:
    """Read a table of regions as BIDS has it, with the columns ``index`` and ``name``; else nothing."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return {int(row["index"]): row["name"] for row in csv.DictReader(file, delimiter="\t")}
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        return {}


def write_peaks(path: Path, peaks: Sequence[Peak]) -> None:
    """Write peaks as a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow([field.name for field in fields(Peak)])
        for peak in peaks:
            table.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in astuple(peak)])


# Slices


def slices_figure(image: Nifti1Image, title: str, stability: FloatArray | None = None) -> Figure:
    """Show axial slices of every map of a 4-D image, one row per map, over the template.

    The left of the brain is on the left. Maps that are not stable are faded.
    """
    rows, template = _montages(image), _montages(_template())[0]
    figure = Figure(figsize=(1.05 * len(SLICES), 0.9 + 1.22 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=12, color=_INK)
    for number, (axis, values) in enumerate(
        zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True)
    ):
        faded = stability is not None and stability[number] < STABLE
        axis.imshow(np.where(template > 0, template, np.nan), cmap="gray", vmin=0, vmax=1.2 * template.max())
        shown = np.ma.masked_where(np.abs(values) < _SHOWN_FROM, values)
        axis.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1, alpha=0.3 if faded else 0.9)
        axis.set(xticks=[], yticks=[], frame_on=False)
        axis.set_title(_caption(number, stability), fontsize=8, color=_INK, loc="left", pad=2)
    _label_slices(axis)
    return figure


def _caption(number: int, stability: FloatArray | None) -> str:
    if stability is None:
        return str(number + 1)
    return f"{number + 1}: stability {stability[number]:.2f}" + " unstable" * bool(stability[number] < STABLE)


def _label_slices(axis) -> None:  # type: ignore[no-untyped-def]
    middles = (np.arange(len(SLICES)) + 0.5) * len(_X)
    axis.set_xticks(middles, [f"z = {height}" for height in SLICES], fontsize=7, color=_INK)
    axis.tick_params(length=0)
    axis.set_xlabel("mm above the anterior commissure; left is left", fontsize=7, color=_INK)


def _montages(image: Nifti1Image) -> list[FloatArray]:
    """Return each volume of an image as its slices side by side, front at the top."""
    values, to_voxel = np.asarray(image.dataobj, dtype=np.float64), np.linalg.inv(np.asarray(image.affine))
    volumes = values[..., np.newaxis] if values.ndim == 3 else values
    z, y, x = np.meshgrid(np.array(SLICES, dtype=float), _Y[::-1], _X, indexing="ij")
    places = np.tensordot(to_voxel[:3], np.stack([x, y, z, np.ones_like(x)]), axes=1)
    return [
        np.concatenate(list(map_coordinates(volume, places, order=1)), axis=1)
        for volume in np.moveaxis(volumes, -1, 0)
    ]


def _template() -> Nifti1Image:
    from nilearn.datasets import load_mni152_template

    template: Nifti1Image = load_mni152_template(resolution=1)
    return template
