"""Find participants and their recordings in a folder from file names alone.

============  ===========================================================================================
``files``     tables of region time series (:mod:`capedjica.data.timeseries`)
``nifti``     4-D images, ``.nii`` or ``.nii.gz``
``bids``      derivatives as fMRIPrep writes them: ``sub-*/[ses-*/]func/*_desc-preproc_bold.nii.gz`` with
              ``*_desc-confounds_timeseries.tsv`` next to them and ``participants.tsv`` at the top level
``abide``     nilearn's copy of ABIDE, as ``nilearn.datasets.fetch_abide_pcp`` stores it:
              ``ABIDE_pcp/cpac/nofilt_noglobal/*_rois_cc200.1D`` and ``Phenotypic_V1_0b_preprocessed1.csv``
``table``     one table with a row per participant (:mod:`capedjica.data.participant_table`), which is opened
============  ===========================================================================================

The unit of privacy is the participant, so all recordings of a participant must be assigned to that
participant. A file belongs to the ``sub-XXX`` at the beginning of its name; otherwise, if it is in a
subfolder, to the participant after whom this subfolder is named; otherwise to the participant after whom the
file itself is named.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar, cast, get_args

from capedjica.data.participant_table import (
    PARTICIPANT,
    TABLE_SUFFIXES,
    is_person_table,
    read_person_table,
    table_problems,
)
from capedjica.data.scans import Person, Problem, Recording, stem
from capedjica.data.timeseries import SUFFIXES, is_table
from capedjica.errors import InputError

DataKind = Literal["auto", "files", "nifti", "bids", "abide", "table"]
IMAGE_SUFFIXES: Final = (".nii", ".nii.gz")
PHENOTYPES: Final = "Phenotypic_V1_0b_preprocessed1.csv"
# Any suffix is ignored: merging two participants costs a little noise; splitting one loses its protection.
_SUBJECT: Final = re.compile(r"sub-[0-9A-Za-z]+")
_PREPROCESSED: Final = "_desc-preproc_"
_CONFOUND_ENDINGS: Final = ("_desc-confounds_timeseries.tsv", "_desc-confounds_regressors.tsv")
_NO_SCANS: Final = ("participants.tsv", *_CONFOUND_ENDINGS)
# BIDS entities that distinguish several images of one run.
_VARIANT: Final = re.compile(r"_(space|res|den|desc)-[0-9A-Za-z]+")
_PIECE: Final = 1 << 16
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def data_kind(name: str) -> DataKind:
    """Return the kind of data with the given name."""
    for kind in get_args(DataKind):
        if kind == name:
            return cast(DataKind, kind)
    raise InputError(f"kind must be one of {', '.join(get_args(DataKind))}; got {name!r}")


@dataclass(frozen=True)
class Found:
    """Contents of a folder.

    Attributes
    ----------
    kind : str
        Kind of data that the folder was read as.
    people : tuple of Person
        Participants, ordered by name.
    problems : tuple of Problem
        Problems found before any scan is opened.
    """

    kind: DataKind
    people: tuple[Person, ...]
    problems: tuple[Problem, ...] = ()


def find_people(
    kind: DataKind,
    folder: str | os.PathLike[str],
    *,
    pattern: str = "*",
    task: str | None = None,
    space: str | None = None,
    participants: Sequence[str] = (),
    abide_site: str | None = None,
    without: Collection[str] = (),
) -> Found:
    """Return the participants of a folder with their recordings.

    Parameters
    ----------
    kind : {"auto", "files", "nifti", "bids", "abide", "table"}
        Kind of data in the folder; "auto" detects it.
    folder : path
        The folder, or the table with a row per participant itself.
    pattern : str
        Pattern of the file names to read.
    task, space : str, optional
        Task and template space of BIDS derivatives.
    participants : sequence of str
        Participants to include, with or without "sub-"; all if empty.
    abide_site : str, optional
        One ``SITE_ID`` of ABIDE.
    without : collection of str
        Names of participants to exclude; none of their files is opened.
    """
    home = Path(folder)
    if kind in ("auto", "table") and _is_one_table(home):
        kind, home, pattern = "table", home.parent, glob.escape(home.name)
    home = _readable(home)
    kind = _guess(home, pattern) if kind == "auto" else kind
    if kind == "bids":
        recordings, problems = _bids(home, pattern, task, space)
    elif kind == "abide":
        recordings, problems = _abide(home, pattern, abide_site), []
    elif kind == "table":
        recordings, problems = _rows_by_person(home, pattern)
    else:
        recordings, problems = _plain(home, pattern, kind)
    everybody = [Person(name, tuple(own)) for name, own in sorted(recordings.items())]
    chosen = _chosen(everybody, participants, home)
    people = tuple(person for person in chosen if person.name not in without)
    names = {person.name for person in people}
    problems = [problem for problem in problems if problem.subject in names or not participants]
    problems = [problem for problem in problems if problem.subject not in without]
    return Found(kind, people, (*problems, *_duplicate_runs(people), *_same_content(people)))


def recordings_among(files: Sequence[Path]) -> tuple[Recording, ...]:
    """Return the recordings among the files of one participant, each with its table of confounds.

    No other file is searched for, and the files need not exist.
    """
    scans = [path for path in files if is_image(path) or is_table(path)]
    return tuple(
        Recording(path, next((table for table in _confound_tables(path) if table in files), None))
        for path in scans
        if not path.name.endswith(_NO_SCANS)
    )


def check_folder(folder: Path) -> None:
    """Reject a scan folder that does not exist or is empty, such as the mount point of an unmounted disk."""
    if _is_one_table(folder):
        return
    if next(_readable(folder).iterdir(), None) is None:
        raise InputError(f"{folder} is empty; expected a folder with scans")


def _is_one_table(path: Path) -> bool:
    return path.suffix.lower() in TABLE_SUFFIXES and path.is_file()


def _readable(home: Path) -> Path:
    if not home.is_dir():
        raise InputError(f"{home} is not a folder; expected a folder with scans")
    if not os.access(home, os.R_OK | os.X_OK):
        raise InputError(f"{home} cannot be read: permission denied; grant read access to this folder")
    return home


def _guess(home: Path, pattern: str) -> DataKind:
    """Detect the kind of data in a folder."""
    if _phenotypes(home) is not None:
        return "abide"
    if next(_func_images(home), None) is not None:
        return "bids"
    if any(map(is_image, _matching(home, pattern, deep=True))):
        return "nifti"
    tables = [path for path in _matching(home, pattern, deep=False) if is_table(path)]
    if not tables:
        known = ", ".join((*SUFFIXES, *IMAGE_SUFFIXES))
        raise InputError(f"{home} contains no {known} file that matches {pattern!r}")
    return "table" if len(tables) == 1 and is_person_table(tables[0]) else "files"


def is_image(path: Path) -> bool:
    """Return whether a file is an image, judging by its name."""
    return path.name.lower().endswith(IMAGE_SUFFIXES)


def _matching(home: Path, pattern: str, *, deep: bool) -> list[Path]:
    """Return the files that match a pattern, including subfolders if ``deep``; hidden files are skipped."""
    try:
        matching = list(home.rglob(pattern) if deep and "/" not in pattern else home.glob(pattern))
    except (ValueError, NotImplementedError):
        raise InputError(f"pattern must be a pattern of file names in {home}, got {pattern!r}") from None
    visible = [
        path for path in matching if not any(part.startswith(".") for part in path.relative_to(home).parts)
    ]
    return sorted(visible, key=lambda path: (path.name, path))


def _grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


# Participants -----------------------------------------------------------------------------------------------


def _chosen(people: list[Person], participants: Sequence[str], home: Path) -> tuple[Person, ...]:
    """Return the selected participants; all if none is named."""
    if not participants:
        return tuple(people)
    named = {_plain_label(label): label for label in participants}
    chosen = tuple(person for person in people if _plain_label(person.name) in named)
    missing = set(named) - {_plain_label(person.name) for person in chosen}
    if missing:
        raise InputError(f"{home} contains no file of participant {named[min(missing)]!r}")
    return chosen


def _plain_label(label: str) -> str:
    return label.removeprefix("sub-")


def _duplicate_runs(people: Iterable[Person]) -> Iterator[Problem]:
    """Yield files that contain the same run of the same participant, judging by their names."""
    for person in people:
        paths = [recording.path for recording in person.recordings]
        for first, *others in _grouped(paths, lambda path: path.with_name(_run_name(path))).values():
            for other in others:
                found = f"the same subject and run as {first}"
                yield Problem(other, found, "one file per run", subject=person.name)


def _run_name(path: Path) -> str:
    return _VARIANT.sub("", stem(path))


def _same_content(people: Iterable[Person]) -> Iterator[Problem]:
    """Yield files that are copies of each other: counting a participant twice would halve the protection."""
    owners = {recording.path: person.name for person in people for recording in person.recordings}
    groups = [list(owners)]
    for looks in (_size, _sample, _content):
        groups = [
            same
            for group in groups
            for value, same in _grouped(group, looks).items()
            if value is not None and len(same) > 1
        ]
    for first, *copies in groups:
        for copy in copies:
            yield Problem(copy, f"the same content as {first}", "every recording once", subject=owners[copy])


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size or None
    except OSError:
        return None


def _sample(path: Path) -> bytes | None:
    """Return a block from the middle of a file, where two scans of the same size differ."""
    try:
        with path.open("rb") as file:
            file.seek(path.stat().st_size // 2)
            return file.read(_PIECE)
    except OSError:
        return None


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


# Plain folders --------------------------------------------------------------------------------------------


def _plain(home: Path, pattern: str, kind: DataKind) -> tuple[dict[str, list[Recording]], list[Problem]]:
    """Return the images or tables of a folder, by participant."""
    of_kind, suffixes = (is_image, IMAGE_SUFFIXES) if kind == "nifti" else (is_table, SUFFIXES)
    matching = _matching(home, pattern, deep=kind == "nifti")
    paths = [path for path in matching if of_kind(path) and not path.name.endswith(_NO_SCANS)]
    if not paths:
        raise InputError(f"{home} contains no {', '.join(suffixes)} file that matches {pattern!r}")
    recordings = (Recording(path, _confounds_of(path)) for path in paths)
    return _grouped(recordings, lambda recording: _owner(recording.path, home)), []


def _owner(path: Path, home: Path) -> str:
    """Return the participant to whom a file belongs."""
    named = _SUBJECT.match(path.name.split(".")[0])
    if named:
        return named[0]
    folders = path.relative_to(home).parts[:-1]
    return folders[0] if folders else stem(path)


def _confounds_of(path: Path) -> Path | None:
    """Return the fMRIPrep table of confounds for an image, if there is one."""
    return next((table for table in _confound_tables(path) if table.is_file()), None)


def _confound_tables(path: Path) -> list[Path]:
    """Return the possible paths of this table."""
    run = _run_name(path).removesuffix("_bold")
    return [path.with_name(run + ending) for ending in _CONFOUND_ENDINGS]


# A table with a row per participant -----------------------------------------------------------------------


def _rows_by_person(home: Path, pattern: str) -> tuple[dict[str, list[Recording]], list[Problem]]:
    """Return the row of every participant in the single table of a folder."""
    matching = _matching(home, pattern, deep=False)
    paths = [path for path in matching if _is_one_table(path)]
    if not paths:
        raise InputError(f"{home} contains no {', '.join(TABLE_SUFFIXES)} file that matches {pattern!r}")
    if len(paths) > 1:
        others = ", ".join(str(path.relative_to(home)) for path in paths)
        raise InputError(f"{home} contains several tables ({others}); select one of them by pattern")
    table = read_person_table(paths[0])
    if not table.rows:
        raise InputError(f"{paths[0]} contains no participant; expected a row per participant")
    recordings = {name: [Recording(paths[0], row=name)] for name in table.rows}
    return recordings, list(table_problems(paths[0], table))


# BIDS derivatives -----------------------------------------------------------------------------------------


def _func_images(home: Path) -> Iterator[Path]:
    """Yield the functional images of a BIDS data set, including raw images."""
    for functional in ("sub-*/func", "sub-*/ses-*/func"):
        for ending in IMAGE_SUFFIXES:
            yield from home.glob(f"{functional}/*_bold{ending}")


def _bids(
    home: Path, pattern: str, task: str | None, space: str | None
) -> tuple[dict[str, list[Recording]], list[Problem]]:
    """Return fMRIPrep's recordings of a task in a space, by participant."""
    images = sorted(path for path in _func_images(home) if path.match(pattern))
    preprocessed = [path for path in images if _PREPROCESSED in path.name]
    if not preprocessed:
        wanted = f"sub-*/[ses-*/]func/*{_PREPROCESSED}bold.nii.gz"
        if not images:
            raise InputError(f"{home} contains no {wanted}")
        raise InputError(
            f"{home} contains raw images, which are in no common space; give fMRIPrep derivatives, {wanted}"
        )
    chosen = _with_entity(preprocessed, "task", task, home)
    chosen = _with_entity(chosen, "space", space, home)
    recordings = [Recording(path, _confounds_of(path)) for path in chosen]
    by_person = _grouped(recordings, lambda recording: _owner(recording.path, home))
    return by_person, list(_participant_problems(home / "participants.tsv", by_person))


