"""Create and manage all sites of a study as folders on one machine, for trials and public collections.

If the scans of all sites are in one place, as in a published collection, one command performs for every site
the steps of its data manager. A collection is one of:

- a folder with ``participants.tsv`` (columns ``participant_id`` and ``site``) and a NumPy archive (``.npz``)
  with an array (time, regions) for each ``participant_id``;
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
from capedjica.site.approval.participation import approve, check_offer
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.atomic_files import writing
from capedjica.tools.text import counted, printable
from capedjica.tools.toml import listed

_PARTICIPANTS: Final = "participants.tsv"
_COLUMNS: Final = ("participant_id", "site")


@dataclass(frozen=True)
class Limits:
    """Budgets of each site per participant."""

    total_epsilon: float
    study_epsilon: float
    delta: float


@dataclass(frozen=True)
class _Source:
    """Location of one site's scans, or the participants whose arrays of an archive belong to the site."""

    data: Path | None
    kind: DataKind = "auto"
    abide_site: str | None = None
    members: tuple[str, ...] = ()


def make_sites(out: Path, collection: Path, limits: Limits, kind: str = "auto") -> dict[str, int]:
    """Create all sites of a collection below ``out``; return the number of participants of each.

    Either all sites are created or none.
    """
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} already exists and is not empty; give a new folder for the sites")
    sources = _sources(collection, data_kind(kind))
    if len(sources) < 2:
        raise InputError(
            f"{collection} has {counted(len(sources), 'site')}; a study needs at least 2. Expected a folder "
            "for each site, or a participants.tsv with a column 'site'"
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


def unnamed_arrays(collection: Path) -> int:
    """Return the number of arrays in the archive of a collection that have no row in its table."""
    if not _is_archive(collection):
        return 0
    with _opened(_archive(collection)) as series:
        return len(series.files) - sum(map(len, _arrays_by_site(collection).values()))


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
    """Return the locations of the scans of a collection, by name of the future site."""
    if not collection.is_dir():
        raise InputError(f"{collection} is not a folder; expected a folder with the scans of all sites")
    if _is_archive(collection):
        by_site = _arrays_by_site(collection)
        return {name: _Source(None, "files", members=members) for name, members in by_site.items()}
    if kind in ("auto", "abide") and (names := abide_sites(collection)):
        return {_site_name(name): _Source(collection, "abide", name) for name in names}
    folders = sorted(path for path in collection.iterdir() if path.is_dir() and path.name[0] != ".")
    return {_site_name(path.name): _Source(path, kind) for path in folders}


def _is_archive(collection: Path) -> bool:
    return (collection / _PARTICIPANTS).exists() and any(collection.glob("*.npz"))


def _arrays_by_site(collection: Path) -> dict[str, tuple[str, ...]]:
    """Return the participants of each site of an archive, in the order of the table."""
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
            raise InputError(
                f"{table} names {printable(person)!r}, but {archive} has no such array; add the array or "
                "remove the row"
            )
        if not re.fullmatch(NAME_PATTERN, person):
            raise InputError(f"{table}: {printable(person)!r} cannot be used as a file name; rename it")
        found.setdefault(_site_name(site), []).append(person)
    named = Counter(name for people in found.values() for name in people)
    twice = [name for name, times in named.items() if times > 1]
    if twice:
        raise InputError(f"{table} names {printable(twice[0])!r} twice; expected one row per participant")
    return {name: tuple(people) for name, people in sorted(found.items())}


def _archive(collection: Path) -> Path:
    archives = sorted(collection.glob("*.npz"))
    if len(archives) != 1:
        raise InputError(f"{collection} has {len(archives)} .npz archives; expected one")
    return archives[0]


def _write_arrays(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    """Write some arrays of an archive into a folder, each as a separate file."""
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
        raise InputError(f"{archive} is not a valid NumPy archive (.npz): {error}") from None
    assert isinstance(opened, NpzFile)
    return opened


def _site_name(text: str) -> str:
    """Convert a name to a valid name of a site."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "site"


def approve_all(homes: Sequence[SiteHome], study: Study) -> None:
    """Approve a study for all sites; if any of them refuses, list the reasons and approve for none."""
    found: list[str] = []
    for home in homes:
        try:
            check_offer(home, study)
        except CapedjicaError as error:
            found.append(str(error))
    if found:
        raise InputError(listed("the study was not approved for any site", found))
    for home in homes:
        approve(home, study)
