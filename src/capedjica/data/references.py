"""Atlases and templates with which maps are compared: images or arrays of known networks, with names.

A reference is an image of maps (4-D), an image of labels (3-D), or, for features without spatial positions,
an array over the same features: maps (networks, features), or one label for each feature. It is used to label
results and not to estimate them. It is therefore not part of a study or its hash, and has no privacy cost.
Names of networks, and the systems to which they belong, come from a table as for templates
(:mod:`capedjica.data.templates`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.images import LEAST_COVERAGE, coverage, new_image
from capedjica.data.templates import (
    NameTable,
    given_names,
    label_numbers,
    load_array,
    load_image,
    maps_or_labels,
    names_beside,
)
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

FETCHED: Final = "nilearn:"
# Arguments of nilearn's fetchers, by the name of the atlas.
FETCHERS: Final[dict[str, dict[str, Any]]] = {
    "aal": {},
    "harvard_oxford": {"atlas_name": "cort-maxprob-thr25-2mm"},
    "msdl": {},
    "schaefer_2018": {},
    "smith_2009": {"dimension": 20},
    "yeo_2011": {},
}
LONGEST_NAME: Final = 200


@dataclass(frozen=True, eq=False)
class Reference:
    """Known networks or regions.

    Attributes
    ----------
    source : str
        Short description.
    values : array
        Values of an image, 4-D (maps) or 3-D (labels); for features, maps (networks, D) or labels (D,).
    affine : array (4, 4), optional
        From voxels to mm; None for an array of features.
    labels : tuple of int, optional
        The labels in their order; None for maps.
    names, systems : tuple of str
        Name of each network, and the system to which it belongs; systems are empty if unknown.
    """

    source: str
    values: NDArray[Any]
    affine: FloatArray | None
    labels: tuple[int, ...] | None
    names: tuple[str, ...]
    systems: tuple[str, ...]

    def within(self, image: Nifti1Image | None, inside: NDArray[np.bool_], n_features: int) -> NDArray[Any]:
        """Return the reference at the positions of the maps: maps (N, V), or the label at V positions.

        Parameters
        ----------
        image : Nifti1Image or None
            The maps as a 4-D image; None if the features have no spatial positions.
        inside : array of bool (x, y, z)
            The V voxels of the features.
        n_features : int
            D; for an array of features, V = D.
        """
        if self.affine is None:
            if self.values.shape[-1] != n_features:
                raise InputError(
                    f"{self.source} has {self.values.shape[-1]:,} features, but the maps have {n_features:,}"
                )
            return self.values
        if image is None:
            raise InputError(
                f"{self.source} is an image, but the features have no spatial positions; give an array "
                "(networks, features), or the atlas whose regions are the columns"
            )
        how = "linear" if self.labels is None else "nearest"
        found = on_grid(self.source, new_image(self.values, self.affine), image, inside, how)
        if not found.any():
            raise InputError(
                f"{self.source} is zero wherever the maps have values; it may be in a different space"
            )
        return found if self.labels is not None else np.ascontiguousarray(found.T)


def on_grid(
    where: str, given: Nifti1Image, image: Nifti1Image, inside: NDArray[np.bool_], how: str
) -> NDArray[Any]:
    """Return an image at the voxels of another, (V,) or (V, n); reject one that does not overlap it."""
    from nilearn.image import resample_img

    voxels = np.argwhere(inside)
    affine: FloatArray = np.asarray(image.affine)
    seen = coverage(voxels @ affine[:3, :3].T + affine[:3, 3], given)
    if seen < LEAST_COVERAGE:
        raise InputError(
            f"{where} covers {seen:.0%} of the voxels of the maps, expected at least "
            f"{LEAST_COVERAGE:.0%}; it may be in a different space"
        )
    there = resample_img(
        given,
        target_affine=affine,
        target_shape=inside.shape,
        interpolation=how,
        copy_header=True,
        force_resample=True,
    )
    found: NDArray[Any] = np.asanyarray(there.dataobj)[inside]
    return found


def read_reference(given: Any, names: Any = None) -> Reference:
    """Read a reference with which maps are compared.

    Parameters
    ----------
    given : path, image or array
        A 4-D image of maps or a 3-D image of labels; an array over features, (networks, features) or a label
        for each, or its ``.npy`` file; or ``"nilearn:NAME"``, which nilearn downloads (`FETCHERS`).
    names : list of str or path, optional
        Names of its networks, or a table of them; by default a table next to the file.
    """
    if isinstance(given, str) and given.startswith(FETCHED):
        return _fetched(given.removeprefix(FETCHED), names)
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.exists():
            raise InputError(f"labels {path} does not exist; give an image, a .npy file or {_atlases()}")
        own, where = names_beside(path) if names is None else names, f"labels {path}"
        if path.suffix.lower() == ".npy":
            found = _of_array(load_array(path, "labels"), where, own)
        else:
            found = _of_image(load_image(path, "labels"), where, own)
        return replace(found, source=path.name)
    if hasattr(given, "dataobj"):
        return _of_image(given, "the image of labels", names)
    return _of_array(np.asarray(given), "the array of labels", names)


def read_tissue(given: Any, what: str) -> Nifti1Image:
    """Return a tissue mask from an image or its path: binary, or probabilities (included from 0.5)."""
    image = given
    if isinstance(given, str | os.PathLike):
        if not Path(given).exists():
            raise InputError(f"{what} {given} does not exist; give the path of a 3-D mask image")
        image, what = load_image(Path(given), what), f"{what} {given}"
    if not hasattr(image, "dataobj"):
        raise InputError(f"{what} must be an image or a path, got {type(given).__name__}")
    values = np.nan_to_num(np.asanyarray(image.dataobj).astype(np.float64))
    if values.ndim != 3:
        raise InputError(f"{what} must be a 3-D mask image, got shape {values.shape}")
    if values.min() < 0 or values.max() > 1 or not (values >= 0.5).any():
        raise InputError(
            f"{what} must contain 0 and 1, or probabilities with some of at least 0.5; got values from "
            f"{values.min():g} to {values.max():g}"
        )
    return new_image(values >= 0.5, image.affine)


def _of_image(image: Any, where: str, names: Any) -> Reference:
    values, labels = maps_or_labels(image, where)
    count = len(labels) if labels is not None else values.shape[3]
    named = _named(names, labels, count, where)
    kept = None if labels is None else tuple(labels)
    stored = values.astype(np.int32 if labels is not None else np.float32)
    return Reference(where, stored, np.asarray(image.affine), kept, *named)


def _of_array(values: NDArray[Any], where: str, names: Any) -> Reference:
    if values.dtype.kind not in "fiu" or values.ndim not in (1, 2) or not np.isfinite(values).all():
        raise InputError(
            f"{where} must contain finite numbers, (networks, features) or one label for each feature; got "
            f"shape {values.shape}"
        )
    labels = label_numbers(values, where) if values.ndim == 1 else None
    count = len(labels) if labels is not None else len(values)
    named = _named(names, labels, count, where)
    stored = values.astype(np.int32 if labels is not None else np.float64)
    return Reference(where, stored, None, None if labels is None else tuple(labels), *named)


def _named(
    names: Any, labels: list[int] | None, count: int, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names and systems; numbered names if there are none."""
    table = given_names(names, labels)
    if table is None:
        kind = "network" if labels is None else "region"
        return tuple(f"{kind} {number}" for number in labels or range(1, count + 1)), ()
    if len(table.names) != count:
        what = f"{count} networks" if labels is None else f"{count} labels"
        raise InputError(f"{where} has {what}, but its table has {len(table.names)} names")
    for name in (*table.names, *table.systems):
        if not (isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable()):
            raise InputError(
                f"{where}: a name must be at most {LONGEST_NAME} printable characters, got "
                f"{str(name)[:LONGEST_NAME]!r}"
            )
    return tuple(table.names), tuple(table.systems)


