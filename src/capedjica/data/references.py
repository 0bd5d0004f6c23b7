"""Atlases and templates that maps are compared with: images or arrays of known networks, with their names.

A reference is an image of maps (4-D), one of labels (3-D), or, where features have no places, an array of the
same features: maps (networks, features), or one label for each feature. It names what was found and has no
part in finding it, so that nothing of it is in a study, nor in its hash, and it costs nothing. Names, and
the systems that networks belong to, come from a table as for templates (:mod:`capedjica.data.templates`).
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
# What nilearn's fetchers are asked for besides the name of the atlas.
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
    """Networks or regions that are known.

    Attributes
    ----------
    source : str
        What it is, in few words.
    values : array
        Of an image, 4-D (maps) or 3-D (labels); of features, (networks, D) or labels (D,).
    affine : array (4, 4), optional
        From voxels to mm; None for an array of features.
    labels : tuple of int, optional
        The labels in their order; None for maps.
    names, systems : tuple of str
        What each is called, and what it belongs to; no systems where nothing tells.
    """

    source: str
    values: NDArray[Any]
    affine: FloatArray | None
    labels: tuple[int, ...] | None
    names: tuple[str, ...]
    systems: tuple[str, ...]

    def within(self, image: Nifti1Image | None, inside: NDArray[np.bool_], n_features: int) -> NDArray[Any]:
        """Return the reference where maps are: maps (N, V), or the label at each of V places.

        Parameters
        ----------
        image : Nifti1Image or None
            The maps in the space of a brain, 4-D; None where features have no places.
        inside : array of bool (x, y, z)
            The V voxels of the features.
        n_features : int
            D; an array of features has its V = D places there.
        """
        if self.affine is None:
            if self.values.shape[-1] != n_features:
                raise InputError(
                    f"{self.source} has {self.values.shape[-1]:,} features, the maps have {n_features:,}"
                )
            return self.values
        if image is None:
            raise InputError(
                f"{self.source} is an image, but the maps have no places: give an array (networks, "
                "features), or the image of the regions that the columns are"
            )
        how = "linear" if self.labels is None else "nearest"
        found = on_grid(self.source, new_image(self.values, self.affine), image, inside, how)
        if not found.any():
            raise InputError(
                f"{self.source} is zero wherever the maps have values; it may be in another space"
            )
        return found if self.labels is not None else np.ascontiguousarray(found.T)


def on_grid(
    where: str, given: Nifti1Image, image: Nifti1Image, inside: NDArray[np.bool_], how: str
) -> NDArray[Any]:
    """Return an image in the voxels of another, (V,) or (V, n); refuse one of another place."""
    from nilearn.image import resample_img

    voxels = np.argwhere(inside)
    affine: FloatArray = np.asarray(image.affine)
    seen = coverage(voxels @ affine[:3, :3].T + affine[:3, 3], given)
    if seen < LEAST_COVERAGE:
        raise InputError(
            f"{where} has a field of view with {seen:.0%} of the voxels of the maps, expected at least "
            f"{LEAST_COVERAGE:.0%}; it may be in another space"
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
    """Return what maps are compared with.

    Parameters
    ----------
    given : path, image or array
        A 4-D image of maps or a 3-D image of labels; an array of features, (networks, features) or a label
        for each, or its ``.npy`` file; or ``"nilearn:NAME"``, which nilearn downloads (`FETCHERS`).
    names : list of str or path, optional
        What its networks are called, or a table of that; by default a table beside the file.
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
    """Return the mask of a tissue: an image, or its path, of 0 and 1 or of probabilities (1 from 0.5 on)."""
    image = given
    if isinstance(given, str | os.PathLike):
        if not Path(given).exists():
            raise InputError(f"{what} {given} does not exist")
        image, what = load_image(Path(given), what), f"{what} {given}"
    if not hasattr(image, "dataobj"):
        raise InputError(f"{what} must be an image or the path of one, got {type(given).__name__}")
    values = np.nan_to_num(np.asanyarray(image.dataobj).astype(np.float64))
    if values.ndim != 3:
        raise InputError(f"{what} must be a 3-D image of a mask, got shape {values.shape}")
    if values.min() < 0 or values.max() > 1 or not (values >= 0.5).any():
        raise InputError(
            f"{what} must hold 0 and 1, or probabilities of which some are at least 0.5; got values from "
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
            f"{where} must be finite numbers, (networks, features) or one label for each feature; got shape "
            f"{values.shape}"
        )
    labels = label_numbers(values, where) if values.ndim == 1 else None
    count = len(labels) if labels is not None else len(values)
    named = _named(names, labels, count, where)
    stored = values.astype(np.int32 if labels is not None else np.float64)
    return Reference(where, stored, None, None if labels is None else tuple(labels), *named)


def _named(
    names: Any, labels: list[int] | None, count: int, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names and systems; numbers where there are no names."""
    table = given_names(names, labels)
    if table is None:
        kind = "network" if labels is None else "region"
        return tuple(f"{kind} {number}" for number in labels or range(1, count + 1)), ()
    if len(table.names) != count:
        what = f"{count} networks" if labels is None else f"{count} labels"
        raise InputError(f"{where} has {what} and its table {len(table.names)} names")
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
    """Return an atlas that nilearn downloads, or has downloaded before."""
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
    """Return the names that nilearn knows: a look-up table of labels, or a list."""
    table = atlas.get("lut")
    if table is not None:
        return NameTable([str(name) for name in table["name"]], [], [int(one) for one in table["index"]])
    names = [str(name) for name in (atlas.get("labels") if atlas.get("labels") is not None else ())]
    systems = [str(one) for one in (atlas.get("networks") if atlas.get("networks") is not None else ())]
    return NameTable(names, systems if len(systems) == len(names) else [])
