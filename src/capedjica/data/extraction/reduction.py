r"""Reduction of the volumes of an image to regions or voxels, while they are read.

**Regions.** The values of the regions are linear in the volume x, :math:`y = P A x`: A has one row of weights
per region, stored as runs of consecutive voxels, and P is small. For labels, A has ones and P divides by the
number of voxels. For maps M, least squares gives :math:`P = (M' M)^{-1}` and :math:`A = M'`.

**Smoothing.** A Gaussian filter S is linear, and symmetric if values are reflected at the border, as nilearn
does: one voxel is reached through a mirror as often as it reaches the other. Regions of a smoothed volume are
therefore :math:`A S x = (S A')' x`: the weights are smoothed once instead of every volume. Wide filters make
dense weights; where that would be more work, and for voxels, the volumes are smoothed.

**Scale.** Stored integers i stand for :math:`s i + c`. As everything is linear, both are applied to the
result; the intercept is multiplied by the sum of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from capedjica.data.extraction.kernels import (
    Float32Array,
    Indices,
    add_weighted_runs,
    gather_changes,
    smooth_volumes,
    subtract_first,
)
from capedjica.data.extraction.volumes import NotStreamedError, StoredVolumes
from capedjica.tools.arrays import FloatArray

# Scipy's default, used by nilearn: a kernel ends after this many standard deviations.
_TRUNCATE: Final = 4.0
# Weights per voxel of a volume above which it is faster to smooth the volumes.
_MOST_WEIGHTS: Final = 8
# Condition number of an atlas of maps above which least squares is left to nilearn.
_WORST_CONDITION: Final = 1e4

Shape = tuple[int, int, int]
Box = tuple[slice, slice, slice]
Weights = Iterable[tuple[Box, NDArray[Any]]]
_NOWHERE: Final = (slice(0, 0), slice(0, 0), slice(0, 0))


@dataclass(frozen=True, eq=False)
class Changes:
    """Series (time, features) as the difference from the first time point.

    Attributes
    ----------
    first : ndarray of float64, shape (D,)
        The first time point.
    changes : ndarray of float32, shape (T, D)
        The difference of every time point from it.
    """

    first: FloatArray
    changes: Float32Array


@dataclass(frozen=True, eq=False)
class Smoother:
    """A Gaussian filter on a grid.

    Parameters
    ----------
    widths : tuple of float
        Standard deviation along each axis, in voxels.
    """

    widths: tuple[float, float, float]

    @classmethod
    def of_grid(cls, fwhm: float, affine: FloatArray) -> Smoother:
        """Return the filter of a full width at half maximum in mm."""
        sides = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
        widths = fwhm / (np.sqrt(8 * np.log(2)) * sides)
        return cls((float(widths[0]), float(widths[1]), float(widths[2])))

    def weights(self, values: NDArray[Any]) -> FloatArray:
        """Return a 3-D array smoothed in double precision."""
        from scipy.ndimage import gaussian_filter1d

        smooth = np.asarray(values, dtype=np.float64)
        for axis, width in enumerate(self.widths):
            smooth = gaussian_filter1d(smooth, width, axis=axis, truncate=_TRUNCATE)
        return smooth

    def widened(self, box: Box, shape: Shape) -> Box:
        """Return the part of the grid to which values in a box contribute."""
        radii = map(self._radius, self.widths)
        edges = [
            slice(max(side.start - radius, 0), min(side.stop + radius, n))
            for side, radius, n in zip(box, radii, shape, strict=True)
        ]
        return edges[0], edges[1], edges[2]

    @staticmethod
    def _radius(width: float) -> int:
        return int(_TRUNCATE * width + 0.5)

    def volumes(self, volumes: Float32Array, shape: Shape) -> None:
        """Smooth flat volumes in place, in single precision."""
        radius = max(map(self._radius, self.widths))
        kernels = [_gaussian(width, self._radius(width), radius) for width in self.widths]
        places = [_reflected(n, radius) for n in shape]
        smooth_volumes(
            volumes, shape, (kernels[0], kernels[1], kernels[2]), (places[0], places[1], places[2])
        )


def _gaussian(width: float, own_radius: int, radius: int) -> Float32Array:
    """Return a normalised kernel that ends at its own radius, padded with zeros to a common one."""
    places = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (places / width) ** 2) * (np.abs(places) <= own_radius)
    normalised: Float32Array = (kernel / kernel.sum()).astype(np.float32)
    return normalised


def _reflected(length: int, radius: int) -> Indices:
    """Return the index of every place from -radius to length + radius, reflected at the ends."""
    places = np.arange(-radius, length + radius) % (2 * length)
    return np.where(places < length, places, 2 * length - 1 - places)


@dataclass(eq=False)
class SmoothChanges:
    """Smoothed volumes as the difference from the first, whose own smoothed values are ``origin``.

    Single precision then suffices. The origin, in double precision, is known after the first piece.
    """

    volumes: StoredVolumes
    smoother: Smoother
    origin: FloatArray = field(default_factory=lambda: np.empty(0))

    def pieces(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the volumes, all in the same memory."""
        shape = self.volumes.shape
        first, memory = np.empty(0), np.empty((0, 0), dtype=np.float32)
        for times, piece in self.volumes.pieces():
            if times.start == 0:
                first, memory = piece[0].astype(np.float64), np.empty(piece.shape, dtype=np.float32)
                smooth = self.smoother.weights(first.reshape(shape, order="F"))
                self.origin = smooth.ravel(order="F")
            changes = memory[: len(piece)]
            subtract_first(piece, first, changes)
            self.smoother.volumes(changes, shape)
            yield times, changes


