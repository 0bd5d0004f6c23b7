"""Read templates given as arrays, images or results of a study, and convert them to a study's features.

Known networks are distributed as 4-D images of maps, such as NeuroMark or the networks of Smith et al. 2009
(``nilearn.datasets.fetch_atlas_smith_2009()["rsn20"]``), or as 3-D images of labels, such as the networks of
Yeo et al. 2011, where each label becomes a binary map. A map is treated like one volume of a scan: it is
resampled to the voxels of the mask, averaged over the regions of an atlas, or fitted by the maps of a
probabilistic atlas. It is neither smoothed nor cleaned, because it has no time dimension.

The origin of a template matters: a guarantee covers what a study itself publishes, and not what was known
before. A template also reveals something about the participants from whose data it was computed.
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
from capedjica.data.centres import NUMBER_COLUMNS
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
    "public": "public knowledge; no participant of this study contributed to it",
    "earlier-study": "the result of an earlier private study; a participant of both spends both budgets",
    "other-people": "a non-private result of other participants; none of them is in this study",
}
# Assumptions of the guarantee, or what it does not cover.
NOT_COVERED: Final = {
    "public": "The template is assumed to be public knowledge: the guarantee assumes that no participant of "
    "this study contributed to it.",
    "earlier-study": "NOT COVERED: the privacy cost of the earlier private study whose results are the "
    "template. A participant of both studies has spent the epsilon of both.",
    "other-people": "NOT COVERED: what the template, computed without privacy, reveals about the "
    "participants from whom it was computed. The guarantee assumes that none of them is in this study.",
}
_SIDECARS: Final = (".tsv", ".csv", ".txt")
_NAME_COLUMNS: Final = ("name", "label", "network", "region")
_SYSTEM_COLUMNS: Final = ("system", "domain", "group", "network")
_MOST_LABELS: Final = 1000
_LONGEST_TABLE: Final = 1 << 20
_LONGEST_SOURCE: Final = 200


@runtime_checkable
class Space(Protocol):
    """Features with spatial positions, to which images can be converted."""

    @property
    def n_features(self) -> int:
        """Number of features D."""

    def of_maps(self, image: Nifti1Image, nearest: bool = False) -> FloatArray:
        """Return the values of a 4-D image of maps in the features, (R, D)."""


@dataclass(frozen=True, eq=False)
class GivenTemplate:
    """A template and its origin.

    Attributes
    ----------
    template : Template
        The networks, in the features of the study.
    source : str
        Description of its source.
    epsilon : float, optional
        Epsilon of the study that produced it, infinite for one without privacy; None if it is not the result
        of a study.
    systems : tuple of str
        System to which each network belongs, if a table of names states it.
    """

    template: Template
    source: str
    epsilon: float | None = None
    systems: tuple[str, ...] = ()

    def origin(self, said: str | None, where: str = "template_origin") -> Origin | None:
        """Return the origin of the template, as declared or as it states itself; None if neither is known.

        Results without privacy are rejected unless they are declared to come from other participants.
        """
        if said is not None and said not in ORIGINS:
            raise InputError(f"{where} must be one of {', '.join(ORIGINS)}; got {said!r}")
        if self.epsilon is not None and math.isinf(self.epsilon) and said != "other-people":
            raise InputError(
                f"{self.source} was computed without privacy, so it may be a template only if none of its "
                f"participants takes part: declare this by {where} 'other-people'; got {said or 'nothing'!r}"
            )
        if said is None and self.epsilon is not None:
            return "earlier-study"
        return said  # type: ignore[return-value]


def read_template(
    given: Any, features: Any, n_features: int | None = None, names: Any = None
) -> GivenTemplate:
    """Read a template and convert it to the features of a study.

    Parameters
    ----------
    given : array, image, path or Template
        Maps (networks, features), as an array or a ``.npy`` file; a 4-D image of maps or a 3-D image of
        labels; or the ``results.zip`` or the folder of a finished study.
    features : Features or None
        Features of the scans; images require features with spatial positions (:class:`Space`).
    n_features : int, optional
        D; by default that of ``features``.
    names : sequence of str or path, optional
        Names of the networks, or a table of them; by default a table next to the file, with the same name
        and the extension .tsv, .csv or .txt.
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
            f"{found.source}: its maps have {found.template.n_features:,} features, but the study has "
            f"{n_features:,}"
        )
    return found