# nilearn's atlases


def _atlases() -> str:
    return f"{FETCHED}NAME ({', '.join(FETCHERS)})"


def _fetched(name: str, names: Any) -> Reference:
    """Return an atlas from nilearn, downloading it if necessary."""
    if name not in FETCHERS:
        raise InputError(f"labels must be a file or {_atlases()}; got {FETCHED}{name}")
    from nilearn import datasets

    fetch = partial(getattr(datasets, f"fetch_atlas_{name}"), **FETCHERS[name], verbose=0)
    try:
        atlas = fetch()
        image = load_image(Path(atlas["maps"])) if isinstance(atlas["maps"], str | Path) else atlas["maps"]
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"labels {FETCHED}{name} cannot be downloaded ({why}); without internet, give the path of an "
            "image and a table of its names"
        ) from None
    found = _of_image(image, f"{name} (nilearn)", names)
    if names is not None:
        return found
    named = _names_of(atlas).of(found.labels, found.source)
    if len(named.names) != len(found.names):
        return found
    return replace(found, names=tuple(named.names), systems=tuple(named.systems))


def _names_of(atlas: Any) -> NameTable:
    """Return the names that nilearn provides: a look-up table of labels, or a list."""
    table = atlas.get("lut")
    if table is not None:
        return NameTable([str(name) for name in table["name"]], [], [int(one) for one in table["index"]])
    names = [str(name) for name in (atlas.get("labels") if atlas.get("labels") is not None else ())]
    systems = [str(one) for one in (atlas.get("networks") if atlas.get("networks") is not None else ())]
    return NameTable(names, systems if len(systems) == len(names) else [])
