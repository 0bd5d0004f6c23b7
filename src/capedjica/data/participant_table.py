"""Read a table with a row per participant, such as the ``participants.tsv`` of BIDS.

The file is UTF-8 text, with tabs (``.tsv``) or commas (``.csv``) between cells; its first row contains the
column names. A row belongs to the participant of its ``participant_id``, with or without ``sub-``. If a
participant has two rows, neither is used: the unit of privacy is the participant, and one who counted twice
would have half the protection.

A row is one line, and is parsed independently: nothing in the cells of one participant, such as an unclosed
quotation mark or a byte that is not text, affects the row of another. Cells therefore cannot span several
lines. The line ending is determined from the first line, which belongs to no participant.

The table is cached in memory until the size or modification time of its file changes: reading it again for
each participant would take quadratic time.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from capedjica.data.scans import Problem, Recording
from capedjica.data.timeseries import is_number, quoted
from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray, Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

PARTICIPANT: Final = "participant_id"
TABLE_SUFFIXES: Final = (".tsv", ".csv")
# Participant names are also used as folder names; with a longer name, a table is not a participant table.
_LONGEST_NAME: Final = 200
_LARGEST_FILE: Final = 1 << 30
_LONGEST_LINE: Final = 1 << 24
_MOST_NAMED: Final = 8
_UNNAMED: Final = ("", "n/a")
_SEPARATED: Final = {"\t": "tabs between columns", ",": "commas between columns"}


class BadTableError(InputError):
    """Raised for a file that is not a valid participant table."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, repr=False)
class PersonTable:
    """Contents of a participant table.

    Attributes
    ----------
    columns : dict
        Positions of every column by name; more than one if a name is repeated.
    width : int
        Number of cells in a row.
    rows : dict
        For each participant, the line number and the text of each row.
    nameless : tuple of int
        Line numbers of rows without a valid participant name.
    """

    columns: Mapping[str, Sequence[int]]
    width: int
    rows: Mapping[str, Sequence[tuple[int, str]]]
    nameless: tuple[int, ...]
    delimiter: str

    def cells(self, person: str) -> list[list[str] | _BadRow]:
        """Return the cells of each row of a participant, or the reason why they cannot be parsed."""
        return [_cells(text, self.delimiter) for _, text in self.rows.get(person, ())]

    def repeated(self, person: str) -> str:
        """Return a description of repeated rows of a participant; empty unless there are several."""
        lines = [str(line) for line, _ in self.rows.get(person, ())]
        return f"{person} in {len(lines)} rows (lines {_listed(lines)})" if len(lines) > 1 else ""


def person_of(participant: str) -> str:
    """Return the participant name for a ``participant_id``: ``01`` is ``sub-01``."""
    return f"sub-{participant.strip().removeprefix('sub-')}"


def row_digest(recording: Recording) -> str:
    """Return the SHA-256 of a participant's row and its column names; reject an invalid table."""
    assert recording.row is not None
    table = read_person_table(recording.path)
    rows = [
        repr(row.text) if isinstance(row, _BadRow) else row for row in table.cells(person_of(recording.row))
    ]
    content = msgspec.json.encode([table.columns, rows])
    return hashlib.sha256(content).hexdigest()


def is_person_table(path: Path) -> bool:
    """Return whether a file begins like a participant table."""
    try:
        if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
            return False
        return PARTICIPANT in _header(path, _lines(path))
    except (OSError, BadTableError):
        return False


# Reading --------------------------------------------------------------------------------------------------

# Latest version of each file by size and modification time, or its problem: an invalid file is not read again
# for every participant.
_kept: dict[Path, tuple[tuple[int, int], PersonTable | Problem]] = {}
_one_at_a_time = Lock()


def read_person_table(path: Path) -> PersonTable:
    """Return a participant table, reading it again only if its file changed; reject an invalid file."""
    with _one_at_a_time:
        try:
            # Taken before reading: if the file changes meanwhile, the next call finds a different time.
            status = path.stat()
        except OSError as error:
            raise BadTableError(_unreadable(path, error)) from None
        version = (status.st_size, status.st_mtime_ns)
        known = _kept.get(path)
        if known is None or known[0] != version:
            known = _kept[path] = (version, _outcome(path, status))
    if isinstance(known[1], Problem):
        raise BadTableError(known[1])
    return known[1]