def study_template(path: Path, sha256: str | None, names: Sequence[str], shape: tuple[int, int]) -> Template:
    """Return the template of a study from its ``.npy`` file; reject a file that differs from the study's."""
    what = "template"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}; expected a .npy file") from None
    check_digest(path, what, hashlib.sha256(content).hexdigest(), sha256)
    maps = _array(io.BytesIO(content), f"{what} {path}")
    if maps.shape != shape:
        raise InputError(
            f"{what} {path} has shape {maps.shape}, expected {shape}, the networks (n_components) and "
            "features of the study"
        )
    return Template.of(maps, names or None, f"{what} {path}")


# Files and images


def _of_path(path: Path, features: Any, names: Any) -> GivenTemplate:
    if not path.exists():
        raise InputError(f"template {path} does not exist; give an image, a .npy file or results of a study")
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
            f"template {path} is neither a readable image, nor a .npy file, nor the results of a study"
        ) from None
    found = _of_image(image, f"template {path}", features, own)
    return replace(found, source=path.name[:_LONGEST_SOURCE])


def load_image(path: Path, what: str = "image") -> Any:
    """Return an image with all its values read."""
    import nibabel

    try:
        image: Any = nibabel.load(path)
        np.asanyarray(image.dataobj)
    except Exception:
        raise InputError(f"{what} {path} is not a readable image") from None
    return image


def load_array(path: Path, what: str) -> FloatArray:
    """Return the numbers of a ``.npy`` file."""
    try:
        with path.open("rb") as file:
            return _array(file, f"{what} {path}")
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}; expected a .npy file") from None


def _array(file: Any, where: str) -> FloatArray:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.ndarray) or loaded.dtype.kind not in "fiu":
            raise ValueError
        return loaded.astype(np.float64)
    except (ValueError, EOFError, OSError):
        raise InputError(f"{where} is not an array of real numbers saved by numpy.save") from None


def _of_image(image: Any, where: str, features: Any, names: Any) -> GivenTemplate:
    """Return the template of an image: one map for each volume or each label."""
    if not isinstance(features, Space):
        raise InputError(
            f"{where} is an image, but the features are columns without spatial positions; give an array "
            "(networks, features), or analyse images (with a mask or an atlas)"
        )
    values, labels = maps_or_labels(image, where)
    if labels is not None:
        values = np.stack([values == label for label in labels], axis=-1).astype(np.float32)
    named = _given_names(names, labels)
    count = values.shape[3]
    if named is not None and len(named) != count:
        raise InputError(f"{where} has {count} networks, but {len(named)} names are given")
    maps = features.of_maps(new_image(values, image.affine), nearest=labels is not None)
    empty = np.flatnonzero(~maps.any(axis=1))
    if empty.size:
        which = "all of its maps are zero" if empty.size == count else f"map {empty[0] + 1} is zero"
        raise InputError(
            f"{where}: {which} everywhere in the space of the study; it may be in a different space"
        )
    systems = _given_systems(names, labels)
    return GivenTemplate(Template.of(maps, named, where), "an image in memory", systems=systems)


def maps_or_labels(image: Any, where: str) -> tuple[Any, list[int] | None]:
    """Return the values of an image of maps (4-D), or of labels (3-D) with their numbers."""
    values = np.asanyarray(image.dataobj)
    if values.dtype.kind not in "fiu" or values.ndim not in (3, 4):
        raise InputError(
            f"{where} must be a 4-D image of maps or a 3-D image of labels, with real numbers; got shape "
            f"{values.shape}"
        )
    values = _without_nan(values, where)
    return values, label_numbers(values, where) if values.ndim == 3 else None


