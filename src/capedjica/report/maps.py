"""Display of maps in a report: brain slices, pixel images or feature profiles."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from capedjica.algorithms.reliability import Reliability
from capedjica.data.centres import APPROXIMATE
from capedjica.report.downloads import MOST_INSIDE, Download, Figure, address, png, table
from capedjica.report.labels import MapLabel, MapLabels
from capedjica.report.pictures import charts, slices
from capedjica.report.pictures.brain import Peak
from capedjica.report.pictures.slices import SLICES
from capedjica.report.pictures.viewer import volumes
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

_FEATURES_LISTED: Final = 10
_PEAKS_LISTED: Final = 6


@dataclass(frozen=True, eq=False)
class MapSet:
    """The maps of one analysis.

    Attributes
    ----------
    values : array (R, D)
        The maps, each with 1 as its largest absolute value.
    stability : array (R,), optional
        Stability of each map.
    image : Nifti1Image, optional
        The maps as a 4-D brain image.
    image_shape : pair of int, optional
        Height and width, if the features are pixels.
    peaks : sequence of Peak
        Peaks of the maps, if there is an image.
    names : sequence of str
        Names of the networks; empty if they have none.
    noisy : bool
        Whether privacy noise was added to the means from which the maps were computed.
    labels : MapLabels, optional
        Labels from comparing the maps with an atlas.
    of_difference : bool
        Whether the stability is that of the differences from a template.
    denoised : MapSet, optional
        The same maps denoised, for viewing, in the same order.
    denoised_towards : str
        The prior of the denoised maps in words, such as "smooth maps".
    approximate : bool
        Whether the borders of regions are approximate, because only their centres are known.
    """

    values: FloatArray
    stability: FloatArray | None = None
    image: Nifti1Image | None = None
    image_shape: tuple[int, int] | None = None
    peaks: Sequence[Peak] = ()
    names: Sequence[str] = ()
    noisy: bool = True
    labels: MapLabels | None = None
    of_difference: bool = False
    denoised: MapSet | None = None
    denoised_towards: str = ""
    approximate: bool = False

    @property
    def reliability(self) -> Reliability:
        """Reliability of the maps."""
        return Reliability(len(self), self.stability, self.noisy, self.of_difference)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def borders(self) -> str:
        """Sentence about approximate borders of regions; empty if they are exact."""
        return APPROXIMATE if self.approximate and self.image is not None else ""

    @property
    def look(self) -> str:
        """Form in which maps are shown: "slices", "pixels" or "profile"."""
        if self.image is not None:
            return "slices"
        return "profile" if self.image_shape is None else "pixels"

    def title(self, index: int) -> str:
        """Return the title of a map: its number, and its name if it has one."""
        label = self.label(index)
        name = self.names[index] if self.names else "" if label is None else label.name
        return f"Map {index + 1}: {name}" if name else f"Map {index + 1}"

    def label(self, index: int) -> MapLabel | None:
        """Return the label of a map; None if the maps were not compared with an atlas."""
        return None if self.labels is None else self.labels.maps[index]

    def faded(self, index: int) -> bool:
        """Return whether a map is unreliable, and therefore shown faded."""
        return self.reliability.poor(index)


@dataclass(frozen=True)
class Component:
    """One map as shown in a report."""

    number: int
    title: str
    mark: str
    reliable: bool
    figure: Figure
    peaks: tuple[Peak, ...]
    features: tuple[tuple[int, float], ...]
    label: MapLabel | None = None
    denoised: Figure | None = None


def components(maps: MapSet) -> list[Component]:
    """Return all maps in the form shown in a report, with their denoised versions if there are any."""
    raw, denoised = map_figures(maps), _denoised_figures(maps)
    return [
        Component(
            number=number,
            title=maps.title(number - 1),
            mark=maps.reliability.mark(number - 1),
            reliable=not maps.faded(number - 1),
            figure=figure if smooth is None else replace(figure, caption="raw (for inference)"),
            peaks=tuple(peak for peak in maps.peaks if peak.component == number)[:_PEAKS_LISTED],
            features=_highest(maps.values[number - 1]) if maps.look == "profile" else (),
            label=maps.label(number - 1),
            denoised=smooth,
        )
        for number, (figure, smooth) in enumerate(zip(raw, denoised, strict=True), start=1)
    ]


def _denoised_figures(maps: MapSet) -> Sequence[Figure | None]:
    """Return a picture of every denoised map: the slices, colours and fading of the raw one."""
    if maps.denoised is None:
        return [None] * len(maps)
    # Reliability, names and labels are those of the raw maps; peaks are reported for raw maps only.
    shown = replace(maps, values=maps.denoised.values, image=maps.denoised.image, peaks=(), denoised=None)
    return [
        replace(
            one,
            alt=f"Denoised, for viewing: {one.alt}",
            caption=f"denoised (for viewing): shrunk towards {maps.denoised_towards}",
            numbers=None
            if one.numbers is None
            else replace(one.numbers, name=one.numbers.name.replace(".csv", "-denoised.csv")),
        )
        for one in map_figures(shown)
    ]


def _highest(values: FloatArray) -> tuple[tuple[int, float], ...]:
    order = np.argsort(-np.abs(values), kind="stable")[:_FEATURES_LISTED]
    return tuple((int(index) + 1, float(values[index])) for index in order)


def map_figures(maps: MapSet) -> list[Figure]:
    """Return a picture of every map."""
    if maps.image is not None:
        return [_slices(maps, index, cut) for index, cut in enumerate(slices.axial(maps.image))]
    draw = _profile if maps.image_shape is None else _square
    return [draw(maps, index) for index in range(len(maps))]


def _slices(maps: MapSet, index: int, cut: FloatArray) -> Figure:
    peaks = [peak for peak in maps.peaks if peak.component == index + 1]
    highest = "; ".join(f"({p.x:g}, {p.y:g}, {p.z:g}) {p.region}".strip() for p in peaks[:3])
    heights = ", ".join(map(str, SLICES))
    return Figure(
        alt=f"{maps.title(index)} on {len(SLICES)} axial slices of a brain, left on the left, at z = "
        f"{heights} mm."
        + (f" Its highest peaks are at the MNI coordinates x, y, z in mm: {highest}." if peaks else ""),
        picture=png(slices.over_brain(cut, maps.faded(index))),
        marks=tuple(f"z = {height}" for height in SLICES),
        sides=True,
        numbers=table(
            f"map-{index + 1:02d}-peaks.csv", [one.name for one in fields(Peak)], [astuple(p) for p in peaks]
        )
        if peaks
        else None,
    )


def _square(maps: MapSet, index: int) -> Figure:
    assert maps.image_shape is not None
    values = maps.values[index].reshape(maps.image_shape)
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    return Figure(
        alt=f"{maps.title(index)} as an image of {values.shape[0]} by {values.shape[1]} pixels, with its "
        f"peak in row {row + 1} from the top, column {column + 1} from the left.",
        picture=png(slices.square(values, maps.faded(index), 1.0)),
        numbers=table(
            f"map-{index + 1:02d}.csv", [str(i + 1) for i in range(values.shape[1])], values.tolist()
        ),
    )


def _profile(maps: MapSet, index: int) -> Figure:
    values = maps.values[index]
    highest = ", ".join(str(feature) for feature, _ in _highest(values)[:3])
    rows = [(feature + 1, float(value)) for feature, value in enumerate(values)]
    return Figure(
        alt=f"{maps.title(index)} as one value for each of {len(values):,} features, with the largest values "
        f"at features {highest}.",
        drawing=charts.profile(values, "feature", "value", maps.faded(index)),
        numbers=table(f"map-{index + 1:02d}.csv", ["feature", "value"], rows),
    )


def viewer_data(maps: MapSet) -> str:
    """Return the data for the brain viewer as JSON; empty if there is no brain image."""
    if maps.image is None:
        return ""
    names = [maps.title(index) for index in range(len(maps))]
    faded = [maps.faded(index) for index in range(len(maps))]
    # The JSON is embedded in a script element, which a name containing "</script>" must not close.
    return json.dumps(volumes(maps.image, names, faded), separators=(",", ":")).replace("<", "\\u003c")


def maps_file(maps: MapSet) -> Download | None:
    """Return all maps in one file; None if it is too large to be embedded in a page."""
    if maps.image is None:
        columns = list(maps.names) or [f"map {number}" for number in range(1, len(maps) + 1)]
        found = table("maps.csv", columns, maps.values.T.tolist())
    else:
        # With 16 bits per value the rounding error is below 2e-5.
        small = type(maps.image)(np.asarray(maps.image.dataobj, dtype=np.float32), maps.image.affine)
        small.set_data_dtype(np.int16)  # type: ignore[no-untyped-call]
        packed = gzip.compress(small.to_bytes(), 6, mtime=0)
        found = Download("maps.nii.gz", address(packed, "application/gzip"))
    return found if len(found.address) < MOST_INSIDE else None
