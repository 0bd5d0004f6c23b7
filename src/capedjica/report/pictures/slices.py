"""Maps as pixels: slices over the brain template, pixel images and matrices.

All use one diverging colour scale: white is zero, red is positive, blue is negative, and darker colours are
further from zero. Colour-blind readers can distinguish the two signs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Pixels = NDArray[np.uint8]

# Bounding box of the MNI152 template, in mm: left to right, back to front, bottom to top.
BOX: Final = ((-80.0, 80.0), (-112.0, 78.0), (-70.0, 84.0))
# Axial slices, mm above the anterior commissure.
SLICES: Final = (-45, -30, -15, 0, 15, 30, 45, 60)
# Below this value a map is transparent.
SHOWN_FROM: Final = 0.25
# Grey levels of the darkest and the brightest voxel of the template.
GREYS: Final = (25, 200)
# Colour scale for values of either sign.
SIGNED: Final = colormaps["RdBu_r"]
# Opacity of unreliable maps.
FADED: Final = 0.35
_PIXEL: Final = 1.5
# Grey levels of the template: with the colours of a map they fit the palette of a picture.
_GREY_LEVELS: Final = 48


def along(axis: int, step: float) -> FloatArray:
    """Return equally spaced coordinates along one axis of the box, in mm."""
    low, high = BOX[axis]
    return np.arange(low, high + step / 2, step)


def sample(image: Nifti1Image, x: FloatArray, y: FloatArray, z: FloatArray) -> FloatArray:
    """Interpolate the volumes of an image linearly at coordinates in mm; (n, len(x), len(y), len(z))."""
    values, to_voxel = np.asarray(image.dataobj, dtype=np.float64), np.linalg.inv(np.asarray(image.affine))
    volumes = np.moveaxis(values[..., np.newaxis] if values.ndim == 3 else values, -1, 0)
    grid = np.stack([*np.meshgrid(x, y, z, indexing="ij"), np.ones((len(x), len(y), len(z)))])
    places = np.tensordot(to_voxel[:3], grid, axes=1)
    return np.stack([map_coordinates(volume, places, order=1) for volume in volumes])


def axial(image: Nifti1Image) -> list[FloatArray]:
    """Return the axial slices of each volume side by side, with left on the left and the front at the top."""
    volumes = sample(image, along(0, _PIXEL), along(1, _PIXEL), np.array(SLICES, dtype=float))
    return [
        np.concatenate([volume[:, ::-1, height].T for height in range(len(SLICES))], axis=1)
        for volume in volumes
    ]


@cache
def template() -> Nifti1Image:
    """Return the MNI152 template included in nilearn, with values from 0 to 1."""
    from nilearn.datasets import load_mni152_template

    brain: Nifti1Image = load_mni152_template(resolution=1)
    return brain


@cache
def _brain() -> FloatArray:
    grey = axial(template())[0]
    shown: FloatArray = np.round(np.clip(grey / grey.max(), 0, 1) * _GREY_LEVELS) / _GREY_LEVELS
    return shown


def over_brain(values: FloatArray, faded: bool) -> Pixels:
    """Return axial slices of a map over the template; pixels outside the brain are transparent."""
    grey, (darkest, brightest) = _brain(), GREYS
    pixels = np.empty((*grey.shape, 4))
    pixels[..., :3] = (darkest + (brightest - darkest) * grey)[..., np.newaxis]
    pixels[..., 3] = 255 * np.clip(10 * grey, 0, 1)
    weight = (np.abs(values) >= SHOWN_FROM) * (FADED if faded else 1.0)
    pixels[..., :3] += weight[..., np.newaxis] * (coloured(values)[..., :3] - pixels[..., :3])
    pixels[..., 3] = np.maximum(pixels[..., 3], 255 * weight)
    return pixels.round().astype(np.uint8)


def square(values: FloatArray, faded: bool = False, limit: float | None = None) -> Pixels:
    """Return a matrix as pixels, with the strongest colour at ``limit`` or at the largest value."""
    pixels = coloured(values / (limit or float(np.abs(values).max()) or 1.0))
    if faded:
        pixels[..., 3] = round(255 * FADED)
    return pixels


def coloured(values: FloatArray) -> Pixels:
    """Return the colours (..., 4) of values from -1 to 1."""
    return np.array(SIGNED(0.5 + values / 2, bytes=True), dtype=np.uint8)
