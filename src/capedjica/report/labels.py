r"""Labels for maps: the best matches in an atlas or template, and flags for possible artefacts.

Labels are computed from published maps and public images, so they have no privacy cost. Maps are compared as
published, without denoising.

**Matches.** Let u be the map of a network, centred and scaled to unit norm over the V voxels of the features,
and a a reference map scaled in the same way. Their correlation is u'a. A label l of n voxels is a map of 0
and 1, for which

.. math:: r_l = \frac{\sum_{v \in l} u_v}{\sqrt{n (1 - n / V)}},                                   (1)

and the Dice coefficient compares it with the set h of voxels at which the map is at least half as high as at
its peak: twice the size of their intersection, divided by the sum of their sizes. The sign of a network is
arbitrary, so matches are sorted by absolute correlation. A map whose best match is below 0.25, the smallest
correlation that Smith et al. 2009 (PNAS 106:13040) counted as a match, gets no name.

**Artefacts.** The weight of a map is the sum of its absolute values over the voxels of its clusters. The
fractions of this weight at the edge of the brain, in the ventricles (CSF) and in white matter are computed.
Head motion appears at the edge, cardiac and respiratory signals in the ventricles (Griffanti et al. 2017,
NeuroImage 154:188). A map is flagged if a fraction is at least `LEAST_OVERLAP` and twice that of a uniform
map. A flag is a reason to inspect the map.

**Names from a template.** A map that was estimated from a template has the template's name. It resembles the
template because estimation started there, so that correlation is not evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion

from capedjica.algorithms.analysis import ResultTable
from capedjica.data.images import new_image
from capedjica.data.references import Reference, on_grid, read_reference, read_tissue
from capedjica.errors import InputError
from capedjica.report.pictures.brain import CLUSTER_HEIGHT, Peak, RegionsAt, find_peaks
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

LEAST_CORRELATION: Final = 0.25
N_MATCHES: Final = 3
EDGE: Final = "edge of the brain"
LEAST_OVERLAP: Final = {EDGE: 0.5, "ventricles": 0.25, "white matter": 0.5}
NOT_EVIDENCE: Final = (
    "Maps that were estimated from a template have its names. They resemble it because estimation started "
    "there: their correlation with it, or with an atlas derived from the same data, is not evidence."
)


@dataclass(frozen=True)
class Match:
    """A known network or region that resembles a map.

    Attributes
    ----------
    name, system : str
        Its name, and the system it belongs to.
    correlation : float
        Correlation with the map, between -1 and 1.
    dice : float, optional
        Dice coefficient with the clusters of the map, for labels.
    """

    name: str
    system: str
    correlation: float
    dice: float | None = None


@dataclass(frozen=True)
class MapLabel:
    """Label of one map.

    Attributes
    ----------
    component : int
        Number of the map, from 1.
    name, system : str
        Name and system from the template it was estimated from, or of the best match; empty without a match.
    inherited : bool
        Whether the name is that of the template.
    matches : tuple of Match
        The best matches, by absolute correlation.
    overlaps : dict
        Fractions of its weight at the edge and in the given tissues.
    artefacts : tuple of str
        The places whose fraction is so large that the map may be an artefact.
    """

    component: int
    name: str
    system: str
    inherited: bool
    matches: tuple[Match, ...]
    overlaps: dict[str, float]
    artefacts: tuple[str, ...]


@dataclass(frozen=True)
class MapLabels:
    """Labels of all maps of an analysis.

    Attributes
    ----------
    source : str
        Short name of the reference; empty without one.
    maps : tuple of MapLabel
        Labels, in the order of the maps.
    peaks : tuple of Peak
        Peaks of the maps, with the regions of the reference if it has labels.
    """

    source: str
    maps: tuple[MapLabel, ...]
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True, eq=False)
class LabelSources:
    """Public images used to label maps, created by :meth:`read`.

    Attributes
    ----------
    reference : Reference, optional
        Known networks or regions.
    tissues : dict
        Tissue masks by name.
    """

    reference: Reference | None
    tissues: Mapping[str, Nifti1Image]

    @classmethod
    def read(
        cls, labels: Any = None, names: Any = None, csf: Any = None, white_matter: Any = None
    ) -> LabelSources:
        """Read the given images, each an image, its path or None; refuse inconsistent arguments."""
        if labels is None and names is not None:
            raise InputError("names of labels are given, but no labels; give labels as well")
        given = {"ventricles": csf, "white matter": white_matter}
        if labels is None and csf is None and white_matter is None:
            raise InputError("no source of labels: give labels (an image or array), csf or white_matter")
        tissues = {
            name: read_tissue(image, f"the mask of {name}")
            for name, image in given.items()
            if image is not None
        }
        return cls(None if labels is None else read_reference(labels, names), tissues)

    def placed(self, image: Nifti1Image | None, n_features: int, edge: bool = False) -> PlacedSources:
        """Resample the sources to the grid of the maps; refuse images in another space.

        Parameters
        ----------
        image : Nifti1Image or None
            4-D image of maps, nonzero at the features; None if features have no coordinates.
        n_features : int
            Number of features, D.
        edge : bool
            Whether the features are the voxels of a brain mask, which has an edge.
        """
        inside = np.zeros((0, 0, 0), dtype=bool) if image is None else np.any(image.dataobj, axis=3)
        if image is None and self.tissues:
            raise InputError("tissue masks are given, but the maps are not images; omit csf and white_matter")
        reference = self.reference
        values = None if reference is None else reference.within(image, inside, n_features)
        tissues = {EDGE: _edge(inside)} if edge else {}
        for name, mask in self.tissues.items():
            assert image is not None
            tissues[name] = on_grid(f"the mask of {name}", mask, image, inside, "nearest") > 0
        return PlacedSources(reference, values, tissues, inside)


@dataclass(frozen=True, eq=False)
class PlacedSources:
    """Label sources on the grid of the maps, created by :meth:`LabelSources.placed`."""

    reference: Reference | None
    values: NDArray[Any] | None
    tissues: Mapping[str, NDArray[np.bool_]]
    inside: NDArray[np.bool_]

    def label(self, maps: FloatArray, image: Nifti1Image | None, names: Sequence[str] = ()) -> MapLabels:
        """Label maps.

        Parameters
        ----------
        maps : array (R, D)
            The published maps.
        image : Nifti1Image or None
            The same as a brain image, each map scaled to a largest absolute value of 1.
        names : sequence of str
            Names from the template that the maps were estimated from; empty without one.
        """
        voxels = None if image is None else np.asarray(image.dataobj, dtype=np.float64)[self.inside].T
        by_features = self.reference is not None and self.reference.affine is None
        matches = self._matches(maps if by_features or voxels is None else voxels)
        found = []
        for index in range(len(maps)):
            overlaps = {} if voxels is None else self._overlaps(voxels[index])
            found.append(_label(index, matches[index], overlaps, self._flags(overlaps), names))
        source = "" if self.reference is None else self.reference.source
        return MapLabels(source, tuple(found), () if image is None else self._peaks(image))

    def _matches(self, maps: FloatArray) -> list[tuple[Match, ...]]:
        reference = self.reference
        if reference is None:
            return [()] * len(maps)
        assert self.values is not None
        dice = None
        if reference.labels is None:
            correlations = _unit(maps) @ _unit(self.values.astype(np.float64)).T
        else:
            correlations, dice = _compare_labels(maps, self.values, reference.labels)
        systems = reference.systems or ("",) * len(reference.names)
        return [
            tuple(
                Match(
                    reference.names[k],
                    systems[k],
                    float(correlations[r, k]),
                    None if dice is None else float(dice[r, k]),
                )
                for k in np.argsort(-np.abs(correlations[r]), kind="stable")[:N_MATCHES]
            )
            for r in range(len(maps))
        ]

    def _overlaps(self, values: FloatArray) -> dict[str, float]:
        weight = np.abs(values) * _high(values)
        total = float(weight.sum()) or 1.0
        return {name: float(weight[tissue].sum()) / total for name, tissue in self.tissues.items()}

    def _flags(self, overlaps: Mapping[str, float]) -> tuple[str, ...]:
        return tuple(
            name
            for name, part in overlaps.items()
            if part >= max(LEAST_OVERLAP[name], 2 * float(self.tissues[name].mean()))
        )

    def _peaks(self, image: Nifti1Image) -> tuple[Peak, ...]:
        reference, regions = self.reference, None
        if reference is not None and reference.labels is not None and reference.affine is not None:
            named = dict(zip(reference.labels, reference.names, strict=True))
            regions = RegionsAt(new_image(reference.values, reference.affine), named)
        return tuple(find_peaks(image, regions))


def _label(
    index: int,
    matches: tuple[Match, ...],
    overlaps: dict[str, float],
    flags: tuple[str, ...],
    names: Sequence[str],
) -> MapLabel:
    best = matches[0] if matches and abs(matches[0].correlation) >= LEAST_CORRELATION else None
    name, system = ("", "") if best is None else (best.name, best.system)
    if names:
        return MapLabel(index + 1, names[index], "", True, matches, overlaps, flags)
    return MapLabel(index + 1, name, system, False, matches, overlaps, flags)


def _unit(rows: FloatArray) -> FloatArray:
    """Return rows centred and scaled to unit norm; constant rows become zero."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    flat = length <= 1e-12 * np.abs(rows).max(axis=1, keepdims=True)
    unit: FloatArray = np.where(flat, 0.0, centred / np.where(flat, 1.0, length))
    return unit


