"""Templates as people have them: arrays, images, results of a study; made into maps of a study's features.

Known networks come as 4-D images of maps, NeuroMark's or those of Smith et al. 2009 for example
(``nilearn.datasets.fetch_atlas_smith_2009()["rsn20"]``), or as 3-D images of labels, such as the networks of
Yeo et al. 2011, of which each label is a map of 0 and 1. A map is treated as one volume of a scan would be:
brought to the voxels of the mask, averaged over the regions of an atlas, or fitted by its maps; and neither
smoothed nor cleaned, since it has no course of time.

Where a template comes from matters: a guarantee covers what a study itself publishes, and not what was known
before. Somebody whose data are in the template is exposed by it too.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from capedjica.algorithms.ica.template import Template
from capedjica.data.features import check_digest
from capedjica.data.images import new_image
from capedjica.data.scans import stem
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Origin = Literal["public", "earlier-study", "other-people"]
ORIGINS: Final[tuple[str, ...]] = get_args(Origin)
ORIGIN_WORDS: Final = {
    "public": "public knowledge; nobody who takes part here is among the people it was made from",
    "earlier-study": "the results of an earlier private study; whoever took part in both pays for both",
    "other-people": "results of other people, made without privacy; none of them takes part here",
}
# What the guarantee rests on, or does not cover.
NOT_COVERED: Final = {
    "public": "The template is taken for public knowledge: the guarantee rests on nobody who takes part here "
    "being among the people it was made from.",
    "earlier-study": "NOT COVERED: what the earlier private study cost whose results are the template. "
    "Whoever took part in both has spent the epsilon of both.",
    "other-people": "NOT COVERED: what the template tells of the people it was made from, without privacy. "
    "The guarantee rests on nobody who takes part here being among them.",
}
_SIDECARS: Final = (".tsv", ".csv", ".txt")
_NAME_COLUMNS: Final = ("name", "label", "network", "region")
_NUMBER_COLUMNS: Final = ("index", "value", "number", "id")
_SYSTEM_COLUMNS: Final = ("system", "domain", "group", "network")
_MOST_LABELS: Final = 1000
_LONGEST_TABLE: Final = 1 << 20
_LONGEST_SOURCE: Final = 200


@runtime_checkable
class Space(Protocol):
    """Features that have places, so that images can be made into them."""

    @property
    def n_features(self) -> int:
        """D."""

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return what a 4-D image of maps is in the features, (R, D)."""


@dataclass(frozen=True, eq=False)
class GivenTemplate:
    """A template with where it comes from.

    Attributes
    ----------
    template : Template
        The networks, in the features of the study.
    source : str
        What it was made from, in words.
    epsilon : float, optional
        Of the study whose results it is, infinite for one without privacy; None for what is no such result.
    systems : tuple of str
        To which system each network belongs, where a table of names tells.
    """

    template: Template
    source: str
    epsilon: float | None = None
    systems: tuple[str, ...] = ()

    def origin(self, said: str | None, where: str = "template_origin") -> Origin | None:
        """Return where it comes from, given what was said of it; None if nothing was and nothing tells.

        Results that protect nobody are refused unless somebody vouches that they are of other people.
        """
        if said is not None and said not in ORIGINS:
            raise InputError(f"{where} must be one of {', '.join(ORIGINS)}; got {said!r}")
        if self.epsilon is not None and math.isinf(self.epsilon) and said != "other-people":
            raise InputError(
                f"{self.source} protects nobody: its maps may only be a template where nobody of its people "
                f"takes part, and {where} 'other-people' says so; got {said or 'nothing'!r}"
            )
        if said is None and self.epsilon is not None:
            return "earlier-study"
        return said  # type: ignore[return-value]