class Reduction(Protocol):
    """Features as a linear function of a volume on one grid."""

    def reduce(self, volumes: StoredVolumes) -> Changes:
        """Return the series of an image on this grid; raise NotStreamedError if it cannot be read."""


class VoxelReduction:
    """The voxels of a mask, in the order of NumPy.

    Parameters
    ----------
    inside : ndarray of bool
        The mask.
    smoother : Smoother, optional
        Filter to apply to the volumes.
    """

    def __init__(self, inside: NDArray[np.bool_], smoother: Smoother | None) -> None:
        self._positions = np.arange(inside.size).reshape(inside.shape, order="F")[inside]
        self._smoother = smoother

    def reduce(self, volumes: StoredVolumes) -> Changes:
        """Return the series of an image on this grid; raise NotStreamedError if it cannot be read."""
        positions, smoother = self._positions, self._smoother
        source = volumes if smoother is None else SmoothChanges(volumes, smoother)
        changes = np.empty((volumes.n_volumes, len(positions)), dtype=np.float32)
        first = np.zeros(len(positions))
        for times, piece in source.pieces():
            if times.start == 0:
                first = piece[0][positions].astype(np.float64)
            if not gather_changes(piece, positions, first, changes[times]):
                raise NotStreamedError
        if isinstance(source, SmoothChanges):
            first += source.origin[positions]
        if volumes.slope != 1:
            changes *= np.float32(volumes.slope)
        return Changes(volumes.slope * first + volumes.intercept, changes)


class RegionReduction:
    """Weighted sums of voxels.

    Parameters
    ----------
    weights : iterable of (box, array)
        One for each region: a part of the grid, and the weights in it.
    solution : ndarray of shape (D,) or (D, D)
        P: factors of the sums, or a matrix applied to them.
    shape : tuple of int
        The grid.
    smoother : Smoother, optional
        Filter to apply to the weights, or to the volumes if the weights would become too many.
    """

    def __init__(
        self, weights: Weights, solution: FloatArray, shape: Shape, smoother: Smoother | None
    ) -> None:
        self._solution = solution
        self._smoother = smoother
        parts = [*weights]
        if smoother is not None:
            wide = [smoother.widened(box, shape) for box, _ in parts]
            if sum(map(_size, wide)) <= _MOST_WEIGHTS * np.prod(shape):
                placed = map(_placed, parts, wide)
                parts = [*zip(wide, map(smoother.weights, placed), strict=True)]
                self._smoother = None
        self._runs = _Runs.of(parts, shape)

    def reduce(self, volumes: StoredVolumes) -> Changes:
        """Return the series of an image on this grid; raise NotStreamedError if it cannot be read."""
        source = volumes if self._smoother is None else SmoothChanges(volumes, self._smoother)
        sums = np.zeros((volumes.n_volumes, len(self._solution)))
        for times, piece in source.pieces():
            self._runs.add(piece, sums[times])
        first = sums[0].copy()
        sums -= first
        if isinstance(source, SmoothChanges):
            self._runs.add(source.origin[np.newaxis], first[np.newaxis])
        first = volumes.slope * self._solved(first) + volumes.intercept * self._solved(self._runs.totals)
        with np.errstate(over="ignore"):
            changes = (volumes.slope * self._solved(sums)).astype(np.float32)
        if not np.isfinite(changes).all():
            raise NotStreamedError
        return Changes(first, changes)

    def _solved(self, sums: FloatArray) -> FloatArray:
        solution = self._solution
        solved: FloatArray = sums * solution if solution.ndim == 1 else sums @ solution.T
        return solved


