"""Approval of a study by a site, and the lock that allows one run of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from capedjica.errors import InputError
from capedjica.site.approval.admission import Scans, approved, has_begun, why_not
from capedjica.site.approval.copies import keep_copy
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import (
    ApprovedScans,
    differences,
    read_record,
    take_record,
    write_record,
)
from capedjica.site.participants.cohort import Tick
from capedjica.site.participants.enrolment import Enrolment
from capedjica.study.study_file import Study
from capedjica.tools.locks import locked
from capedjica.tools.text import printable

_UNLESS_BEGUN: Final = ". If it has started, it continues with the participants that were approved"


def approve(home: SiteHome, study: Study, tick: Tick = lambda: None) -> None:
    """Approve the terms of a study with the current participants and scans, and keep a copy of it.

    Approving the same study again only updates the record of the scans, and only until something is spent. A
    site with auto_approve keeps no record: it approves the data present when a study runs. ``tick`` is called
    after each participant whose scans were recorded.
    """
    scans = None if home.settings.policy.auto_approve else Scans(home, study, read=False)
    check_terms(home, study, scans)
    record = None if scans is None else _record(home, study, scans, tick)
    contract = study.contract
    with home.open_ledger() as ledger:
        ledger.register_study(contract.hash, contract.title, contract.cap(home.settings.name), contract.unit)
    keep_copy(home, study)
    if record is not None:
        write_record(home, study, record)


def check_offer(home: SiteHome, study: Study) -> None:
    """Raise InputError if the site cannot approve the study with its current scans, before it is asked to."""
    later = home.settings.policy.auto_approve or has_begun(home, study)
    check_terms(home, study, None if later else Scans(home, study, read=False))


def check_terms(home: SiteHome, study: Study, scans: Scans | None = None) -> None:
    """Raise InputError if the site cannot approve the study; without ``scans``, they are not checked."""
    for reason in why_not(home, study, scans, approving=True):
        words = f"site {home.settings.name} cannot approve '{study.content.title}': {reason.words}"
        raise reason.cause or InputError(words)


def _record(home: SiteHome, study: Study, scans: Scans, tick: Tick) -> ApprovedScans | None:
    """Return a new record of the approved data; None if the earlier record stays."""
    if not has_begun(home, study):
        return take_record(home, scans.roll.people, tick)
    earlier = read_record(home, study)
    changed = [] if earlier is None else differences(home, earlier, scans.roll.people)
    if changed:
        raise InputError(
            f"site {home.settings.name} cannot approve '{study.content.title}' again, as it has started: "
            f"{changed[0]}. It continues as approved, with the data as they are"
        )
    return None


@contextmanager
def taking_part(home: SiteHome, study: Study) -> Iterator[None]:
    """Lock a site for one run of a study: two concurrent runs would compete for its budget."""
    name = home.settings.name
    lock = home.approved_path / f".{study.hash.hex()[:16]}.lock"
    with locked(lock, f"site {name} is already taking part in another run of '{study.content.title}'"):
        yield


def affected(home: SiteHome, before: Enrolment | None, now: Enrolment) -> list[str]:
    """Return sentences about how an enrolment affects the studies approved before it."""
    n_enrolled, words = len(now.enrolled), []
    for study in approved(home, finished=False):
        subjects = [site.subjects for site in study.sites if site.name == home.settings.name]
        title = f"'{printable(study.title)}'"
        if subjects != [n_enrolled]:
            words.append(
                f"{title} was approved for {sum(subjects)} participants here, not {n_enrolled}: it cannot "
                f"run with this enrolment, and the coordinator must create a new study{_UNLESS_BEGUN}"
            )
        elif before is not None and before.enrolled != now.enrolled:
            words.append(
                f"{title} was approved with a different list of participants: approve it again before it "
                f"starts{_UNLESS_BEGUN}"
            )
    return words