def read_template(
    given: Any, features: Any, n_features: int | None = None, names: Any = None
) -> GivenTemplate:
    """Return a template in the features of a study.

    Parameters
    ----------
    given : array, image, path or Template
        Maps (networks, features), as an array or a ``.npy`` file; a 4-D image of maps or a 3-D one of labels;
        a ``results.zip`` of a finished study, or its folder.
    features : Features or None
        What scans are made into; images need one that has places (:class:`Space`).
    n_features : int, optional
        D; what ``features`` says where it is not given.
    names : sequence of str or path, optional
        Of the networks, or a table of them; by default a table beside the file, of the same name and ending
        in .tsv, .csv or .txt.
    """
    if n_features is None and features is not None:
        n_features = features.n_features
    if isinstance(given, Template):
        found = GivenTemplate(
            given if names is None else Template.of(given.maps, _given_names(names)), "a template"
        )
    elif isinstance(given, str | os.PathLike):
        found = _of_path(Path(given), features, names)
    elif hasattr(given, "dataobj"):
        found = _of_image(given, "the template", features, names)
    else:
        found = GivenTemplate(Template.of(given, _given_names(names)), "an array")
    if n_features is not None and found.template.n_features != n_features:
        raise InputError(
            f"{found.source}: its maps have {found.template.n_features:,} features, the study {n_features:,}"
        )
    return found


def study_template(path: Path, sha256: str | None, names: Sequence[str], shape: tuple[int, int]) -> Template:
    """Return the template of a study, an array in a ``.npy`` file; refuse another than the study means."""
    what = "template"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}") from None
    check_digest(path, what, hashlib.sha256(content).hexdigest(), sha256)
    maps = _array(io.BytesIO(content), f"{what} {path}")
    if maps.shape != shape:
        raise InputError(
            f"{what} {path} has shape {maps.shape}, {shape} are the networks (n_components) and features of "
            "the study"
        )
    return Template.of(maps, names or None, f"{what} {path}")


# Files and images


def _of_path(path: Path, features: Any, names: Any) -> GivenTemplate:
    if not path.exists():
        raise InputError(f"template {path} does not exist")
    if path.is_dir() or path.suffix.lower() == ".zip":
        return _of_results(path, features, names)
    own = names_beside(path) if names is None else names
    if path.suffix.lower() == ".npy":
        maps = load_array(path, "template")
        return GivenTemplate(
            Template.of(maps, _given_names(own), f"template {path}"),
            path.name[:_LONGEST_SOURCE],
            systems=_given_systems(own),
        )
    try:
        image = load_image(path)
    except InputError:
        raise InputError(
            f"template {path} is neither an image that can be read, nor a .npy file, nor results of a study"
        ) from None
    found = _of_image(image, f"template {path}", features, own)
    return replace(found, source=path.name[:_LONGEST_SOURCE])


def load_image(path: Path, what: str = "image") -> Any:
    """Return an image with all of its values read."""
    import nibabel

    try:
        image: Any = nibabel.load(path)
        np.asanyarray(image.dataobj)
    except Exception:
        raise InputError(f"{what} {path} is not an image that can be read") from None
    return image


def load_array(path: Path, what: str) -> FloatArray:
    """Return the numbers of a ``.npy`` file."""
    try:
        with path.open("rb") as file:
            return _array(file, f"{what} {path}")
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}") from None


def _array(file: Any, where: str) -> FloatArray:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.ndarray) or loaded.dtype.kind not in "fiu":
            raise ValueError
        return loaded.astype(np.float64)
    except (ValueError, EOFError, OSError):
        raise InputError(f"{where} is not an array of real numbers, as numpy.save writes it") from None


def _of_image(image: Any, where: str, features: Any, names: Any) -> GivenTemplate:
    """Return the template of an image: a map for each volume, or for each label."""
    if not isinstance(features, Space):
        raise InputError(
            f"{where} is an image, but the features are columns, which have no places: give an array "
            "(networks, features), or analyse images (a mask or an atlas)"
        )
    values, labels = maps_or_labels(image, where)
    if labels is not None:
        values = np.stack([values == label for label in labels], axis=-1).astype(np.float32)
    named = _given_names(names, labels)
    count = values.shape[3]
    if named is not None and len(named) != count:
        raise InputError(f"{where} has {count} networks and {len(named)} names")
    maps = features.of_maps(new_image(values, image.affine), nearest=labels is not None)
    empty = np.flatnonzero(~maps.any(axis=1))
    if empty.size:
        which = "none of its maps has" if empty.size == count else f"map {empty[0] + 1} does not have"
        raise InputError(
            f"{where}: {which} a value other than zero in the space of the study; it may be in another space"
        )
    systems = _given_systems(names, labels)
    return GivenTemplate(Template.of(maps, named, where), "an image in memory", systems=systems)


