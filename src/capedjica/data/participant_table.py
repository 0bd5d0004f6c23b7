"""One table with a row per person, as BIDS keeps ``participants.tsv``: who they are, and columns of numbers.

The file is text in UTF-8, with tabs (``.tsv``) or commas (``.csv``) between cells; its first row names the
columns. A row belongs to the person of its ``participant_id``, with or without ``sub-``. Somebody with two
rows has none that could be used: privacy is that of people, and who counted twice would be protected half as
well.

A row is a line, and is read by itself: what one person's cells hold, be it a quotation mark that is never
closed or a byte that is no text, changes nothing about the row of another. So no cell has several lines. How
lines end is seen at the first one, which is nobody's.

The table is kept in memory until its file has another size or time of change: to read it for each person anew
would take time in the square of their number.
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
# Names of people are also those of folders; beyond these, a table is none of people.
_LONGEST_NAME: Final = 200
_LARGEST_FILE: Final = 1 << 30
_LONGEST_LINE: Final = 1 << 24
_MOST_NAMED: Final = 8
_UNNAMED: Final = ("", "n/a")


class BadTableError(InputError):
    """A file that is no table of people."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, repr=False)
class PersonTable:
    """A table as it was read.

    Attributes
    ----------
    columns : dict
        The places of every column, by name: more than one if several have it.
    width : int
        How many cells a row has.
    rows : dict
        For each person the line in which each of their rows is, and its text.
    nameless : tuple of int
        Lines of rows of nobody who could be named.
    """

    columns: Mapping[str, Sequence[int]]
    width: int
    rows: Mapping[str, Sequence[tuple[int, str]]]
    nameless: tuple[int, ...]
    delimiter: str

    def cells(self, person: str) -> list[list[str] | _BadRow]:
        """Return the cells of each row of a person, or why they cannot be had."""
        return [_cells(text, self.delimiter) for _, text in self.rows.get(person, ())]

    def repeated(self, person: str) -> str:
        """Return in words where the rows of a person are who has several; nothing for others."""
        lines = [str(line) for line, _ in self.rows.get(person, ())]
        return f"{person} in {len(lines)} rows (lines {_listed(lines)})" if len(lines) > 1 else ""


def person_of(participant: str) -> str:
    """Return the name of the person whom a ``participant_id`` means: ``01`` is ``sub-01``."""
    return f"sub-{participant.strip().removeprefix('sub-')}"


def row_digest(recording: Recording) -> str:
    """Return the SHA-256 of somebody's row and of the names of its columns; refuse a table that is none."""
    assert recording.row is not None
    table = read_person_table(recording.path)
    rows = [
        repr(row.text) if isinstance(row, _BadRow) else row for row in table.cells(person_of(recording.row))
    ]
    content = msgspec.json.encode([table.columns, rows])
    return hashlib.sha256(content).hexdigest()


def is_person_table(path: Path) -> bool:
    """Tell whether a file begins as a table of people does."""
    try:
        if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
            return False
        return PARTICIPANT in _header(path, _lines(path))
    except (OSError, BadTableError):
        return False


# Reading --------------------------------------------------------------------------------------------------

# The latest version of each file by size and time of change, or why it cannot be used: one that cannot is not
# read again for everybody.
_kept: dict[Path, tuple[tuple[int, int], PersonTable | Problem]] = {}
_one_at_a_time = Lock()


def read_person_table(path: Path) -> PersonTable:
    """Return a table of people, read anew only if its file changed; refuse another file."""
    with _one_at_a_time:
        try:
            # Before it is read: if it changes meanwhile, the next look finds another time.
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
    """Return the table of a file, or why there is none."""
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
        return Problem(path, f"{status.st_size:,} bytes", f"a file of at most {_LARGEST_FILE:,}")
    try:
        return _read(path)
    except BadTableError as error:
        return error.problem
    except OSError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(path, f"cannot be read ({error.strerror})", "a file that can be read")


