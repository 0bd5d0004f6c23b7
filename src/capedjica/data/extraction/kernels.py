"""Kernels of one pass over the volumes of an image; all release the interpreter lock.

A volume is flat, with the first axis varying fastest, as it is stored. Sums are in double precision. What is
kept for every voxel and time point is single precision, and always the difference from the first volume:
differences are small against the values, and most cleaning removes what all volumes have in common.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.parallel import compiled
from capedjica.tools.arrays import FloatArray

Float32Array = NDArray[np.float32]
Indices = NDArray[np.int64]

# Runs of weights that stay in the second-level cache while they are applied to the volumes of a piece.
_RUNS_AT_ONCE: Final = 4096
# Columns of a block that does, with 150 time points.
_COLUMNS_AT_ONCE: Final = 256


@compiled
def set_unrecorded_to_zero(volumes: NDArray[Any], missing: NDArray[np.bool_], any_missing: bool) -> bool:
    """Set the missing voxels to zero; return False if a volume is not finite in exactly these voxels."""
    for t in range(len(volumes)):
        volume = volumes[t]
        n_different = 0
        for v in range(len(missing)):
            n_different += np.isfinite(volume[v]) == missing[v]
        if n_different > 0:
            return False
        if any_missing:
            for v in range(len(missing)):
                if missing[v]:
                    volume[v] = 0
    return True


@compiled
def add_weighted_runs(
    volumes: NDArray[Any],
    starts: Indices,
    offsets: Indices,
    regions: Indices,
    weights: Float32Array,
    out: FloatArray,
) -> None:
    """Add to ``out[t, regions[r]]`` run r of the weights times as many voxels from ``starts[r]``.

    The weights of run r are ``weights[offsets[r]:offsets[r + 1]]``.
    """
    for block in range(0, len(starts), _RUNS_AT_ONCE):
        last = min(block + _RUNS_AT_ONCE, len(starts))
        for t in range(len(volumes)):
            volume, row = volumes[t], out[t]
            for r in range(block, last):
                run, voxels = weights[offsets[r] : offsets[r + 1]], volume[starts[r] :]
                total = 0.0
                for k in range(len(run)):
                    total += np.float64(run[k]) * np.float64(voxels[k])
                row[regions[r]] += total


@compiled
def gather_changes(volumes: NDArray[Any], positions: Indices, first: FloatArray, out: Float32Array) -> bool:
    """Set ``out[t, c]`` to voxel ``positions[c]`` minus ``first[c]``; return whether all are finite."""
    n_finite = 0
    for t in range(len(volumes)):
        volume, row = volumes[t], out[t]
        for c in range(len(positions)):
            row[c] = np.float32(np.float64(volume[positions[c]]) - first[c])
        for c in range(len(positions)):
            n_finite += np.isfinite(row[c])
    return n_finite == out.size


@compiled
def subtract_first(volumes: NDArray[Any], first: FloatArray, out: Float32Array) -> None:
    """Set ``out`` to the difference of all voxels from the first volume."""
    for t in range(len(volumes)):
        volume, row = volumes[t], out[t]
        for v in range(len(first)):
            row[v] = np.float32(np.float64(volume[v]) - first[v])


@compiled
def _add_shifted(kernel: Float32Array, sources: Indices, values: Float32Array, out: Float32Array) -> None:
    """Set ``out[i]`` to the sum over k of ``kernel[k]`` times row ``sources[i + k]`` of the values."""
    for i in range(len(out)):
        row = out[i]
        row[:] = 0
        for k in range(len(kernel)):
            weight, other = kernel[k], values[sources[i + k]]
            for j in range(len(row)):
                row[j] += weight * other[j]


@compiled
def smooth_volumes(
    volumes: Float32Array,
    shape: tuple[int, int, int],
    kernels: tuple[Float32Array, Float32Array, Float32Array],
    sources: tuple[Indices, Indices, Indices],
) -> None:
    """Convolve each volume along its axes with symmetric kernels, in place.

    ``sources[a]`` has the index on axis a, reflected at the ends, of every place from one radius before the
    axis to one radius after it.
    """
    nx, ny, nz = shape
    radius = len(kernels[0]) // 2
    padded, line = np.empty(nx + 2 * radius, np.float32), np.empty(nx, np.float32)
    other = np.empty(nx * ny * nz, np.float32)
    for t in range(len(volumes)):
        volume = volumes[t]
        rows = volume.reshape((ny * nz, nx))
        for i in range(ny * nz):
            row = rows[i]
            for k in range(len(padded)):
                padded[k] = row[sources[0][k]]
            line[:] = 0
            for k in range(len(kernels[0])):
                weight, shifted = kernels[0][k], padded[k:]
                for j in range(nx):
                    line[j] += weight * shifted[j]
            row[:] = line
        planes, smooth = volume.reshape((nz, ny, nx)), other.reshape((nz, ny, nx))
        for z in range(nz):
            _add_shifted(kernels[1], sources[1], planes[z], smooth[z])
        _add_shifted(kernels[2], sources[2], other.reshape((nz, ny * nx)), volume.reshape((nz, ny * nx)))


@compiled
def remove_trend(series: Float32Array, linear: bool, standardize: bool, smallest: float) -> None:
    """Subtract the mean of every column, and its linear trend; divide by its standard deviation; in place.

    A standard deviation (with T - 1 degrees of freedom) below ``smallest`` counts as 1. At least two time
    points are needed.
    """
    length, width = series.shape
    middle = 0.5 * (length - 1)
    spread = length * (length * length - 1.0) / 12.0
    mean, slope, power = np.empty(_COLUMNS_AT_ONCE), np.empty(_COLUMNS_AT_ONCE), np.empty(_COLUMNS_AT_ONCE)
    for first in range(0, width, _COLUMNS_AT_ONCE):
        n = min(_COLUMNS_AT_ONCE, width - first)
        mean[:], slope[:], power[:] = 0, 0, 0
        for t in range(length):
            row = series[t, first : first + n]
            for c in range(n):
                mean[c] += row[c]
                slope[c] += (t - middle) * row[c]
        for c in range(n):
            mean[c] /= length
            slope[c] = slope[c] / spread if linear else 0.0
        for t in range(length):
            row = series[t, first : first + n]
            for c in range(n):
                residual = row[c] - (mean[c] + (t - middle) * slope[c])
                power[c] += residual * residual
                row[c] = np.float32(residual)
        if standardize:
            for c in range(n):
                deviation = np.sqrt(power[c] / (length - 1))
                power[c] = 1.0 if deviation < smallest else 1.0 / deviation
            for t in range(length):
                row = series[t, first : first + n]
                for c in range(n):
                    row[c] *= np.float32(power[c])
