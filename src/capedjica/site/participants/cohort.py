"""Find, check and enrol the participants of a site, and open their scans for a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Final, cast

import msgspec

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN, longest_scan
from capedjica.data.covariates import covariate_problems, covariates_of, with_rows
from capedjica.data.features import FeatureTable, open_features
from capedjica.data.images import repetition_time
from capedjica.data.layouts import Found, check_folder, find_people, is_image
from capedjica.data.participant_table import PersonRows, read_person_table
from capedjica.data.participants import People
from capedjica.data.scans import Features, Person, Problem, Recording
from capedjica.data.timeseries import read_scan
from capedjica.errors import InputError
from capedjica.site.consent.consents import consenting, read_withdrawn, standing
from capedjica.site.home import DataTable, SiteHome
from capedjica.site.participants.approved_scans import approved_people
from capedjica.site.participants.enrolment import (
    Enrolment,
    LeftOut,
    enrolment_path,
    read_enrolment,
    write_enrolment,
)
from capedjica.study.study_file import Study
from capedjica.tools.arrays import Scan

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Tick = Callable[[], None]
# Without a study, images are checked within the MNI152 brain mask, in coarse voxels.
_PLAIN_IMAGES: Final = FeatureTable(kind="voxels", voxel_size=8.0)
# The fewest time points that any analysis needs.
_FEWEST_TIMEPOINTS: Final = 2
# Number of tables from which the usual number of columns is determined.
_FOR_THE_WIDTH: Final = 25
_WITHDREW: Final = "withdrew consent on"


@dataclass(frozen=True)
class Roll:
    """The cohort of a site.

    Attributes
    ----------
    kind : str
        Layout of the folder of the scans.
    people : tuple of Person
        The participants in order. One who is enrolled but cannot be found has no recordings.
    problems : tuple of Problem
        Problems found before any scan is opened.
    enrolment : Enrolment or None
        None if there is no enrolment and every participant found takes part.
    withdrawn : frozenset of str
        Names of enrolled participants who withdrew their consent and therefore have no recordings.
    """

    kind: str
    people: tuple[Person, ...]
    problems: tuple[Problem, ...]
    enrolment: Enrolment | None
    withdrawn: frozenset[str] = frozenset()

    @property
    def missing(self) -> list[str]:
        """Names of enrolled participants who cannot be found."""
        names = [person.name for person in self.people if not person.recordings]
        return [name for name in names if name not in self.withdrawn]

    @cached_property
    def found(self) -> list[Person]:
        """The participants who have recordings."""
        return [person for person in self.people if person.recordings]


def call_roll(home: SiteHome, study: Study | None = None) -> Roll:
    """Return the cohort: exactly the enrolled participants, or all that are found without an enrolment."""
    enrolment = read_enrolment(home)
    if enrolment is None:
        found = find(home, home.settings.data, study)
        return Roll(found.kind, found.people, found.problems, None)
    # The folder may have been moved, and participants selected by name may be missing.
    data = msgspec.structs.replace(enrolment.data, path=home.settings.data.path, participants=())
    found = find(home, data, study)
    present = {person.name: person for person in found.people}
    # defence: the-enrolled-stay-enrolled
    people = tuple(present.get(name, Person(name, ())) for name in enrolment.enrolled)
    names = set(enrolment.enrolled)
    problems = tuple(problem for problem in found.problems if problem.name in names)
    return Roll(found.kind, people, problems, enrolment, frozenset(read_withdrawn(home)) & names)


def find(
    home: SiteHome, data: DataTable, study: Study | None, withdrawn: Collection[str] | None = None
) -> Found:
    """Return the participants found who did not withdraw, in the study's space if it has one.

    ``withdrawn`` replaces the site's list, for callers that do not open the scans.
    """
    wanted = None if study is None else study.content.features.space
    if wanted is not None and data.space not in (None, wanted):
        raise InputError(f"site.toml: [data] space is {data.space!r}, but the study requires {wanted!r}")
    found = find_people(
        data.kind,
        home.data_path,
        pattern=data.pattern,
        task=data.task,
        space=data.space or wanted,
        participants=data.participants,
        abide_site=data.abide_site,
        # defence: the-withdrawn-are-not-found
        without=read_withdrawn(home) if withdrawn is None else withdrawn,
    )
    if study is None or not study.content.participant_columns:
        return found
    return replace(found, people=with_rows(found.people, home.data_path))


def open_people(home: SiteHome, study: Study) -> People:
    """Return the participants as a study reads them: those of the approval, with their approved files."""
    return consenting(home, _taking_part(home, study), study.features, read_withdrawn(home))


def _taking_part(home: SiteHome, study: Study) -> tuple[Person, ...]:
    """Return the approved participants; a site with auto_approve has no record and uses its cohort."""
    # defence: the-people-of-the-approval
    approved = None if home.settings.policy.auto_approve else approved_people(home, study)
    if approved is None:
        return call_roll(home, study).people
    check_folder(home.data_path)
    return approved


def look(
    home: SiteHome, people: list[Person], study: Study | None, tick: Tick = lambda: None
) -> list[Problem]:
    """Read every scan once and return all problems; without a study, only those fatal for any study."""
    if study is None:
        found = People(people, _plain_features(people)).check(_FEWEST_TIMEPOINTS, tick)
        return [problem for problem in found if problem.fatal]
    readable = consenting(home, people, study.features, standing(home))
    length = study.content.features.scan_length
    longest = LONGEST_SCAN if length is None else longest_scan(length)

    def notes(series: Scan) -> Iterator[tuple[str, str]]:
        for step in study.steps:
            yield from step.table.notes(series, step.setting)

    found = readable.check(study.fewest_timepoints, tick, longest, notes)
    return found + list(_covariate_problems(readable.people, study, home.settings.name))


def _covariate_problems(people: Sequence[Person], study: Study, site: str) -> Iterator[Problem]:
    """Yield the problems of the covariates, of each participant and of the whole site."""
    for table in study.content.analyses:
        if not table.participant_columns:
            continue
        motion, known = bool(getattr(table, "motion", False)), []
        for person in people:
            yield from (
                replace(problem, subject=person.name)
                for problem in covariate_problems(person, table.participant_columns, motion)
            )
            if person.covariates is None or not (own := covariates_of(person, motion)):
                continue
            known.append(own)
            for found, expected, fatal in table.covariate_notes(own):
                words = f"{found} ({person.name})"
                yield Problem(person.covariates.path, words, expected, fatal, person.name, alike=expected)
        table_path = next((one.covariates.path for one in people if one.covariates is not None), None)
        if table_path is not None:
            for found, expected, fatal in table.site_notes(known, site):
                yield Problem(table_path, found, expected, fatal)


def _plain_features(people: list[Person]) -> Features:
    """Return features that fit the recordings, for use without a study."""
    recordings = [recording for person in people for recording in person.recordings]
    if any(recording.row is not None for recording in recordings):
        return PersonRows(())
    paths = [recording.path for recording in recordings]
    if any(map(is_image, paths)):
        return open_features(_PLAIN_IMAGES, Path(), None)
    # The usual width rather than that of the first file, which may be an outlier.
    widths = list(_widths(paths).values())
    return open_features(FeatureTable(), Path(), mode(widths) if widths else 1)


def wrong_width(people: Iterable[Person], features: FeatureTable) -> str | None:
    """Return in words that the tables have another number of columns than a study; None if one of them fits.

    Only the first tables are read, so that this is known before every scan is checked.
    """
    expected = features.n_features
    if features.kind != "columns" or expected is None:
        return None
    recordings = (recording for person in people for recording in person.recordings)
    paths = [one.path for one in recordings if one.row is None and not is_image(one.path)]
    found = _widths(paths)
    if not found or expected in found.values():
        return None
    first = next(iter(found))
    return f"its tables have {found[first]} columns ({first}); expected {expected}, the features of the study"


def _widths(paths: Sequence[Path]) -> dict[Path, int]:
    """Return the number of columns of each of the first tables; unreadable tables are skipped."""
    found = ((path, _n_columns(path)) for path in paths[:_FOR_THE_WIDTH])
    return {path: width for path, width in found if width is not None}


def _n_columns(path: Path) -> int | None:
    try:
        return int(read_scan(path).shape[1]) or None
    except Exception:
        return None


@dataclass(frozen=True)
class Measures:
    """Measures of a recording: time points, repetition time in seconds and grid in words."""

    n_timepoints: int
    repetition_time: float | None
    grid: str


def measure(recording: Recording) -> Measures:
    """Measure a recording; raise any exception if it cannot be read."""
    if recording.row is not None:
        return Measures(1, None, f"{read_person_table(recording.path).width} columns")
    if not is_image(recording.path):
        length, width = read_scan(recording.path).shape
        return Measures(length, None, f"{width} columns")
    import nibabel

    image = cast("Nifti1Image", nibabel.load(recording.path))
    shape, zooms = image.shape, image.header.get_zooms()  # type: ignore[no-untyped-call]
    words = " x ".join(map(str, shape[:3])), " x ".join(f"{side:.3g}" for side in zooms[:3])
    return Measures(int(shape[3]), repetition_time(recording, image), f"{words[0]} voxels of {words[1]} mm")


def enrol(
    home: SiteHome,
    data: DataTable,
    study: Study | None,
    *,
    again: bool = False,
    tick: Tick = lambda: None,
) -> Enrolment:
    """Check every participant that ``data`` selects, exclude the unusable ones and fix the list.

    Withdrawn participants are excluded without reading their data. An earlier list is replaced only if
    ``again``.
    """
    if enrolment_path(home).exists() and not again:
        raise InputError(
            f"site {home.settings.name} already has an enrolment ({enrolment_path(home)}); replace it with "
            "--again"
        )
    found = find(home, data, study)
    problems = list(dict.fromkeys([*found.problems, *look(home, list(found.people), study, tick)]))
    reasons: dict[str, list[str]] = {}
    for problem in problems:
        if problem.fatal:
            reasons.setdefault(problem.name, []).append(str(problem))
    enrolled = [person.name for person in found.people if person.name not in reasons]
    if not enrolled:
        first = next(iter(reasons.values()), ["no participant was found"])[0]
        raise InputError(
            f"no participant of site {home.settings.name} can be enrolled; the first reason: {first}"
        )
    names = [person.name for person in found.people if person.name in reasons]
    left_out = [LeftOut(name, tuple(reasons[name])) for name in names]
    left_out += [
        LeftOut(name, (f"{name}: {_WITHDREW} {when}",)) for name, when in read_withdrawn(home).items()
    ]
    title = None if study is None else study.content.title
    enrolment = Enrolment.now(data, enrolled, left_out, title)
    write_enrolment(home, enrolment)
    home.write_card(home.identity(), len(enrolled))
    return enrolment