def maps_or_labels(image: Any, where: str) -> tuple[Any, list[int] | None]:
    """Return the values of an image of maps (4-D), or of labels (3-D) with the numbers of these."""
    values = np.asanyarray(image.dataobj)
    if values.dtype.kind not in "fiu" or values.ndim not in (3, 4):
        raise InputError(
            f"{where} must be 4-D, maps, or 3-D, labels, of real numbers; got shape {values.shape}"
        )
    values = _without_nan(values, where)
    return values, label_numbers(values, where) if values.ndim == 3 else None


def _without_nan(values: Any, where: str) -> Any:
    """Return an image with zero where no map has a number, as some programs write outside the brain."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values
    known = np.isfinite(values)
    if values.ndim == 4 and (known != known.any(axis=3, keepdims=True)).any():
        raise InputError(f"{where} holds NaN or infinity in some of its maps and numbers in others")
    return np.where(known, values, 0)


def label_numbers(values: Any, where: str) -> list[int]:
    """Return the numbers of an image of labels, but for 0, the background."""
    if (np.rint(values) != values).any() or (values < 0).any():
        raise InputError(
            f"{where} is a 3-D image with values that are not whole numbers of at least 0, so that these are "
            "no labels: a template is a 4-D image of maps, or a 3-D one of labels"
        )
    labels = [int(label) for label in np.unique(values) if label]
    if not 2 <= len(labels) <= _MOST_LABELS:
        raise InputError(f"{where} must hold between 2 and {_MOST_LABELS:,} labels, got {len(labels):,}")
    return labels


# Names


def names_beside(path: Path) -> Path | None:
    """Return the table of names beside an image or an array, if there is one."""
    beside = (path.with_name(stem(path) + ending) for ending in _SIDECARS)
    return next((table for table in beside if table.is_file()), None)


@dataclass(frozen=True)
class NameTable:
    """What networks or regions are called.

    Attributes
    ----------
    names : list of str
        In the order of the maps or labels.
    systems : list of str
        To which system each belongs, such as "visual"; empty where nothing says so.
    numbers : list of int, optional
        The label of each.
    """

    names: list[str]
    systems: list[str]
    numbers: list[int] | None = None

    def of(self, labels: Sequence[int] | None, where: Any) -> NameTable:
        """Return the table in the order of labels, or of maps where there are none."""
        if self.numbers is None:
            return self
        row = {number: place for place, number in enumerate(self.numbers)}
        if len(row) < len(self.numbers):
            raise InputError(f"{where}: a number stands there twice")
        wanted = sorted(row) if labels is None else labels
        missing = [label for label in wanted if label not in row]
        if missing:
            raise InputError(f"{where} has no name for label {missing[0]} ({len(missing)} such labels)")
        order = [row[number] for number in wanted]
        systems = [self.systems[place] for place in order] if self.systems else []
        return NameTable([self.names[place] for place in order], systems, list(wanted))


def _given_names(names: Any, labels: Sequence[int] | None = None) -> list[str] | None:
    """Return names that were given, or are in a table, those of labels in the order of these."""
    found = given_names(names, labels)
    return None if found is None else found.names


def _given_systems(names: Any, labels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the systems that a table of names tells, for every network or none."""
    found = given_names(names, labels)
    return tuple(found.systems) if found is not None and all(found.systems) else ()


def given_names(names: Any, labels: Sequence[int] | None = None) -> NameTable | None:
    """Return the names of maps or labels, given as a list or as the path of a table."""
    if names is None:
        return None
    if not isinstance(names, str | os.PathLike):
        return NameTable(list(names), [])
    return read_names(Path(names)).of(labels, names)