@dataclass(frozen=True, eq=False)
class _Runs:
    """Weights as runs of consecutive voxels of a flat volume (`add_weighted_runs`), and their sums."""

    starts: Indices
    offsets: Indices
    regions: Indices
    weights: Float32Array
    totals: FloatArray

    @classmethod
    def of(cls, parts: Sequence[tuple[Box, NDArray[Any]]], shape: Shape) -> _Runs:
        places = np.arange(math.prod(shape)).reshape(shape, order="F")
        flat = [_nonzero(places[box], values) for box, values in parts]
        positions, weights = (np.concatenate(arrays) for arrays in zip(*flat, strict=True))
        regions = np.repeat(np.arange(len(flat)), [len(there) for there, _ in flat])
        begins = np.ones(len(positions), dtype=np.bool_)
        begins[1:] = (np.diff(positions) != 1) | (np.diff(regions) != 0)
        edges = np.flatnonzero(begins)
        totals = np.bincount(regions, weights, minlength=len(flat)).astype(np.float64)
        return cls(positions[edges], np.append(edges, len(positions)), regions[edges], weights, totals)

    def add(self, volumes: NDArray[Any], out: FloatArray) -> None:
        """Add the weighted sums of volumes (n, voxels) to (n, regions)."""
        add_weighted_runs(volumes, self.starts, self.offsets, self.regions, self.weights, out)


def _size(box: Box) -> int:
    return math.prod(side.stop - side.start for side in box)


def _placed(part: tuple[Box, NDArray[Any]], to: Box) -> FloatArray:
    """Return the weights of a box in a larger one, with zeros around."""
    box, values = part
    placed = np.zeros([side.stop - side.start for side in to])
    inner = [slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, to, strict=True)]
    placed[tuple(inner)] = values
    return placed


def _nonzero(places: Indices, weights: NDArray[Any]) -> tuple[Indices, Float32Array]:
    """Return the flat positions of the weights other than zero, in ascending order, and the weights."""
    flat = weights.ravel(order="F").astype(np.float32)
    nonzero = np.flatnonzero(flat)
    return places.ravel(order="F")[nonzero], flat[nonzero]


def label_reduction(
    regions: NDArray[np.integer[Any]], labels: NDArray[Any], smoother: Smoother | None
) -> RegionReduction:
    """Return the means of the regions with the given ascending labels; zero for a region without voxels."""
    from scipy.ndimage import find_objects

    numbers = np.where(regions != 0, np.searchsorted(labels, regions) + 1, 0)
    boxes = [box or _NOWHERE for box in find_objects(numbers, len(labels))]
    counts = np.bincount(numbers.ravel(), minlength=len(labels) + 1)[1:]
    weights = [(box, numbers[box] == number) for number, box in enumerate(boxes, start=1)]
    return RegionReduction(
        weights, 1.0 / np.maximum(counts, 1).astype(np.float64), _three(regions.shape), smoother
    )


def map_reduction(maps: NDArray[Any], smoother: Smoother | None) -> RegionReduction:
    """Return the least-squares weights of maps (x, y, z, D); refuse maps that are nearly dependent."""
    from scipy.ndimage import find_objects

    if not maps.any(axis=(0, 1, 2)).all():
        raise NotStreamedError
    boxes = [find_objects((maps[..., d] != 0).astype(np.int8))[0] for d in range(maps.shape[3])]
    weights = [(box, maps[(*box, d)].astype(np.float32)) for d, box in enumerate(boxes)]
    flat = maps[maps.any(axis=3)].astype(np.float32).astype(np.float64)
    gram = flat.T @ flat
    return RegionReduction(weights, _inverse(gram), _three(maps.shape), smoother)


def _inverse(gram: FloatArray) -> FloatArray:
    powers, axes = np.linalg.eigh(gram)
    if powers[0] * _WORST_CONDITION**2 < powers[-1]:
        raise NotStreamedError
    inverse: FloatArray = (axes / powers) @ axes.T
    return inverse


def _three(shape: tuple[int, ...]) -> Shape:
    return shape[0], shape[1], shape[2]
