"""Covariates of a participant: the row of ``participants.tsv``, and head motion in the scanner.

A row is read as in :mod:`capedjica.data.participant_table`, and is passed along with the participant. A
participant without a usable row has no covariates; only the site is informed, before the run starts.
Motion is the mean framewise displacement (mm) over all volumes of all recordings, from fMRIPrep's tables of
confounds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from capedjica.data.participant_table import BadTableError, quoted_columns, read_person_table, row_cells
from capedjica.data.scans import Person, Problem, Recording
from capedjica.data.timeseries import is_number

PARTICIPANTS: Final = "participants.tsv"
DISPLACEMENT: Final = "framewise_displacement"
MOTION: Final = "mean_fd"
"""Name of the mean framewise displacement among the covariates."""

Covariates = Mapping[str, str | float]


def with_rows(people: Iterable[Person], folder: Path) -> tuple[Person, ...]:
    """Return participants with their rows, from the table that holds their data or ``participants.tsv``."""
    return tuple(replace(person, covariates=_row(person, folder)) for person in people)


def _row(person: Person, folder: Path) -> Recording:
    own = next((recording for recording in person.recordings if recording.row is not None), None)
    return own or Recording(folder / PARTICIPANTS, row=person.name)


def covariates_of(person: Person, motion: bool = False) -> Covariates:
    """Return the cells of a participant's row by column name, and motion if ``motion``.

    This never fails: unavailable covariates are omitted.
    """
    try:
        cells: dict[str, str | float] = {}
        if person.covariates is not None:
            cells.update(row_cells(person.covariates)[0])
        displacement = mean_displacement(person) if motion else None
        return cells if displacement is None else cells | {MOTION: displacement}
    except Exception:
        # The reason for the failure may depend on data, and the caller might forward an exception message.
        # defence: covariates-fail-alone
        return {}


def covariate_problems(person: Person, columns: Iterable[str], motion: bool = False) -> Iterator[Problem]:
    """Yield the reasons why a participant's covariates are unavailable, for the site to read before a run."""
    if motion and mean_displacement(person) is None:
        where = next((one.confounds or one.path for one in person.recordings), Path(person.name))
        expected = f"a table of confounds with {DISPLACEMENT}; without it the participant counts as zero"
        yield Problem(where, f"no motion of {person.name}", expected, fatal=False, alike=expected)
    if person.covariates is None:
        return
    path = person.covariates.path
    try:
        table, (cells, problem) = read_person_table(path), row_cells(person.covariates)
    except BadTableError as error:
        yield replace(error.problem, subject=person.name, alike=str(error.problem))
        return
    for column in columns:
        if len(table.columns.get(column, ())) != 1:
            found = f"{len(table.columns.get(column, ())) or 'no'} columns {quoted_columns([column])} among "
            found += quoted_columns([*table.columns])
            yield Problem(path, found, "each covariate of the study, as one column", alike=found)
    if problem is not None and not cells:
        yield replace(problem, fatal=False, expected=f"{problem.expected}; without it they count as zero")


def mean_displacement(person: Person) -> float | None:
    """Return the mean framewise displacement (mm), or None if no table of confounds contains it."""
    values = [
        value
        for recording in person.recordings
        if recording.confounds is not None
        for value in _displacements(recording.confounds)
    ]
    return math.fsum(values) / len(values) if values else None


def _displacements(path: Path) -> list[float]:
    """Return the displacement before each volume except the first, which has none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            cells = [row.get(DISPLACEMENT) or "" for row in csv.DictReader(file, delimiter="\t")]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    numbers = [float(cell) for cell in cells if is_number(cell)]
    return [number for number in numbers if math.isfinite(number) and number >= 0]