def _outcome(path: Path, status: os.stat_result) -> PersonTable | Problem:
    """Return the table of a file, or the reason why it is invalid."""
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
        return Problem(path, f"{status.st_size:,} bytes", f"a file of at most {_LARGEST_FILE:,}")
    try:
        return _read(path)
    except BadTableError as error:
        return error.problem
    except OSError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(path, f"cannot be read ({error.strerror})", "a readable file")


def _read(path: Path) -> PersonTable:
    lines, delimiter = _lines(path), _delimiter(path)
    header = _header(path, lines)
    columns, rows, nameless = defaultdict(list), defaultdict(list), []
    for place, name in enumerate(header):
        columns[name].append(place)
    if len(columns[PARTICIPANT]) != 1:
        found = f"{len(columns[PARTICIPANT]) or 'no'} columns {PARTICIPANT} among {_named(header)}"
        expected = f"one column {PARTICIPANT}, {_SEPARATED[delimiter]}, and a row per participant"
        raise BadTableError(Problem(path, found, expected))
    (own,) = columns[PARTICIPANT]
    for line, text in lines:
        cells = _loosely(text, delimiter)
        participant = cells[own].strip() if own < len(cells) else ""
        if _is_name(participant):
            rows[person_of(participant)].append((line, text))
        elif any(map(str.strip, cells)):
            nameless.append(line)
    return PersonTable(dict(columns), len(header), dict(rows), tuple(nameless), delimiter)