def _with_entity(paths: list[Path], entity: str, value: str | None, home: Path) -> list[Path]:
    """Return the files with the given value of an entity; without one, the choice must be unambiguous."""
    groups = _grouped(paths, lambda path: entity_of(path, entity))
    if value is None:
        if entity == "space" and len(groups) > 1:
            spaces = ", ".join(sorted(group or "unnamed" for group in groups))
            raise InputError(f"{home} contains images in several spaces ({spaces}); select one of them")
        return paths
    if value not in groups:
        there = ", ".join(sorted(group for group in groups if group)) or "none"
        raise InputError(f"{home} contains no image of {entity} {value!r}; available: {there}")
    return groups[value]


def entity_of(path: Path, entity: str) -> str | None:
    """Return the value of an entity in a BIDS name, or None if the entity is absent."""
    found = re.search(rf"(?:^|_){entity}-([0-9A-Za-z]+)", path.name)
    return found[1] if found else None


def _participant_problems(table: Path, people: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the discrepancies between ``participants.tsv`` and the folders."""
    if not table.is_file():
        return
    rows = rows_of(table, "\t")
    if not rows or PARTICIPANT not in rows[0]:
        yield Problem(table, f"no column {PARTICIPANT}", "one, and tabs between columns", fatal=False)
        return
    listed = [name for row in rows if (name := row[PARTICIPANT])]
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield Problem(table, f"{name} more than once", "every participant once", subject=name)
    for name in sorted(set(listed) - set(people)):
        yield Problem(table, f"{name} without a run", "a recording", fatal=False, subject=name)
    for name in sorted(set(people) - set(listed)):
        expected = "a row for every participant"
        yield Problem(table, f"no row of {name}", expected, fatal=False, subject=name, alike=expected)


def rows_of(table: Path, delimiter: str) -> list[dict[str, str]]:
    """Return the rows of a table whose first row contains the column names."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise InputError(f"{table} cannot be read; expected a table of UTF-8 text") from None


# ABIDE ----------------------------------------------------------------------------------------------------


def _phenotypes(home: Path) -> Path | None:
    """Return ABIDE's phenotypic table, from the folder, nilearn's subfolder or a parent folder."""
    places = (home, home / "ABIDE_pcp", *home.parents[:2])
    return next((place / PHENOTYPES for place in places if (place / PHENOTYPES).is_file()), None)


def abide_sites(folder: Path) -> list[str]:
    """Return the ABIDE sites for which a copy has files; empty if the folder is not a copy of ABIDE."""
    table = _phenotypes(folder)
    if table is None:
        return []
    there = {_file_id(path) for path in _matching(folder, "*", deep=True)}
    return sorted({row["SITE_ID"] for row in rows_of(table, ",") if row.get("FILE_ID") in there})


def _abide(home: Path, pattern: str, site: str | None) -> dict[str, list[Recording]]:
    """Return the recordings of one ABIDE site, or of all, by participant."""
    table = _phenotypes(home)
    if table is None:
        raise InputError(f"{home} is not a copy of ABIDE; expected the file {PHENOTYPES}")
    sites = {
        row["FILE_ID"]: row["SITE_ID"] for row in rows_of(table, ",") if {"FILE_ID", "SITE_ID"} <= set(row)
    }
    known = set(sites.values())
    if site is not None and site.lower() not in {name.lower() for name in known}:
        raise InputError(
            f"abide_site must be a SITE_ID of {table} ({', '.join(sorted(known))}), got {site!r}"
        )
    files = [path for path in _matching(home, pattern, deep=True) if is_image(path) or path.suffix == ".1D"]
    recordings = _grouped(files, _file_id)
    for paths in recordings.values():
        if len(paths) > 1:
            others = ", ".join(str(path.relative_to(home)) for path in paths)
            raise InputError(
                f"{home} contains several derivatives of ABIDE ({others}); select one by pattern"
            )
    found = {
        name: [Recording(path) for path in paths]
        for name, paths in recordings.items()
        if name in sites and (site is None or sites[name].lower() == site.lower())
    }
    if not found:
        raise InputError(f"{home} contains no file of ABIDE site {site!r} that matches {pattern!r}")
    return found


def _file_id(path: Path) -> str:
    """Return ABIDE's identifier of a participant: the part before the name of the derivative."""
    found = re.match(r"(.+?_\d{7})(?:_|$)", stem(path))
    return found[1] if found else stem(path)
