"""Withdrawal of a participant's consent, after which no study reads their scans.

Past releases stay released; they reveal at most (epsilon, delta) about any participant. The participant still
counts in approved studies: the number of participants is public and fixed, and each of them may contribute
any vector within the clip, including zero. Later releases therefore cost no more, and no message reveals the
withdrawal: the ledger notes it, but its length is hidden (:mod:`capedjica.mechanisms.site.head_seal`).
"""

from __future__ import annotations

import difflib
import math
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from capedjica.data.cache import SeriesCache
from capedjica.errors import CapedjicaError, InputError
from capedjica.privacy.ledger import Spent
from capedjica.privacy.wording import round_up
from capedjica.site.approval.admission import approved
from capedjica.site.consent.consents import (
    add_withdrawn,
    lock,
    note_withdrawn,
    read_list,
    read_withdrawn,
    standing,
)
from capedjica.site.home import SiteHome
from capedjica.site.idle import is_resting
from capedjica.site.participants.approved_scans import forget_person
from capedjica.site.participants.cohort import find
from capedjica.site.participants.enrolment import Enrolment, read_enrolment, write_enrolment
from capedjica.site.results.individual import REPORT, person_label
from capedjica.study.study_file import Study
from capedjica.tools.text import counted, printable


@dataclass(frozen=True)
class Withdrawn:
    """The effects of a withdrawal.

    Attributes
    ----------
    name : str
        Name of the participant.
    since : str
        Time of the first withdrawal.
    series, results : int
        Number of extracted series removed (of all participants) and of result folders (of this participant).
    studies : tuple of str
        Consequences for each approved study, in sentences.
    """

    name: str
    since: str
    series: int
    results: int
    studies: tuple[str, ...]


def withdraw(home: SiteHome, person: str) -> Withdrawn:
    """Withdraw a participant's consent and remove everything computed from their scans."""
    with lock(home):
        return _withdraw(home, person)


def _withdraw(home: SiteHome, person: str) -> Withdrawn:
    enrolment = read_enrolment(home)
    name = _name(home, enrolment, person)
    if enrolment is None and name not in standing(home):
        # Enrol all participants found, so that the number does not change when scans are removed.
        enrolment = Enrolment.now(home.settings.data, _found(home), [], None)
        write_enrolment(home, enrolment)
    # First, so that it is in force even if a later step fails.
    since = add_withdrawn(home, name)
    try:
        # defence: series-of-the-withdrawn
        series = SeriesCache(home.cache_path).purge()
        # defence: results-of-the-withdrawn
        results = _remove_results(home, name)
        forget_person(home, name)
    finally:
        note_withdrawn(home, name)
    enrolled = enrolment is not None and name in enrolment.enrolled
    studies = tuple(_studies(home)) if enrolled else ()
    return Withdrawn(name, since, series, results, studies)


def explain(home: SiteHome, done: Withdrawn) -> Iterator[str]:
    """Yield sentences about the effects of a withdrawal and its limits."""
    yield f"{printable(done.name)} withdrew on {done.since}. From now on, no study reads their data."
    yield (
        f"Removed: {done.series} extracted series (of all participants; they are extracted again when "
        f"needed) and this participant's individual results of {counted(done.results, 'study', 'studies')}. "
        f"Remove the data themselves from {home.data_path} and from backups."
    )
    totals = home.totals()
    if totals is not None and totals.overall.n_releases:
        yield _released_words(totals.overall)
    if not is_resting(home):
        yield (
            "A study is running here: a release that is being computed now may be the last to include this "
            "participant."
        )
    for words in done.studies:
        yield f"{words}."
    try:
        read_withdrawn(home)
    except CapedjicaError as error:
        yield f"{error}."


def _released_words(spent: Spent) -> str:
    bound = f"at most epsilon {round_up(spent.subject_epsilon)} at delta {spent.delta:g}"
    limit = "not limited" if math.isinf(spent.epsilon) else bound
    return (
        f"Past releases ({spent.n_releases} messages) cannot be recalled, and results are not recomputed. "
        f"What they reveal about any participant of this site, including this one, is {limit}. Later "
        "releases will not include this participant."
    )


def known_as(home: SiteHome, person: str) -> str:
    """Return the name of a participant at this site; refuse an unknown one."""
    return _name(home, read_enrolment(home), person)


def _name(home: SiteHome, enrolment: Enrolment | None, person: str) -> str:
    """Return the name of a participant, given with or without ``sub-``; refuse an unknown one."""
    known = {one.name for one in read_list(home)}
    if enrolment is not None:
        known |= {*enrolment.enrolled, *(one.name for one in enrolment.left_out)}
    with suppress(InputError):
        known |= set(_found(home))
    plain = person.removeprefix("sub-")
    matching = [person] if person in known else [n for n in known if n.removeprefix("sub-") == plain]
    if not matching:
        near = difflib.get_close_matches(person, known, n=1)
        guess = f"did you mean {printable(near[0])}?" if near else "expected a name as in the scans or rows"
        raise InputError(f"site {home.settings.name} has no participant {printable(person)!r}; {guess}")
    return matching[0]


def _found(home: SiteHome) -> list[str]:
    """Return the names of the participants found, in the space of the study approved last."""
    latest = next((Study(content) for content in approved(home)), None)
    # Only file names are read: a withdrawal must be possible even if the list is incomplete.
    found = find(home, home.settings.data, latest, standing(home))
    return [person.name for person in found.people]


def _remove_results(home: SiteHome, name: str) -> int:
    """Remove a participant's individual results, and the pages that include the participant."""
    removed = 0
    try:
        for study in (path for path in home.results_path.glob("*") if path.is_dir()):
            (study / REPORT).unlink(missing_ok=True)
            shutil.rmtree(study / f".{person_label(name)}.part", ignore_errors=True)
            if (study / person_label(name)).is_dir():
                shutil.rmtree(study / person_label(name))
                removed += 1
    except OSError as error:
        raise InputError(
            f"the results of {printable(name)} in {home.results_path} cannot be removed: {error.strerror}"
        ) from None
    return removed


def _studies(home: SiteHome) -> Iterator[str]:
    totals = home.totals()
    spent = [] if totals is None else totals.studies.values()
    for study in approved(home, finished=False):
        enrolled = sum(site.subjects for site in study.sites if site.name == home.settings.name)
        title = f"'{printable(study.title)}'"
        if any(one.n_releases for one in spent if one.title == study.title):
            yield (
                f"{title} has started: its later releases do not include this participant, who counts as "
                f"zero among the {enrolled}. Do not change the enrolment before it has finished"
            )
        else:
            yield (
                f"{title} was approved for {enrolled} participants here and has not started: it can run as "
                "it is, and this participant counts as zero; or ask the coordinator for a new study with the "
                "number given by capedjica site enrol --again"
            )