def _header(path: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    """Return the cells of the first non-blank line."""
    delimiter = _delimiter(path)
    text = next((text for _, text in lines if any(map(str.strip, _loosely(text, delimiter)))), None)
    if text is None:
        raise BadTableError(Problem(path, "an empty file", "column names, and a row per participant"))
    cells = _cells(text, delimiter)
    if isinstance(cells, _BadRow):
        raise BadTableError(Problem(path, f"{cells.why} in its first row", "the column names"))
    return [cell.strip() for cell in cells]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line; an overlong line is truncated."""
    # Bytes that are not text are preserved, and detected when the line is parsed.
    # defence: a-line-by-itself
    opened = partial(path.open, encoding="utf-8-sig", errors="surrogateescape")
    with opened(newline="") as file:
        end = "\r" if file.readline(_LONGEST_LINE).endswith("\r") else "\n"
    with opened(newline=end) as file:
        for number in count(1):
            text = part = file.readline(_LONGEST_LINE)
            if not text:
                return
            while len(part) == _LONGEST_LINE and not part.endswith(end):
                part = file.readline(_LONGEST_LINE)
            yield number, text


@dataclass(frozen=True, repr=False)
class _BadRow:
    """A row that cannot be parsed: the reason, and its text."""

    why: str
    text: str


def _cells(text: str, delimiter: str) -> list[str] | _BadRow:
    """Return the cells of a line, or the reason why it cannot be parsed."""
    if len(text) == _LONGEST_LINE:
        return _BadRow("an overlong line", text)
    try:
        text.encode()
        # Strict: otherwise an unclosed quotation mark would absorb the following cells.
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except UnicodeEncodeError:
        return _BadRow("bytes that are not UTF-8 text", text)
    except csv.Error as error:
        return _BadRow(f"malformed cells ({error})", text)


def _loosely(text: str, delimiter: str) -> list[str]:
    """Return the probable cells of a malformed line, to identify its participant."""
    try:
        return next(csv.reader([text], delimiter=delimiter))
    except csv.Error:
        # A cell is overlong or contains a line ending.
        plain = re.sub(r"[\r\n]", "\0", text.strip("\r\n")[: csv.field_size_limit()])
        return next(csv.reader([plain], delimiter=delimiter))


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _is_name(participant: str) -> bool:
    return (
        participant.lower() not in _UNNAMED
        and len(participant) <= _LONGEST_NAME
        and participant.isprintable()
        and not {"/", "\\", '"'} & set(participant)
    )


# Problems -------------------------------------------------------------------------------------------------


def table_problems(path: Path, table: PersonTable) -> Iterator[Problem]:
    """Yield problems with repeated participants and with rows that have no participant name."""
    for person in sorted(table.rows):
        if found := table.repeated(person):
            yield Problem(path, found, _ONE_ROW, subject=person, alike=_ONE_ROW)
    if table.nameless:
        found = f"rows without a valid {PARTICIPANT} (lines {_listed(table.nameless)})"
        yield Problem(path, found, "a participant name; these rows are not used", fatal=False)


_ONE_ROW: Final = "one row per participant"


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:_MOST_NAMED])) + ", ..." * (len(items) > _MOST_NAMED)


def _named(columns: Sequence[str]) -> str:
    return _listed([quoted(name) for name in columns[: _MOST_NAMED + 1]])


def row_cells(recording: Recording) -> tuple[dict[str, str], Problem | None]:
    """Return the cells of a participant's only row, by the names of columns that occur once.

    Without such a row, return no cells and the reason; an invalid table is rejected.
    """
    assert recording.row is not None
    table = read_person_table(recording.path)
    row, problem = _only_row(recording.path, table, person_of(recording.row))
    named = {name: places[0] for name, places in table.columns.items() if len(places) == 1}
    return {name: row[place].strip() for name, place in named.items()} if row else {}, problem


def _only_row(path: Path, table: PersonTable, person: str) -> tuple[list[str], Problem | None]:
    """Return the cells of a participant's only row, or the reason why there is none."""
    rows = table.cells(person)
    if len(rows) != 1:
        found = table.repeated(person) or f"no row of {person}"
        return [], Problem(path, found, _ONE_ROW, alike=_ONE_ROW)
    (row,), ((line, _),) = rows, table.rows[person]
    if isinstance(row, _BadRow):
        found = f"{row.why} in line {line} ({person})"
        return [], Problem(path, found, "text with one cell per column", alike=row.why)
    if len(row) != table.width:
        found = f"{len(row)} cells in line {line} ({person})"
        return [], Problem(path, found, f"{table.width}, one for each column", alike="cells in a line")
    return row, None


def quoted_columns(columns: Sequence[str]) -> str:
    """Return column names as text; of many, only the first."""
    return _named(columns)


# Features -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PersonRows:
    """Selected columns of a participant table; the values of one participant form one row.

    Attributes
    ----------
    columns : tuple of str
        Column names, in order.
    """

    columns: tuple[str, ...]

    @property
    def n_features(self) -> int:
        """Number of features D, the number of columns."""
        return len(self.columns)

    @property
    def basis(self) -> None:
        """None: columns have no spatial positions, so there is no smooth basis."""

    @property
    def key(self) -> None:
        """None: caching a row would not be faster than reading it."""

    def series(self, recording: Recording) -> Scan:
        """Return the participant's row, (1, features); any exception means that it cannot be used."""
        values, found = self._look(recording)
        if found:
            raise ValueError("unusable row")
        return np.array([values], dtype=np.float64)

    def problems(self, recording: Recording) -> list[Problem]:
        """Return the reasons why a participant's row cannot be used."""
        try:
            return self._look(recording)[1]
        except BadTableError as error:
            return [error.problem]

    def layout(self, recording: Recording) -> str:
        """Return an empty string: columns are not on a grid."""
        return ""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return None: columns have no spatial positions."""
        return None

    def _look(self, recording: Recording) -> tuple[list[float], list[Problem]]:
        """Return a participant's numbers and their problems."""
        path = recording.path
        if recording.row is None:
            return [], [Problem(path, "a scan", "a row of a participant table, as the study requires")]
        table, person = read_person_table(path), person_of(recording.row)
        row, problem = _only_row(path, table, person)
        if problem is not None:
            return [], [problem]
        ((line, _),) = table.rows[person]
        values, problems = [], []
        for column in self.columns:
            places = table.columns.get(column, ())
            if len(places) != 1:
                found = f"{len(places) or 'no'} columns {quoted(column)} among {_named([*table.columns])}"
                problems.append(Problem(path, found, "each column that the study analyses, exactly once"))
            elif (value := _number(row[places[0]])) is None:
                found = f"{quoted(row[places[0]])} in line {line} ({person}), column {quoted(column)}"
                problems.append(Problem(path, found, "a finite number", alike=f"column {column}"))
            else:
                values.append(value)
        return values, problems


def _number(cell: str) -> float | None:
    """Return the finite number in a cell, or None if there is none."""
    value = float(cell) if is_number(cell) else math.nan
    return value if math.isfinite(value) else None