def _high(values: FloatArray) -> NDArray[np.bool_]:
    heights = np.abs(values)
    return heights >= CLUSTER_HEIGHT * max(float(heights.max()), np.finfo(float).tiny)


def _compare_labels(
    maps: FloatArray, labels: NDArray[Any], numbers: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return correlations by (1) and Dice coefficients, (R, N); zero for labels without voxels here."""
    count, places = len(numbers), maps.shape[1]
    # In the index, label k has number k + 1, and the background has 0.
    index = np.where(labels == 0, 0, np.searchsorted(numbers, labels) + 1)
    sizes = np.bincount(index, minlength=count + 1)[1:].astype(float)
    spread = np.sqrt(sizes * (1 - sizes / places))
    high = [_high(values) for values in maps]
    sums = np.array([_per_label(index, values, count) for values in _unit(maps)])
    shared = np.array([_per_label(index, values, count) for values in high])
    together = sizes + np.array([np.count_nonzero(values) for values in high])[:, np.newaxis]
    return sums / np.where(spread > 0, spread, np.inf), 2 * shared / together


def _per_label(index: NDArray[np.intp], values: NDArray[Any], count: int) -> FloatArray:
    return np.bincount(index, weights=values.astype(float), minlength=count + 1)[1:].astype(float)


def _edge(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask (V,) of the voxels that have a neighbour outside the brain mask."""
    edge: NDArray[np.bool_] = ~binary_erosion(inside)[inside]
    return edge


# Tables


def label_table(labels: MapLabels) -> ResultTable:
    """Return the labels as a table with one row per map."""
    dice = any(match.dice is not None for one in labels.maps for match in one.matches)
    grouped = any(match.system for one in labels.maps for match in one.matches)
    tissues = list(labels.maps[0].overlaps) if labels.maps else []
    columns = ["map", "name", *["system"] * grouped, "x", "y", "z", "region"]
    for number in range(1, N_MATCHES + 1) if labels.source else ():
        columns += [f"match {number}", f"correlation {number}", *[f"dice {number}"] * dice]
    columns += [*tissues, *["may be an artefact of"] * bool(tissues)]
    rows = [list(_cells(one, labels, grouped, dice)) for one in labels.maps]
    return ResultTable("labels", _caption(labels), columns, rows)


def _cells(one: MapLabel, labels: MapLabels, grouped: bool, dice: bool) -> Iterator[Any]:
    yield from (one.component, one.name, *[one.system] * grouped)
    peak = next((peak for peak in labels.peaks if peak.component == one.component), None)
    yield from ("", "", "", "") if peak is None else (peak.x, peak.y, peak.z, peak.region)
    for number in range(N_MATCHES) if labels.source else ():
        match = one.matches[number] if number < len(one.matches) else None
        yield from ("", "") if match is None else (match.name, match.correlation)
        if dice:
            yield "" if match is None or match.dice is None else match.dice
    yield from one.overlaps.values()
    if one.overlaps:
        yield ", ".join(one.artefacts)


def _caption(labels: MapLabels) -> str:
    words = []
    if labels.source:
        words.append(
            f"The best matches of each map in {labels.source}, by correlation with the raw maps; a map whose "
            f"best match is below {LEAST_CORRELATION:g} has no name. A name states what a map resembles; it "
            "does not show that the map is more than noise."
        )
    if any(one.overlaps for one in labels.maps):
        words.append(
            "Fractions of a map's weight at the edge of the brain or in tissue other than grey matter: if "
            "one is large, the map may be an artefact."
        )
    if any(one.inherited for one in labels.maps):
        words.append(NOT_EVIDENCE)
    return " ".join(words)
