"""All sites of a study as folders of one machine, made and led at once: for trials and pooled collections.

Where the scans of all sites lie together, as those of a published collection do, one command does for every
site what its data manager would do alone. A collection is one of three:

- a folder with ``participants.tsv`` (columns ``participant_id`` and ``site``) and an archive of NumPy
  (``.npz``) with an array (time, regions) under each ``participant_id``;
- nilearn's copy of ABIDE;
- a folder with a sub-folder of scans, of any kind, for each site.
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.npyio import NpzFile

from capedjica.data.layouts import DataKind, abide_sites, data_kind, find_people, rows_of
from capedjica.errors import CapedjicaError, InputError
from capedjica.securesum.identity import NAME_PATTERN
from capedjica.site.approval.participation import approve, check_terms
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.atomic_files import writing
from capedjica.tools.text import counted, printable
from capedjica.tools.toml import listed

_PARTICIPANTS: Final = "participants.tsv"
_COLUMNS: Final = ("participant_id", "site")


@dataclass(frozen=True)
class Limits:
    """What each of the sites may ever spend on one participant."""

    total_epsilon: float
    study_epsilon: float
    delta: float


@dataclass(frozen=True)
class _Source:
    """Where one site's scans are; or, of an archive, whose arrays are to be written out for it."""

    data: Path | None
    kind: DataKind = "auto"
    abide_site: str | None = None
    members: tuple[str, ...] = ()


def make_sites(out: Path, collection: Path, limits: Limits, kind: str = "auto") -> dict[str, int]:
    """Make a site below ``out`` for each that a collection names; return how many people each has.

    All or none: what was made is removed where one of them cannot be.
    """
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists already and is not empty; give a new folder for the sites")
    sources = _sources(collection, data_kind(kind))
    if len(sources) < 2:
        raise InputError(
            f"{collection} holds {counted(len(sources), 'site')}; a study needs at least 2. Expected a "
            "folder for each site, or a participants.tsv with a column 'site'"
        )
    existed = out.exists()
    try:
        return {name: _make(out / name, name, source, collection, limits) for name, source in sources.items()}
    except BaseException:
        for name in sources:
            shutil.rmtree(out / name, ignore_errors=True)
        if not existed:
            shutil.rmtree(out, ignore_errors=True)
        raise


def _make(folder: Path, name: str, source: _Source, collection: Path, limits: Limits) -> int:
    data = "data" if source.data is None else str(source.data.absolute())
    home = SiteHome.create(
        folder,
        name,
        limits.total_epsilon,
        limits.study_epsilon,
        limits.delta,
        data=data,
        data_kind=source.kind,
        abide_site=source.abide_site,
    )
    if source.members:
        _write_arrays(_archive(collection), source.members, home.data_path)
    return len(find_people(source.kind, home.data_path, abide_site=source.abide_site).people)


def _sources(collection: Path, kind: DataKind) -> dict[str, _Source]:
    """Return the sites of a collection and where their scans are, by the names that the sites will have."""
    if not collection.is_dir():
        raise InputError(f"{collection} must be a folder with the scans of all sites; it is not a folder")
    if (collection / _PARTICIPANTS).exists() and any(collection.glob("*.npz")):
        by_site = _arrays_by_site(collection)
        return {name: _Source(None, "files", members=members) for name, members in by_site.items()}
    if kind in ("auto", "abide") and (names := abide_sites(collection)):
        return {_site_name(name): _Source(collection, "abide", name) for name in names}
    folders = sorted(path for path in collection.iterdir() if path.is_dir() and path.name[0] != ".")
    return {_site_name(path.name): _Source(path, kind) for path in folders}


def _arrays_by_site(collection: Path) -> dict[str, tuple[str, ...]]:
    """Return whose arrays of an archive are those of each site, in the order of the table."""
    table = collection / _PARTICIPANTS
    rows = rows_of(table, "\t")
    missing = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise InputError(f"{table} has no column {missing[0]!r}; expected {' and '.join(_COLUMNS)}")
    archive = _archive(collection)
    with _opened(archive) as series:
        known = set(series.files)
    found: dict[str, list[str]] = {}
    for row in rows:
        person, site = (str(row[name] or "").strip() for name in _COLUMNS)
        if person not in known:
            raise InputError(f"{table} names {printable(person)!r}, of whom {archive} has no array")
        if not re.fullmatch(NAME_PATTERN, person):
            raise InputError(f"{table}: {printable(person)!r} cannot be the name of a file; rename them")
        found.setdefault(_site_name(site), []).append(person)
    named = Counter(name for people in found.values() for name in people)
    twice = [name for name, times in named.items() if times > 1]
    if twice:
        raise InputError(f"{table} names {printable(twice[0])!r} twice; expected a row per participant")
    return {name: tuple(people) for name, people in sorted(found.items())}


def _archive(collection: Path) -> Path:
    archives = sorted(collection.glob("*.npz"))
    if len(archives) != 1:
        raise InputError(f"{collection} holds {len(archives)} .npz archives; expected one")
    return archives[0]


def _write_arrays(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    """Write some arrays of an archive into a folder, each as a file of its own."""
    with writing(folder), _opened(archive) as series:
        folder.mkdir()
        for name in members:
            try:
                array = series[name]
            except (ValueError, OSError, zlib.error, zipfile.BadZipFile) as error:
                words = f"{archive}: the array of {printable(name)} cannot be read"
                raise InputError(f"{words}: {error}") from None
            np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _opened(archive: Path) -> NpzFile:
    """Open an archive of arrays; pickled objects are never loaded."""
    try:
        opened = np.load(archive, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive} is not an archive of NumPy: {error}") from None
    assert isinstance(opened, NpzFile)
    return opened


def _site_name(text: str) -> str:
    """Return the name of a site in a form that a site can have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "site"


def approve_all(homes: Sequence[SiteHome], study: Study) -> None:
    """Approve a study for every site; what any of them refuses is listed, and then none approves."""
    found: list[str] = []
    for home in homes:
        try:
            check_terms(home, study)
        except CapedjicaError as error:
            found.append(str(error))
    if found:
        raise InputError(listed("nothing was approved", found))
    for home in homes:
        approve(home, study)