def _without_nan(values: Any, where: str) -> Any:
    """Return an image with zero where all maps are NaN, as some programs write outside the brain."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values
    known = np.isfinite(values)
    if values.ndim == 4 and (known != known.any(axis=3, keepdims=True)).any():
        raise InputError(f"{where} contains voxels that are NaN or infinite in only some of its maps")
    return np.where(known, values, 0)


def label_numbers(values: Any, where: str) -> list[int]:
    """Return the numbers of a label image, except 0, the background."""
    if (np.rint(values) != values).any() or (values < 0).any():
        raise InputError(
            f"{where} is a 3-D image whose values are not non-negative integers, so not labels; expected "
            "a 4-D image of maps or a 3-D image of labels"
        )
    labels = [int(label) for label in np.unique(values) if label]
    if not 2 <= len(labels) <= _MOST_LABELS:
        raise InputError(f"{where} must have between 2 and {_MOST_LABELS:,} labels, got {len(labels):,}")
    return labels


# Names


def names_beside(path: Path) -> Path | None:
    """Return the table of names next to an image or an array, if there is one."""
    beside = (path.with_name(stem(path) + ending) for ending in _SIDECARS)
    return next((table for table in beside if table.is_file()), None)


@dataclass(frozen=True)
class NameTable:
    """Names of networks or regions.

    Attributes
    ----------
    names : list of str
        Names, in the order of the maps or labels.
    systems : list of str
        System to which each belongs, such as "visual"; empty if not stated.
    numbers : list of int, optional
        The label of each.
    """

    names: list[str]
    systems: list[str]
    numbers: list[int] | None = None

    def of(self, labels: Sequence[int] | None, where: Any) -> NameTable:
        """Return the table in the order of the labels, or of the maps if there are no labels."""
        if self.numbers is None:
            return self
        row = {number: place for place, number in enumerate(self.numbers)}
        if len(row) < len(self.numbers):
            raise InputError(f"{where}: a label number occurs twice; expected each number once")
        wanted = sorted(row) if labels is None else labels
        missing = [label for label in wanted if label not in row]
        if missing:
            raise InputError(f"{where} has no name for label {missing[0]} ({len(missing)} such labels)")
        order = [row[number] for number in wanted]
        systems = [self.systems[place] for place in order] if self.systems else []
        return NameTable([self.names[place] for place in order], systems, list(wanted))


def _given_names(names: Any, labels: Sequence[int] | None = None) -> list[str] | None:
    """Return names given as a list or in a table; those of labels in the order of the labels."""
    found = given_names(names, labels)
    return None if found is None else found.names


def _given_systems(names: Any, labels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the systems stated in a table of names, for every network or for none."""
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
    """Read a table of names, or one name on each line, with numbers and systems if it has them."""
    try:
        if path.stat().st_size > _LONGEST_TABLE:
            raise InputError(f"{path} is too long for a table of names (limit {_LONGEST_TABLE} bytes)")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; expected a table of names") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a UTF-8 text file; expected a table of names") from None
    delimiter = "\t" if "\t" in text else "," if path.suffix.lower() == ".csv" else "\0"
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), delimiter=delimiter)]
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError(f"{path} contains no names")
    heading = [cell.lower() for cell in rows[0]]
    named, numbered = _column(heading, _NAME_COLUMNS), _column(heading, NUMBER_COLUMNS)
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
            f"{path}: expected a column named {' or '.join(map(repr, _NAME_COLUMNS[:2]))}, or one name on "
            "each line"
        )
    try:
        return NameTable(
            [row[named] for row in rows],
            [] if grouped is None else [row[grouped] for row in rows],
            None if numbered is None else [int(row[numbered]) for row in rows],
        )
    except (IndexError, ValueError):
        raise InputError(
            f"{path} is not a table of names: its rows have different lengths, or a label is not an integer"
        ) from None


def _column(heading: Sequence[str], names: Sequence[str]) -> int | None:
    return next((heading.index(name) for name in names if name in heading), None)


# Results of a study


def _of_results(path: Path, features: Any, names: Any) -> GivenTemplate:
    """Return the networks of a finished study, with their privacy cost."""
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
        raise InputError(f"template {path} does not contain brain networks of a finished study") from None
    cost = f"epsilon {spent:g}" if math.isfinite(spent) else "no privacy"
    source = f"results of '{title}' ({cost}, study {digest[:16]})"[:_LONGEST_SOURCE]
    if isinstance(features, Space) and results.holds(f"{place}maps.nii.gz"):
        # If both have spatial positions, the image defines a map, and not the order of its features.
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
                f"template {self._path} is not the results of a finished study: {name} is missing"
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
