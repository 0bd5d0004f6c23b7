r"""Regions of which only the centres are known, from a table such as those that articles print.

The table is UTF-8 text, with tabs or commas between cells. Its rows are the regions, in the order of the
columns of the scans; its first row has the names of the columns: ``x``, ``y`` and ``z``, the centre in mm in
MNI152 space, and optionally ``radius`` in mm, ``index`` (the number of a region), ``name`` and ``system``.

Let region i have the centre c and the radius r. A voxel at v belongs to the region with the least power

.. math:: p_i(v) = \lVert v - c_i \rVert^2 - r_i^2,                                                     (1)

and to none if that is positive: regions are spheres within the MNI152 brain, cut by planes where they overlap
(Aurenhammer 1987, SIAM J. Comput. 16:78). With equal radii, a voxel belongs to the nearest centre, up to this
distance. The true borders are not in such a table, so these are approximate: they serve to look at results,
and never to extract features.
"""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.images import new_image
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray
from capedjica.tools.text import printable

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

# 200 spheres of this radius, cut where they overlap, fill the grey matter of a brain.
RADIUS: Final = 12.0
APPROXIMATE: Final = (
    "The borders of regions are approximate: only their centres are known, and each region is drawn as a "
    "sphere around its centre, cut where spheres overlap."
)
_SUFFIXES: Final = (".csv", ".tsv")
# Columns with the number of a label.
NUMBER_COLUMNS: Final = ("index", "value", "number", "id")
_COLUMNS: Final = "the columns x, y and z (centre in mm, MNI152 space) and optionally radius (mm)"
_RESOLUTION: Final = 3
_LONGEST_TABLE: Final = 1 << 20
_MOST_REGIONS: Final = 10_000
_FURTHEST: Final = 1000.0


def is_table(path: str | Path) -> bool:
    """Return whether a file of regions is a table of centres and not an image, according to its name."""
    return str(path).lower().endswith(_SUFFIXES)


def regions_of_centres(path: Path, what: str) -> Nifti1Image:
    """Return the regions of a table of centres as an image of labels, by (1).

    Parameters
    ----------
    path : Path
        The table. A label is the ``index`` of its row, or else the number of the row.
    what : str
        What the table is, for errors.
    """
    rows = _rows(path, what)
    where = f"{what} {path}"
    numbers = _numbers(rows, where)
    centres = np.array([[_number(row, axis, line, where) for axis in "xyz"] for line, row in rows.items()])
    radii = np.array([_radius(row, line, where) for line, row in rows.items()])
    inside, affine, places = _brain()
    nearest = _nearest(places, centres, radii)
    empty = np.flatnonzero(np.bincount(nearest + 1, minlength=len(rows) + 1)[1:] == 0)
    if empty.size:
        x, y, z = centres[empty[0]]
        raise InputError(
            f"{where}, line {list(rows)[empty[0]]}: no voxel of the MNI152 brain is within "
            f"{radii[empty[0]]:g} mm of the centre ({x:g}, {y:g}, {z:g}) and closer to it than to others; "
            "expected a position inside the brain, in mm"
        )
    labels = np.zeros(inside.shape, dtype=np.int32)
    labels[inside] = np.concatenate([[0], numbers])[nearest + 1]
    return new_image(labels, affine)


def _nearest(places: FloatArray, centres: FloatArray, radii: FloatArray) -> NDArray[np.int64]:
    """Return the region of each position (V, 3) by (1), from 0; -1 outside all spheres."""
    least = np.zeros(len(places))
    region = np.full(len(places), -1)
    for i, (centre, radius) in enumerate(zip(centres, radii, strict=True)):
        power = np.sum((places - centre) ** 2, axis=1) - radius**2
        # A centre within its own sphere has a negative power, and the first of two equal ones is taken.
        closer = power < least
        least[closer], region[closer] = power[closer], i
    return region


def _rows(path: Path, what: str) -> dict[int, dict[str, str]]:
    """Return the rows of a table by their line number, with lower-case names of columns."""
    where = f"{what} {path}"
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_TABLE + 1).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}; expected {_COLUMNS}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not a UTF-8 text file; expected a table with {_COLUMNS}") from None
    if len(text) > _LONGEST_TABLE:
        raise InputError(f"{where} is longer than {_LONGEST_TABLE:,} bytes; expected {_COLUMNS}")
    heading, _, _ = text.partition("\n")
    reader = csv.reader(io.StringIO(text), delimiter="\t" if "\t" in heading else ",")
    names = [cell.strip().lower() for cell in next(reader, [])]
    missing = [name for name in "xyz" if names.count(name) != 1]
    if missing:
        got = printable(", ".join(names)[:200]) or "nothing"
        raise InputError(f"{where} has no column {missing[0]!r}; got {got}, expected {_COLUMNS}")
    rows = {}
    for cells in reader:
        if any(cell.strip() for cell in cells):
            if len(cells) != len(names):
                raise InputError(
                    f"{where}, line {reader.line_num}: {len(cells)} cells, expected {len(names)} as in line 1"
                )
            rows[reader.line_num] = dict(zip(names, map(str.strip, cells), strict=True))
    if not 2 <= len(rows) <= _MOST_REGIONS:
        raise InputError(f"{where} must have between 2 and {_MOST_REGIONS:,} regions, got {len(rows):,}")
    return rows


def _numbers(rows: dict[int, dict[str, str]], where: str) -> list[int]:
    """Return the number of each region: an increasing column, or else that of its row."""
    first = next(iter(rows.values()))
    column = next((name for name in NUMBER_COLUMNS if name in first and first[name].isdecimal()), None)
    if column is None:
        return list(range(1, len(rows) + 1))
    before, numbers = 0, []
    for line, row in rows.items():
        number = int(row[column]) if row[column].isdecimal() and len(row[column]) < 10 else 0
        if number <= before:
            raise InputError(
                f"{where}, line {line}: {column} is {printable(row[column])!r}, expected an integer above "
                f"{before}; rows must be in the order of the columns of the scans, with increasing numbers"
            )
        before = number
        numbers.append(number)
    return numbers


def _number(row: dict[str, str], column: str, line: int, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = np.inf
    if not abs(value) <= _FURTHEST:
        raise InputError(
            f"{where}, line {line}: {column} is {printable(row[column])[:40]!r}, expected a number of mm, at "
            f"most {_FURTHEST:g}"
        )
    return value


def _radius(row: dict[str, str], line: int, where: str) -> float:
    radius = _number(row, "radius", line, where) if "radius" in row else RADIUS
    if radius <= 0:
        raise InputError(f"{where}, line {line}: radius is {radius:g}, expected a positive number of mm")
    return radius


@lru_cache(maxsize=1)
def _brain() -> tuple[NDArray[np.bool_], FloatArray, FloatArray]:
    """Return the MNI152 brain mask, its affine, and the positions of its voxels in mm, (V, 3)."""
    from nilearn.datasets import load_mni152_brain_mask

    mask = load_mni152_brain_mask(resolution=_RESOLUTION)
    inside, affine = np.asarray(mask.dataobj) != 0, np.asarray(mask.affine, dtype=np.float64)
    return inside, affine, np.argwhere(inside) @ affine[:3, :3].T + affine[:3, 3]
