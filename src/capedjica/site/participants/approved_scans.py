"""Record of an approval: the participants of a study and the state of their files.

The record stays at the site and is readable only by its owner. It is compared with the current files before
anything is spent on the study, and never afterwards: changes to a scan during a study must not be visible
from outside. A study reads only the participants and files of the record: a later participant was never
approved and must not displace another.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.data.layouts import recordings_among
from capedjica.data.participant_table import BadTableError, row_digest
from capedjica.data.scans import Person, Recording
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.atomic_files import write_private
from capedjica.tools.text import printable

SCHEMA: Final = 1
_UNREADABLE: Final = "unreadable"


class FileState(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A file: its size in bytes, its modification time (ns) and the SHA-256 of its content.

    In a table with a row per participant, only the participant's own ``row`` counts, and the hash is that of
    the row.
    """

    size: int
    mtime_ns: int
    sha256: str
    row: bool = False


Files = dict[str, FileState]


class ApprovedScans(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of a record.

    Attributes
    ----------
    when : str
        Time of the approval.
    people : dict
        The files of each participant, by paths relative to the folder of the scans. An enrolled participant
        who could not be found has none.
    """

    schema: int = SCHEMA
    when: str
    people: dict[str, Files]


def record_path(home: SiteHome, study: Study) -> Path:
    """Return the path of the record of a study, next to its copy."""
    return home.approved_path / f"{study.hash.hex()[:16]}.people"


def read_record(home: SiteHome, study: Study) -> ApprovedScans | None:
    """Return the record of a study's approval; None if it cannot be read."""
    return _read(record_path(home, study))


def approved_people(home: SiteHome, study: Study) -> tuple[Person, ...] | None:
    """Return the approved participants with the files they had then; None without a record.

    The folder of the scans is not searched, so its current content cannot interfere.
    """
    record = read_record(home, study)
    if record is None:
        return None
    return tuple(_approved(home, study, _name(name), files) for name, files in record.people.items())


def _approved(home: SiteHome, study: Study, name: str, files: Files) -> Person:
    paths = {home.data_path / _name(file): state.row for file, state in files.items()}
    rows = tuple(Recording(path, row=name) for path, is_row in paths.items() if is_row)
    scans = recordings_among([path for path, is_row in paths.items() if not is_row])
    covariates = rows[0] if rows and study.content.participant_columns else None
    return Person(name, rows if study.content.features.kind == "table" else scans, covariates)


def write_record(home: SiteHome, study: Study, record: ApprovedScans) -> None:
    """Write the record of a study's approval."""
    write_private(record_path(home, study), msgspec.json.encode(record))


def forget_person(home: SiteHome, name: str) -> None:
    """Remove a participant's files from all records; the participant stays approved, without files."""
    for file in home.approved_path.glob("*.people"):
        record = _read(file)
        if record is not None and record.people.get(_text(name)):
            people = record.people | {_text(name): {}}
            write_private(file, msgspec.json.encode(msgspec.structs.replace(record, people=people)))


def _read(file: Path) -> ApprovedScans | None:
    try:
        record = msgspec.json.decode(file.read_bytes(), type=ApprovedScans)
    except (OSError, msgspec.DecodeError):
        return None
    return record if record.schema == SCHEMA else None


def take_record(home: SiteHome, people: Iterable[Person], tick: Callable[[], None]) -> ApprovedScans:
    """Return a record of the current files; ``tick`` is called after each participant.

    A file whose name, size and modification time match an earlier approval is not read again.
    """
    known, taken = _known(home), {}
    for person in people:
        states = ((name, _state(name, file, known)) for name, file in _files(home, person))
        taken[_text(person.name)] = {name: state for name, state in states if state is not None}
        tick()
    return ApprovedScans(when=datetime.now(UTC).isoformat(timespec="seconds"), people=taken)


def differences(home: SiteHome, record: ApprovedScans, people: Iterable[Person]) -> list[str]:
    """Return sentences about what changed since the record was taken, for the site's own staff.

    A file is read only if its modification time changed but its size did not, or if it is a table with a row
    per participant.
    """
    now = {_text(person.name): person for person in people}
    new = [name for name in now if name not in record.people]
    gone = [name for name in record.people if name not in now]
    found = []
    if new or gone:
        found.append(
            f"the participants changed since the study was approved ({len(new)} new, {len(gone)} missing); "
            f"the first is {printable((new + gone)[0])}"
        )
    both = [name for name in now if name in record.people]
    changed = [name for name in both if not _is_as_it_was(home, now[name], record.people[name])]
    if changed:
        found.append(
            f"the data of {len(changed)} of {len(now)} participants changed since the study was approved; "
            f"the first is {printable(changed[0])}"
        )
    return found


def _files(home: SiteHome, person: Person) -> Iterator[tuple[str, Recording]]:
    """Yield every file that affects a participant's series, by its path in the folder of the scans.

    Each is yielded as a separate recording; only the file, or the participant's row in it, counts.
    """
    # defence: covariates-of-the-approval
    rows = () if person.covariates is None else (person.covariates,)
    for recording in (*person.recordings, *rows):
        for path in recording.sources:
            if path.exists():
                yield _text(os.path.relpath(path, home.data_path)), Recording(path, row=recording.row)


def _text(name: str) -> str:
    """Return a name as printable text, even if it is not valid UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _name(text: str) -> str:
    """Return the name that :func:`_text` encoded; only bytes that are not text were escaped."""
    plain = re.sub(rb"\\x([89a-f][0-9a-f])", lambda found: bytes.fromhex(found[1].decode()), text.encode())
    return os.fsdecode(plain)


_Known = dict[tuple[str, int, int], str]


def _known(home: SiteHome) -> _Known:
    """Return the file hashes of all records of the site."""
    records = filter(None, map(_read, home.approved_path.glob("*.people")))
    files = (item for record in records for files in record.people.values() for item in files.items())
    return {
        (name, state.size, state.mtime_ns): state.sha256
        for name, state in files
        if state.sha256 != _UNREADABLE and not state.row
    }


def _state(name: str, file: Recording, known: _Known) -> FileState | None:
    """Return the current state of a file; None if it no longer exists."""
    try:
        # Before it is read: if it changes meanwhile, the next check finds a different time.
        status = file.path.stat()
    except OSError:
        return None
    size, changed = status.st_size, status.st_mtime_ns
    if file.row is not None:
        return FileState(size, changed, _row_digest(file), row=True)
    return FileState(size, changed, known.get((name, size, changed)) or _digest(file.path))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return _UNREADABLE


def _row_digest(file: Recording) -> str:
    try:
        return row_digest(file)
    except BadTableError:
        return _UNREADABLE


def _is_as_it_was(home: SiteHome, person: Person, files: Files) -> bool:
    now = dict(_files(home, person))
    return now.keys() == files.keys() and all(_is_same(now[name], files[name]) for name in now)


def _is_same(file: Recording, before: FileState) -> bool:
    try:
        status = file.path.stat()
    except OSError:
        return False
    size, changed = status.st_size, status.st_mtime_ns
    if (file.row is not None) != before.row:
        return False
    if (size, changed) == (before.size, before.mtime_ns):
        return True
    # The row of another participant may have changed.
    if before.row:
        return _row_digest(file) == before.sha256
    return size == before.size and _digest(file.path) == before.sha256
