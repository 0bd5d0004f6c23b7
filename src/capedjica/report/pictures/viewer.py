"""Data for the interactive brain viewer: the template and the maps as compressed volumes."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from capedjica.report.pictures.slices import BOX, FADED, GREYS, along, coloured, sample, template
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

_TEMPLATE_STEP: Final = 2.0
_MAP_STEP: Final = 3.0
# Map values are stored in steps of 1/100; smaller absolute values than _LEAST are set to zero.
_LEVELS: Final = 100
_LEAST: Final = 0.1


def volumes(image: Nifti1Image, names: Sequence[str], faded: Sequence[bool]) -> dict[str, Any]:
    """Return the viewer's data for JSON, with volumes as compressed bytes in Fortran order (x fastest).

    Map values are rounded to 0.01, and to zero below 0.1. Unreliable maps are as faded as in the slices.
    """
    places = [along(axis, _MAP_STEP) for axis in range(3)]
    maps = sample(image, *places)
    brain = [along(axis, _TEMPLATE_STEP) for axis in range(3)]
    grey = sample(template(), *brain)[0]
    return {
        "box": BOX,
        "brain": {
            "step": _TEMPLATE_STEP,
            "shape": grey.shape,
            "data": _packed(255 * grey / grey.max(), np.uint8),
        },
        "step": _MAP_STEP,
        "shape": maps.shape[1:],
        "levels": _LEVELS,
        "least": _LEAST,
        "greys": GREYS,
        "colours": coloured(np.arange(-_LEVELS, _LEVELS + 1) / _LEVELS)[:, :3].tolist(),
        "maps": [
            {
                "name": name,
                "opacity": FADED if faint else 1,
                "start": _peak(values, places),
                "data": _packed(_cut(values), np.int8),
            }
            for name, faint, values in zip(names, faded, maps, strict=True)
        ],
    }


def _cut(values: FloatArray) -> FloatArray:
    return np.where(np.abs(values) < _LEAST, 0.0, np.clip(values, -1, 1) * _LEVELS)


def _peak(values: FloatArray, places: Sequence[FloatArray]) -> list[float]:
    """Return the coordinates of the largest absolute value of a map, in mm."""
    found = np.unravel_index(np.abs(values).argmax(), values.shape)
    return [float(side[index]) for side, index in zip(places, found, strict=True)]


def _packed(values: FloatArray, kind: type[np.integer[Any]]) -> str:
    plain = values.round().astype(kind).tobytes(order="F")
    return base64.b64encode(gzip.compress(plain, 6, mtime=0)).decode()
