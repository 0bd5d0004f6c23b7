"""Somebody withdraws their consent: from then on no study reads their scans.

What was released stays released; it says at most (epsilon, delta) about anybody. The person stays counted in
the studies that were agreed on: the number of people is public and fixed, and each of them may contribute
anything within the clip, also zero. So nothing that follows costs more, and no message tells of it: the
ledger, which notes a withdrawal, shows nobody how long it is (:mod:`capedjica.mechanisms.site.head_seal`).
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
from capedjica.site.results.individual import person_label
from capedjica.site.results.page import REPORT
from capedjica.study.study_file import Study
from capedjica.tools.text import printable


@dataclass(frozen=True)
class Withdrawn:
    """What a withdrawal did.

    Attributes
    ----------
    name : str
        Who withdrew.
    since : str
        When they did so first.
    series, results : int
        How many extracted series, of everybody, and folders of results, of this person, were removed.
    studies : tuple of str
        What it means for each study that was approved, in words.
    """

    name: str
    since: str
    series: int
    results: int
    studies: tuple[str, ...]


def withdraw(home: SiteHome, person: str) -> Withdrawn:
    """Let nobody read somebody's scans any more, and remove what was made of them."""
    with lock(home):
        return _withdraw(home, person)


def _withdraw(home: SiteHome, person: str) -> Withdrawn:
    enrolment = read_enrolment(home)
    name = _name(home, enrolment, person)
    if enrolment is None and name not in standing(home):
        # Everybody who is found is enrolled: so the number stays what it was when scans are removed.
        enrolment = Enrolment.now(home.settings.data, _found(home), [], None)
        write_enrolment(home, enrolment)
    # First of all, so that it holds whatever happens to the rest.
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
    """Yield in words what a withdrawal did, and what nobody can do."""
    yield f"{printable(done.name)} withdrew on {done.since}. From now on no study reads their data."
    yield (
        f"Removed: {done.series} extracted series (of everybody; they are extracted again when needed) and "
        f"the results about this person of {done.results} studies. The data themselves are yours to remove, "
        f"from {home.data_path} and from backups."
    )
    totals = home.totals()
    if totals is not None and totals.overall.n_releases:
        yield _released_words(totals.overall)
    if not is_resting(home):
        yield "A study runs here: a mean that is computed at this moment may be the last with this person."
    for words in done.studies:
        yield f"{words}."
    try:
        read_withdrawn(home)
    except CapedjicaError as error:
        yield f"{error}."


def _released_words(spent: Spent) -> str:
    bound = f"at most epsilon {round_up(spent.subject_epsilon)} at delta {spent.delta:g}"
    limit = "without any limit" if math.isinf(spent.epsilon) else bound
    return (
        f"What was released, {spent.n_releases} messages, cannot be taken back, and results are not computed "
        f"anew. It tells about anybody of this site, this person included, {limit}. What was not yet "
        "released will not contain this person."
    )


def known_as(home: SiteHome, person: str) -> str:
    """Return the name that somebody has here; refuse a stranger."""
    return _name(home, read_enrolment(home), person)


def _name(home: SiteHome, enrolment: Enrolment | None, person: str) -> str:
    """Return the name that somebody has here, given with or without ``sub-``; refuse a stranger."""
    known = {one.name for one in read_list(home)}
    if enrolment is not None:
        known |= {*enrolment.enrolled, *(one.name for one in enrolment.left_out)}
    with suppress(InputError):
        known |= set(_found(home))
    plain = person.removeprefix("sub-")
    matching = [person] if person in known else [n for n in known if n.removeprefix("sub-") == plain]
    if not matching:
        near = difflib.get_close_matches(person, known, n=1)
        guess = f"did you mean {printable(near[0])}?" if near else "names are those of the scans or rows"
        raise InputError(f"site {home.settings.name} knows nobody called {printable(person)!r}; {guess}")
    return matching[0]


def _found(home: SiteHome) -> list[str]:
    """Return the names of those who are there, in the space of the study that was approved last."""
    latest = next((Study(content) for content in approved(home)), None)
    # Names of files, which are not opened: that somebody withdraws must not depend on a list that is whole.
    found = find(home, home.settings.data, latest, standing(home))
    return [person.name for person in found.people]


def _remove_results(home: SiteHome, name: str) -> int:
    """Remove what results say about somebody, the pages in which they are among others included."""
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
            f"the results about {printable(name)} in {home.results_path} cannot be removed: {error.strerror}"
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
                f"{title} has begun: what it releases from now on does not contain this person, who counts "
                f"as zero among the {enrolled}. Do not enrol anew before it is done"
            )
        else:
            yield (
                f"{title} was approved for {enrolled} people here and has not begun: it can go on as it is, "
                "and this person counts as zero; or let the coordinator make a new study, with the number "
                "that capedjica site enrol --again gives"
            )