def _read(path: Path) -> PersonTable:
    lines, delimiter = _lines(path), _delimiter(path)
    header = _header(path, lines)
    columns, rows, nameless = defaultdict(list), defaultdict(list), []
    for place, name in enumerate(header):
        columns[name].append(place)
    if len(columns[PARTICIPANT]) != 1:
        found = f"{len(columns[PARTICIPANT]) or 'no'} columns {PARTICIPANT} among {_named(header)}"
        raise BadTableError(Problem(path, found, f"one column {PARTICIPANT}, and a row per person"))
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
    """Return the cells of the first line that is not blank."""
    delimiter = _delimiter(path)
    text = next((text for _, text in lines if any(map(str.strip, _loosely(text, delimiter)))), None)
    if text is None:
        raise BadTableError(Problem(path, "an empty file", "a row of names, and a row per person"))
    cells = _cells(text, delimiter)
    if isinstance(cells, _BadRow):
        raise BadTableError(Problem(path, f"{cells.why} in its first row", "the names of the columns"))
    return [cell.strip() for cell in cells]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line, of one that no table has the beginning."""
    # What is no text is kept as it is, and found where the line is read.
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
    """A row without cells: why, and its text."""

    why: str
    text: str


def _cells(text: str, delimiter: str) -> list[str] | _BadRow:
    """Return the cells of a line, or why there are none."""
    if len(text) == _LONGEST_LINE:
        return _BadRow("too long a line", text)
    try:
        text.encode()
        # Strict: a quotation mark that is never closed would swallow the cells that follow.
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except UnicodeEncodeError:
        return _BadRow("what is not text in UTF-8", text)
    except csv.Error as error:
        return _BadRow(f"cells that cannot be told apart ({error})", text)


def _loosely(text: str, delimiter: str) -> list[str]:
    """Return what may be the cells of a line, to know whose it is."""
    try:
        return next(csv.reader([text], delimiter=delimiter))
    except csv.Error:
        # Longer than a cell may be, or with the end of a line inside.
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


# What is wrong --------------------------------------------------------------------------------------------


def table_problems(path: Path, table: PersonTable) -> Iterator[Problem]:
    """Say who has several rows, and which rows are nobody's."""
    for person in sorted(table.rows):
        if found := table.repeated(person):
            yield Problem(path, found, _ONE_ROW, subject=person, alike=_ONE_ROW)
    if table.nameless:
        found = f"rows without a {PARTICIPANT} that can be a name (lines {_listed(table.nameless)})"
        yield Problem(path, found, "the name of somebody; these rows are not used", fatal=False)


_ONE_ROW: Final = "one row per person"


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:_MOST_NAMED])) + ", ..." * (len(items) > _MOST_NAMED)


def _named(columns: Sequence[str]) -> str:
    return _listed([quoted(name) for name in columns[: _MOST_NAMED + 1]])


def row_cells(recording: Recording) -> tuple[dict[str, str], Problem | None]:
    """Return the cells of somebody's only row by the names of columns that there are once.

    Without such a row there are none, and it is said why; a table that is none is refused.
    """
    assert recording.row is not None
    table = read_person_table(recording.path)
    row, problem = _only_row(recording.path, table, person_of(recording.row))
    named = {name: places[0] for name, places in table.columns.items() if len(places) == 1}
    return {name: row[place].strip() for name, place in named.items()} if row else {}, problem


def _only_row(path: Path, table: PersonTable, person: str) -> tuple[list[str], Problem | None]:
    """Return the cells of a person's only row, or why there are none."""
    rows = table.cells(person)
    if len(rows) != 1:
        found = table.repeated(person) or f"no row of {person}"
        return [], Problem(path, found, _ONE_ROW, alike=_ONE_ROW)
    (row,), ((line, _),) = rows, table.rows[person]
    if isinstance(row, _BadRow):
        found = f"{row.why} in line {line} ({person})"
        return [], Problem(path, found, "text with a cell per column", alike=row.why)
    if len(row) != table.width:
        found = f"{len(row)} cells in line {line} ({person})"
        return [], Problem(path, found, f"{table.width}, one for each column", alike="cells in a line")
    return row, None


def quoted_columns(columns: Sequence[str]) -> str:
    """Return the names of columns in words, of many the first."""
    return _named(columns)


# Features -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PersonRows:
    """Named columns of a table: the numbers of one person are one row.

    Attributes
    ----------
    columns : tuple of str
        Their names, in order.
    """

    columns: tuple[str, ...]

    @property
    def n_features(self) -> int:
        """D, how many columns there are."""
        return len(self.columns)

    @property
    def basis(self) -> None:
        """Columns have no places, so nothing is known to be smooth."""

    @property
    def key(self) -> None:
        """A row is read as quickly as what would be kept of it."""

    def series(self, recording: Recording) -> Scan:
        """Return (1, features), the person's row; raise whatever comes when it cannot be used."""
        values, found = self._look(recording)
        if found:
            raise ValueError("a row that cannot be used")
        return np.array([values], dtype=np.float64)

    def problems(self, recording: Recording) -> list[Problem]:
        """Return why a person's row cannot be used."""
        try:
            return self._look(recording)[1]
        except BadTableError as error:
            return [error.problem]

    def layout(self, recording: Recording) -> str:
        """Return nothing: columns are not on a grid."""
        return ""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return None: columns have no places."""
        return None

    def _look(self, recording: Recording) -> tuple[list[float], list[Problem]]:
        """Return a person's numbers and what is wrong with them."""
        path = recording.path
        if recording.row is None:
            return [], [Problem(path, "a scan", "a row of a table of people, since the study analyses these")]
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
                problems.append(Problem(path, found, "each column that the study analyses, once"))
            elif (value := _number(row[places[0]])) is None:
                found = f"{quoted(row[places[0]])} in line {line} ({person}), column {quoted(column)}"
                problems.append(Problem(path, found, "a finite number", alike=f"column {column}"))
            else:
                values.append(value)
        return values, problems


def _number(cell: str) -> float | None:
    """Return the finite number that a cell holds, None where it holds none."""
    value = float(cell) if is_number(cell) else math.nan
    return value if math.isfinite(value) else None
