"""Admission of a site to a study: one list of reasons against it, shared by all commands.

``site check``, ``site approve``, ``site start``, a run in one process and the agent differ only in how
thoroughly they check the scans, and in whether they ask about an approval or a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from capedjica.data.layouts import check_folder
from capedjica.data.scans import Problem, told_once
from capedjica.errors import CapedjicaError, InputError
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.ledger import Spent
from capedjica.site.consent.consents import read_withdrawn
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import differences, read_record, record_path
from capedjica.site.participants.cohort import Roll, Tick, call_roll, look, measure, wrong_width
from capedjica.site.participants.enrolment import read_enrolment
from capedjica.site.participants.outliers import Measured, oddities
from capedjica.study.study_file import Study, StudyFile, changes, read_study_file

Kind = Literal["membership", "approval", "key", "policy", "enrolment", "budget", "consent", "record", "scans"]
# The kind of requirement, whether it concerns the terms, and a function that returns the reasons against it.
_Demand = tuple[Kind, bool, Callable[[], Iterable[str]]]


@dataclass(frozen=True)
class Reason:
    """A reason why a site cannot take part, as text for its own staff.

    If it is ``of_terms``, the site cannot approve the study either. ``cause`` is the exception raised where a
    requirement could not be checked. Kind ``record`` concerns the data that were approved.
    """

    kind: Kind
    words: str
    of_terms: bool
    cause: CapedjicaError | None = None


@dataclass(frozen=True)
class Scans:
    """The scans of a site as a study would find them, checked once and on demand.

    Unless ``read``, participants and files are only counted. ``tick`` is called after each participant.
    """

    home: SiteHome
    study: Study | None
    read: bool = True
    tick: Tick = lambda: None

    @cached_property
    def roll(self) -> Roll:
        """The cohort."""
        return call_roll(self.home, self.study)

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of the scans, without duplicates."""
        found = list(self.roll.problems)
        if self.read:
            found += look(self.home, self.roll.found, self.study, self.tick)
            # Progress is counted over all participants, including those who could not be found.
            for _ in range(len(self.roll.people) - len(self.roll.found)):
                self.tick()
            if self.study is None:
                found += _new_oddities(found, self.measured)
        # A missing row is reported by the layout, and by a study that needs it, in more detail.
        return list({(one.path, one.found, one.name, one.fatal): one for one in found}.values())

    @cached_property
    def measured(self) -> list[Measured]:
        """The measures of the recordings; unreadable recordings are skipped."""
        found = []
        for person in self.roll.found:
            for recording in person.recordings:
                with suppress(Exception):
                    found.append(Measured(person.name, recording, measure(recording)))
        return found

    @property
    def n_usable(self) -> int:
        """Number of usable participants, each counted once."""
        unusable = {problem.name for problem in self.problems if problem.fatal}
        return sum(person.name not in unusable for person in self.roll.found)


def _new_oddities(found: list[Problem], measured: list[Measured]) -> list[Problem]:
    """Return the outliers among recordings without other problems."""
    worse = {problem.path for problem in found}
    return [odd for odd in oddities(measured) if odd.path not in worse]


def why_not(
    home: SiteHome, study: Study | None, scans: Scans | None = None, *, approving: bool = False
) -> list[Reason]:
    """Return all reasons why a site cannot take part, in order; nothing is spent or changed.

    Without ``scans``, nothing about participants is checked. ``approving`` skips requirements that only apply
    to a run. Without a study, only the scans are checked.
    """
    found: dict[str, Reason] = {}
    for kind, of_terms, demand in _demands(home, study, scans):
        if approving and not of_terms:
            continue
        cause: CapedjicaError | None = None
        try:
            words = list(demand())
        except CapedjicaError as error:
            words, cause = [str(error)], error
        for one in words:
            # An unreadable key causes the same error in several requirements.
            found.setdefault(one, Reason(kind, one, of_terms, cause))
    return list(found.values())


def _demands(home: SiteHome, study: Study | None, scans: Scans | None) -> Iterator[_Demand]:
    """Yield the requirements, starting with a readable ledger."""
    if study is None or home.settings.name not in study.contract.roster.names:
        if study is not None:
            yield "membership", True, partial(_membership, study)
        if scans is not None:
            yield "scans", True, partial(_unusable, scans)
        return
    yield "approval", True, partial(_revocation, home, study)
    yield "key", True, partial(_keys, home, study)
    yield "policy", True, partial(_protection, home, study)
    yield "enrolment", True, partial(_enrolment, home, study)
    yield "budget", True, partial(_cap, home, study)
    yield "approval", False, partial(_approval, home, study)
    yield "budget", True, partial(_budget, home, study)
    if scans is not None:
        yield "consent", True, partial(_consent, home)
        yield "record", False, partial(_record, home, study, scans)
        yield "scans", True, partial(_scans, home, study, scans)