def read_names(path: Path) -> NameTable:
    """Read a table of names, or one name on each line; their numbers and systems too where it has them."""
    try:
        if path.stat().st_size > _LONGEST_TABLE:
            raise InputError(f"{path} is too long for a table of names")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file (UTF-8)") from None
    delimiter = "\t" if "\t" in text else "," if path.suffix.lower() == ".csv" else "\0"
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), delimiter=delimiter)]
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError(f"{path} holds no names")
    heading = [cell.lower() for cell in rows[0]]
    named, numbered = _column(heading, _NAME_COLUMNS), _column(heading, _NUMBER_COLUMNS)
    grouped = None
    if named is not None:
        grouped = _column(heading, [name for name in _SYSTEM_COLUMNS if name != heading[named]])
        rows = rows[1:]
    elif len(rows[0]) == 1:
        named = 0
    elif len(rows[0]) == 2 and all(row[0].isdecimal() for row in rows):
        named, numbered = 1, 0
    else:
        raise InputError(
            f"{path}: expected a column called {' or '.join(map(repr, _NAME_COLUMNS[:2]))}, or one name on "
            "each line"
        )
    try:
        return NameTable(
            [row[named] for row in rows],
            [] if grouped is None else [row[grouped] for row in rows],
            None if numbered is None else [int(row[numbered]) for row in rows],
        )
    except (IndexError, ValueError):
        raise InputError(f"{path} is not a table of names: its rows differ, or a number is none") from None


def _column(heading: Sequence[str], names: Sequence[str]) -> int | None:
    return next((heading.index(name) for name in names if name in heading), None)


# Results of a study


def _of_results(path: Path, features: Any, names: Any) -> GivenTemplate:
    """Return the networks of a finished study, with what they cost."""
    results = _Results(path)
    provenance, privacy = results.json("provenance.json"), results.json("privacy.json")
    try:
        study = provenance["study"]
        tables = study["analysis"]
        table = next(one for one in tables if one["kind"] == "ica")
        place = f"{table['name'] or table['kind']}/" if len(tables) > 1 else ""
        private, epsilon = privacy["private"], privacy["epsilon"]
        spent = float(epsilon) if private and epsilon is not None else math.inf
        title, digest = str(study["title"]), str(study["hash"])
        own = names if names is not None else table.get("template_names") or None
    except (StopIteration, KeyError, TypeError, ValueError):
        raise InputError(f"template {path} holds no brain networks of a finished study") from None
    cost = f"epsilon {spent:g}" if math.isfinite(spent) else "no privacy"
    source = f"results of '{title}' ({cost}, study {digest[:16]})"[:_LONGEST_SOURCE]
    if isinstance(features, Space) and results.holds(f"{place}maps.nii.gz"):
        # Wherever both have places, these say what a map is, and not the numbers of features.
        found = _of_image(results.image(f"{place}maps.nii.gz"), f"template {path}", features, own)
        return GivenTemplate(found.template, source, spent)
    maps = _array(io.BytesIO(results.read(f"{place}maps.npy")), f"template {path}")
    return GivenTemplate(Template.of(maps, _given_names(own), f"template {path}"), source, spent)


class _Results:
    """The files of a finished study, in a folder or a ``results.zip``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes:
        try:
            if self._path.is_dir():
                return (self._path / name).read_bytes()
            with zipfile.ZipFile(self._path) as archive:
                return archive.read(name)
        except (OSError, KeyError, zipfile.BadZipFile):
            raise InputError(
                f"template {self._path} holds no results of a finished study: there is no {name}"
            ) from None

    def holds(self, name: str) -> bool:
        try:
            self.read(name)
        except InputError:
            return False
        return True

    def json(self, name: str) -> Any:
        content = self.read(name)
        try:
            return json.loads(content)
        except ValueError:
            raise InputError(f"template {self._path}: {name} cannot be read") from None

    def image(self, name: str) -> Any:
        from nibabel.nifti1 import Nifti1Image

        content = self.read(name)
        try:
            return Nifti1Image.from_bytes(gzip.decompress(content))
        except Exception:
            raise InputError(f"template {self._path}: {name} cannot be read") from None
