"""A site's part in a study: it approves it, and is held by one run of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from capedjica.errors import InputError
from capedjica.site.approval.admission import Scans, approved, has_begun, why_not
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
from capedjica.study.study_file import Study, write_study
from capedjica.tools.locks import locked
from capedjica.tools.text import printable

_UNLESS_BEGUN: Final = ". If it has begun, it goes on with those for whom it was approved"


def approve(home: SiteHome, study: Study, tick: Tick = lambda: None) -> None:
    """Approve a study for what it asks, with the people and the scans as they are, and keep a copy of it.

    Again in the same words changes nothing but the record of the scans, and that only until something was
    spent. A site that approves by itself keeps no record: it approves whatever is there when a study runs.
    ``tick`` is called after each person whose scans were recorded.
    """
    scans = None if home.settings.policy.auto_approve else Scans(home, study, read=False)
    check_terms(home, study, scans)
    record = None if scans is None else _record(home, study, scans, tick)
    contract = study.contract
    with home.open_ledger() as ledger:
        ledger.register_study(contract.hash, contract.title, contract.cap(home.settings.name), contract.unit)
    copy = home.approved_path / f"{study.hash.hex()[:16]}.toml"
    if not copy.exists():
        write_study(copy, study.content, study.folder)
    if record is not None:
        write_record(home, study, record)


def check_terms(home: SiteHome, study: Study, scans: Scans | None = None) -> None:
    """Refuse a study that the site could not approve, whatever its scans are if they are not given."""
    for reason in why_not(home, study, scans, approving=True):
        words = f"site {home.settings.name} cannot approve '{study.content.title}': {reason.words}"
        raise reason.cause or InputError(words)


def _record(home: SiteHome, study: Study, scans: Scans, tick: Tick) -> ApprovedScans | None:
    """Return what the approval is given for; None where the earlier record stays."""
    if not has_begun(home, study):
        return take_record(home, scans.roll.people, tick)
    earlier = read_record(home, study)
    changed = [] if earlier is None else differences(home, earlier, scans.roll.people)
    if changed:
        raise InputError(
            f"site {home.settings.name} cannot approve '{study.content.title}' again, as it has begun: "
            f"{changed[0]}. It goes on as it was approved, with the data as they are"
        )
    return None


@contextmanager
def taking_part(home: SiteHome, study: Study) -> Iterator[None]:
    """Hold a site for one run of a study: two at once would spend its budget against each other."""
    name = home.settings.name
    lock = home.approved_path / f".{study.hash.hex()[:16]}.lock"
    with locked(lock, f"site {name} takes part in another run of '{study.content.title}' at this moment"):
        yield


def affected(home: SiteHome, before: Enrolment | None, now: Enrolment) -> list[str]:
    """Return in words what an enrolment means for the studies that were approved before it."""
    n_enrolled, words = len(now.enrolled), []
    for study in approved(home, finished=False):
        subjects = [site.subjects for site in study.sites if site.name == home.settings.name]
        title = f"'{printable(study.title)}'"
        if subjects != [n_enrolled]:
            words.append(
                f"{title} was approved for {sum(subjects)} people here, not {n_enrolled}: it cannot go on "
                f"with this enrolment, and needs a new study{_UNLESS_BEGUN}"
            )
        elif before is not None and before.enrolled != now.enrolled:
            words.append(
                f"{title} was approved with others on the list: approve it again before it begins"
                f"{_UNLESS_BEGUN}"
            )
    return words