def problems(home: SiteHome, study: Study, tick: Tick = lambda: None) -> list[str]:
    """Return all reasons why a site cannot run a study, after reading every scan, with the site's name."""
    found = why_not(home, study, Scans(home, study, tick=tick))
    return [f"site {home.settings.name}: {reason.words}" for reason in found]


def spent_on(home: SiteHome, study: Study) -> Spent | None:
    """Return what a site spent on a study; None if it has not approved it."""
    totals = home.totals()
    return None if totals is None else totals.studies.get(study.contract.hash)


def has_begun(home: SiteHome, study: Study) -> bool:
    """Return whether a site released anything for a study."""
    known = spent_on(home, study)
    return known is not None and known.n_releases > 0


def is_settled(home: SiteHome, study: Study) -> bool:
    """Return whether the study has started, so that the approval alone fixes participants and files.

    From then on, nothing may depend on changes to a scan: readable scans are read, the others count as zero.
    """
    return not home.settings.policy.auto_approve and has_begun(home, study)


def approved(home: SiteHome, *, finished: bool = True) -> Iterator[StudyFile]:
    """Yield the copies of approved studies, latest first; unreadable copies are skipped.

    Finished studies are included only if ``finished``.
    """
    copies = sorted(home.approved_path.glob("*.toml"), key=lambda path: path.stat().st_mtime)
    for copy in reversed(copies):
        if not finished and home.is_over(copy.stem):
            continue
        with suppress(InputError):
            yield read_study_file(copy)


# Requirements: each returns the reasons why it is not met


def _membership(study: Study) -> list[str]:
    roster = study.contract.roster
    return [f"it is not a site of '{study.contract.title}'; the sites are {', '.join(roster.names)}"]


def _keys(home: SiteHome, study: Study) -> list[str]:
    contract, found = study.contract, []
    pinned, own = contract.roster.site(home.settings.name), home.card()
    # defence: a-sites-own-key
    if pinned.public_key != own.public_key:
        found.append(
            f"the study lists a different key for this site, fingerprint {pinned.fingerprint}; its own is "
            f"{own.fingerprint}. Ask the coordinator to use the site's current card"
        )
    return found + [
        f"site {peer.name} of the study has a key that this site revoked, fingerprint {peer.fingerprint}. "
        "That site needs a new key, and the coordinator must create a new study with it"
        for peer in map(contract.roster.site, contract.roster.names)
        # defence: revoked-keys
        if home.revokes(peer)
    ]


def _protection(home: SiteHome, study: Study) -> list[str]:
    contract, found = study.contract, []
    if not contract.protects and not _allows_unprotected(home):
        seeded = " with seeded noise" if contract.insecure_noise else ""
        found.append(
            f"its policy does not allow mechanism '{contract.mechanism}'{seeded} (allow_unprotected = false "
            f"in {home.folder / 'site.toml'})"
        )
    # defence: at-least-one-colluding-site
    if contract.mechanism == "cape" and not contract.roster.n_colluding and not _allows_unprotected(home):
        found.append(
            "privacy.n_colluding is 0: the guarantee does NOT hold against "
            f"{contract.adversary.not_against}. Its policy requires at least 1 (allow_unprotected = false in "
            f"{home.folder / 'site.toml'})"
        )
    return found


def _allows_unprotected(home: SiteHome) -> bool:
    return home.settings.policy.allow_unprotected


def _enrolment(home: SiteHome, study: Study) -> Iterator[str]:
    enrolment, expected = read_enrolment(home), study.contract.enrolled[home.settings.name]
    if enrolment is not None and len(enrolment.enrolled) != expected and not is_settled(home, study):
        yield (
            f"the study expects {expected} subjects, but this site enrolled {len(enrolment.enrolled)}. Ask "
            "the coordinator to use that number"
        )


def _cap(home: SiteHome, study: Study) -> Iterator[str]:
    cap, most = study.contract.cap(home.settings.name), home.policy.per_study
    if study.contract.protects and cap.mu2 > most.mu2:
        yield f"the study may spend {cap}, but this site's policy allows at most {most} per study"


def _revocation(home: SiteHome, study: Study) -> list[str]:
    """Return a reason if the site revoked its approval, which the ledger makes permanent."""
    known = spent_on(home, study)
    # defence: revoked-for-good
    if known is None or not known.revoked:
        return []
    return ["the site revoked its approval, which is permanent; the coordinator must create a new study"]


def _approval(home: SiteHome, study: Study) -> Iterator[str]:
    """Yield a reason if the study was not approved, with its changes since the approved version, if any."""
    if home.settings.policy.auto_approve or spent_on(home, study) is not None:
        return
    advice = f"read it (capedjica study show) and run: capedjica site approve STUDY {home.folder}"
    earlier = next((one for one in approved(home) if one.title == study.content.title), None)
    if earlier is None:
        yield f"it has not approved '{study.content.title}'; {advice}"
    else:
        changed = "; ".join(changes(earlier, study.content)) or "the defaults of the software"
        yield f"the study was changed after it was approved ({changed}); to approve the change, {advice}"


def _budget(home: SiteHome, study: Study) -> Iterator[str]:
    """Yield a reason if the remaining cost of the study would exceed the site's total budget."""
    totals, known, cap = home.totals(), spent_on(home, study), study.contract.cap(home.settings.name)
    if not study.contract.protects or (known is not None and known.revoked):
        return
    asked = cap.mu2 - (0.0 if known is None else known.mu2)
    total, overall = home.policy.total, 0.0 if totals is None else totals.overall.mu2
    # Unprotected releases have an infinite cost; where they are allowed, they do not count in the total.
    before = 0.0 if math.isinf(overall) else overall
    if asked > 0 and before + asked > total.mu2 * (1 + 1e-12):
        yield (
            f"the study may cost {cap}, but all studies in total are allowed {total} and have already spent "
            f"epsilon {gaussian_epsilon(math.sqrt(before), total.delta):.6g}"
        )


def _consent(home: SiteHome) -> list[str]:
    """Raise if the list of withdrawals cannot be read."""
    read_withdrawn(home)
    return []


def _record(home: SiteHome, study: Study, scans: Scans) -> list[str]:
    """Return the differences from the approved data; none about scans once the study has started.

    After the first release, nothing may depend on changes to a scan, and the record determines what is read.
    """
    known = None if home.settings.policy.auto_approve else spent_on(home, study)
    if known is None:
        return []
    record = read_record(home, study)
    if record is None:
        advice = "restore it from a backup" if known.n_releases else "approve the study again"
        return [
            f"the record of the data approved for '{study.content.title}' is missing or malformed "
            f"({record_path(home, study)}); {advice}"
        ]
    if known.n_releases:
        return []
    found: list[str] = []
    with suppress(InputError):  # an unreadable folder is reported by the requirement on the scans
        found = differences(home, record, scans.roll.people)
    return [f"{words}; to use the current data, approve the study again" for words in found]


def _scans(home: SiteHome, study: Study, scans: Scans) -> list[str]:
    """Return the reasons that concern the scans.

    Enrolled participants take part even if their scans changed since then, unless no usable scan is left,
    which indicates a missing folder. Once a study has started, there are no other reasons.
    """
    if is_settled(home, study):
        check_folder(home.data_path)
        return []
    roll, fatal = scans.roll, [problem for problem in scans.problems if problem.fatal]
    if roll.enrolment is None:
        expected, count = study.contract.enrolled[home.settings.name], len(roll.people)
        wrong = f"the study expects {expected} subjects, but {home.data_path} contains {count}"
        return [wrong] * (count != expected) + (_told(fatal) or _wrong_width(study, scans))
    return _none_usable(scans) or _wrong_width(study, scans)


def _none_usable(scans: Scans) -> list[str]:
    """Return a reason if no enrolled participant is usable."""
    roll, fatal = scans.roll, [problem for problem in scans.problems if problem.fatal]
    if not {person.name for person in roll.found} <= {problem.name for problem in fatal}:
        return []
    first = fatal[0] if fatal else f"{scans.home.data_path} contains none of them"
    return [f"none of its {len(roll.people)} enrolled participants is usable; the first reason: {first}"]


def _wrong_width(study: Study, scans: Scans) -> list[str]:
    """Return a reason if no table fits the study; scans that were read have been checked already."""
    words = None if scans.read else wrong_width(scans.roll.found, study.content.features)
    return [] if words is None else [words]


def _unusable(scans: Scans) -> list[str]:
    """Return the problems that are fatal for any study; with an enrolment, only if no participant is left."""
    if scans.roll.enrolment is not None:
        return _none_usable(scans)
    return _told(problem for problem in scans.problems if problem.fatal)


def _told(found: Iterable[Problem]) -> list[str]:
    return told_once((problem.alike, str(problem)) for problem in found)
