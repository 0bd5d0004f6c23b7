"""A site's part in a study: whether it fits, whether it was approved, and the site that then answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from capedjica.data.layouts import check_folder
from capedjica.data.scans import Problem
from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.messages import CarrierName
from capedjica.mechanisms.site.answering import Site, SitePolicy
from capedjica.mechanisms.statistics import Statistics
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.ledger import Ledger, Spent
from capedjica.securesum.noise import NoiseSource
from capedjica.site.home import SiteHome
from capedjica.site.people.approved_scans import (
    ApprovedScans,
    differences,
    read_record,
    record_path,
    take_record,
    write_record,
)
from capedjica.site.people.enrolment import Enrolment, read_enrolment
from capedjica.site.people.roll import Roll, Tick, call_roll, look
from capedjica.study.study_file import Study, StudyFile, changes, read_study_file, write_study
from capedjica.tools.locks import locked
from capedjica.tools.text import printable

_UNLESS_BEGUN: Final = ". If it has begun, it goes on with those for whom it was approved"


def approve(home: SiteHome, study: Study, tick: Tick = lambda: None) -> None:
    """Approve a study for what it asks, with the people and the scans as they are, and keep a copy of it.

    Again in the same words changes nothing but the record of the scans, and that only until something was
    spent. A site that approves by itself keeps no record: it approves whatever is there when a study runs.
    ``tick`` is called after each person whose scans were recorded.
    """
    check_terms(home, study)
    record = None if home.settings.policy.auto_approve else _record(home, study, tick)
    contract = study.contract
    with home.open_ledger() as ledger:
        ledger.register_study(contract.hash, contract.title, contract.cap(home.settings.name), contract.unit)
    copy = home.approved_path / f"{study.hash.hex()[:16]}.toml"
    if not copy.exists():
        write_study(copy, study.content, study.folder)
    if record is not None:
        write_record(home, study, record)


def check_terms(home: SiteHome, study: Study) -> None:
    """Refuse a study that the site could not approve, whatever its scans are."""
    _refuse(home, study, [*terms_problems(home, study), *_revocation(home, study)])


def _refuse(home: SiteHome, study: Study, found: list[str]) -> None:
    if found:
        raise InputError(f"site {home.settings.name} cannot approve '{study.content.title}': {found[0]}")


def _record(home: SiteHome, study: Study, tick: Tick) -> ApprovedScans | None:
    """Return what the approval is given for; None where the earlier record stays."""
    roll = call_roll(home, study)
    if not has_begun(home, study):
        _refuse(home, study, data_obstacles(home, study, roll, []))
        return take_record(home, roll.people, tick)
    earlier = read_record(home, study)
    changed = [] if earlier is None else differences(home, earlier, roll.people)
    if changed:
        raise InputError(
            f"site {home.settings.name} cannot approve '{study.content.title}' again, as it has begun: "
            f"{changed[0]}. It goes on as it was approved, with the scans as they are"
        )
    return None


def spent_on(home: SiteHome, study: Study) -> Spent | None:
    """Return what a site spent on a study; None where it has not approved it."""
    totals = home.totals()
    return None if totals is None else totals.studies.get(study.contract.hash)


def has_begun(home: SiteHome, study: Study) -> bool:
    """Whether a site released anything for a study."""
    known = spent_on(home, study)
    return known is not None and known.n_releases > 0


def is_settled(home: SiteHome, study: Study) -> bool:
    """Whether the approval settles who takes part with which files, as the study has begun.

    Then nothing may depend on what became of a scan: what can be read is read, and the rest counts as zero.
    """
    return not home.settings.policy.auto_approve and has_begun(home, study)


def changed_since_approval(home: SiteHome, study: Study) -> list[str]:
    """Return in words what is not as it was when the study was approved; nothing of scans once it has begun.

    Only for the site's own people: the words name one of its patients. After the first release nothing may
    depend on what becomes of a scan, and the record itself says what is read.
    """
    if home.settings.policy.auto_approve:
        return []
    known = spent_on(home, study)
    if known is None:
        return []
    record = read_record(home, study)
    if record is None:
        advice = "put it back from a backup" if known.n_releases else "approve it again"
        return [
            f"there is no record of the scans for which '{study.content.title}' was approved "
            f"({record_path(home, study)}): {advice}"
        ]
    if known.n_releases:
        return []
    found = differences(home, record, call_roll(home, study).people)
    return [f"{words}; to use them as they are now, approve it again" for words in found]


def problems(home: SiteHome, study: Study, tick: Tick = lambda: None) -> list[str]:
    """Return everything that keeps a site from taking part, in words; nothing is spent or changed.

    ``tick`` is called after each subject that was looked at.
    """
    if home.settings.name not in study.contract.roster.names:
        return [f"site {home.settings.name}: {problem}" for problem in terms_problems(home, study)]
    found: list[str] = []
    data_problems = partial(_data_problems, tick=tick)
    for demand in (terms_problems, budget_problems, changed_since_approval, data_problems):
        try:
            found += demand(home, study)
        except CapedjicaError as error:
            found.append(str(error))
    # A key that cannot be read is in the way more than once.
    return [f"site {home.settings.name}: {problem}" for problem in dict.fromkeys(found)]


def open_site(
    home: SiteHome,
    study: Study,
    ledger: Ledger,
    statistics: Statistics,
    noise: NoiseSource,
    carrier: CarrierName = "embedded",
) -> Site:
    """Return the site that answers the aggregator."""
    policy = SitePolicy(allow_unprotected=home.settings.policy.allow_unprotected)
    name, identity = home.settings.name, home.identity()
    return Site(study.contract, name, identity, ledger, statistics, noise, policy, carrier=carrier)


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
    for study in approved(home):
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


def terms_problems(home: SiteHome, study: Study) -> list[str]:
    """Return what is wrong with the study as such, in the eyes of the site."""
    name, contract = home.settings.name, study.contract
    if name not in contract.roster.names:
        return [f"it is not a site of '{contract.title}', whose sites are {', '.join(contract.roster.names)}"]
    found = []
    pinned, own = contract.roster.site(name), home.card()
    # defence: a-sites-own-key
    if pinned.public_key != own.public_key:
        found.append(
            f"the study names another key for it, fingerprint {pinned.fingerprint}; its own is "
            f"{own.fingerprint}: put its card into the study"
        )
    found += [
        f"site {peer.name} of the study has a key that this site revoked, fingerprint {peer.fingerprint}: it "
        "needs a new key, and the study must be made anew with it"
        for peer in map(contract.roster.site, contract.roster.names)
        # defence: revoked-keys
        if home.revokes(peer)
    ]
    if not contract.protects and not _allows_unprotected(home):
        seeded = " with seeded noise" if contract.insecure_noise else ""
        found.append(
            f"its policy does not allow mechanism '{contract.mechanism}'{seeded} (allow_unprotected in "
            f"{home.folder / 'site.toml'})"
        )
    # defence: at-least-one-colluding-site
    if contract.mechanism == "cape" and not contract.roster.n_colluding and not _allows_unprotected(home):
        found.append(
            "privacy.n_colluding is 0: the guarantee does NOT hold against "
            f"{contract.adversary.not_against}. Its policy wants at least 1 (allow_unprotected in "
            f"{home.folder / 'site.toml'})"
        )
    enrolment, expected = read_enrolment(home), contract.enrolled[name]
    if enrolment is not None and len(enrolment.enrolled) != expected and not is_settled(home, study):
        found.append(
            f"the study enrols {expected} subjects, its enrolment has {len(enrolment.enrolled)}: put that "
            "number into the study"
        )
    cap, most = contract.cap(name), home.policy.per_study
    if contract.protects and cap.mu2 > most.mu2:
        found.append(f"the study asks for {cap}; its policy allows a study at most {most}")
    return found


def _allows_unprotected(home: SiteHome) -> bool:
    return home.settings.policy.allow_unprotected


def budget_problems(home: SiteHome, study: Study) -> list[str]:
    """Return whether the site approved the study, and whether what it may still cost fits into the total."""
    contract = study.contract
    totals = home.totals()
    known = None if totals is None else totals.studies.get(contract.hash)
    if known is None and not home.settings.policy.auto_approve:
        return [_not_approved(home, study)]
    if known is not None and known.revoked:
        return _revocation(home, study)
    spent = known.mu2 if known is not None else 0.0
    asked = contract.cap(home.settings.name).mu2 - spent if contract.protects else 0.0
    total, overall = home.policy.total, 0.0 if totals is None else totals.overall.mu2
    # Unprotected releases are charged with infinity; where they are allowed, they stay outside the total.
    before = 0.0 if math.isinf(overall) else overall
    if asked > 0 and before + asked > total.mu2 * (1 + 1e-12):
        return [
            f"the study may cost {contract.cap(home.settings.name)}, but all studies together are allowed "
            f"{total} and have spent {gaussian_epsilon(math.sqrt(before), total.delta):.6g}"
        ]
    return []


def _revocation(home: SiteHome, study: Study) -> list[str]:
    """Return that the site revoked its approval, if it did: the ledger does not take that back."""
    known = spent_on(home, study)
    # defence: revoked-for-good
    if known is None or not known.revoked:
        return []
    return ["the site revoked its approval, which cannot be taken back; it needs a new study"]


def _not_approved(home: SiteHome, study: Study) -> str:
    """Return that the study was not approved, and how it differs from one of the same title that was."""
    advice = f"read it (capedjica study show) and run: capedjica site approve STUDY --site {home.folder}"
    for earlier in approved(home):
        if earlier.title == study.content.title:
            changed = "; ".join(changes(earlier, study.content)) or "the software's defaults"
            return f"the study was changed after it was approved ({changed}); to approve the change, {advice}"
    return f"it has not approved '{study.content.title}'; {advice}"


def approved(home: SiteHome) -> Iterator[StudyFile]:
    """Yield the copies of approved studies, the latest first; one that cannot be read tells nothing."""
    copies = sorted(home.approved_path.glob("*.toml"), key=lambda path: path.stat().st_mtime)
    for copy in reversed(copies):
        with suppress(InputError):
            yield read_study_file(copy)


def _data_problems(home: SiteHome, study: Study, tick: Tick) -> list[str]:
    if is_settled(home, study):
        check_folder(home.data_path)
        return []
    roll = call_roll(home, study)
    found = [*roll.problems, *look(home, roll.found, study, tick)]
    # Whoever watches counts people, and not those who could be found.
    for _ in range(len(roll.people) - len(roll.found)):
        tick()
    return data_obstacles(home, study, roll, found)


def data_obstacles(home: SiteHome, study: Study, roll: Roll, problems: list[Problem]) -> list[str]:
    """Return what about the scans keeps a site from taking part, given what is wrong with them.

    Those who were enrolled take part whatever became of their scans since then, unless nobody is left: that
    would be a folder that is not there, and not a person. Once a study has begun nothing is in the way.
    """
    if is_settled(home, study):
        return []
    fatal = [problem for problem in problems if problem.fatal]
    if roll.enrolment is None:
        expected, count = study.contract.enrolled[home.settings.name], len(roll.people)
        wrong = f"the study enrols {expected} subjects, {home.data_path} holds {count}"
        return [wrong] * (count != expected) + [str(problem) for problem in fatal]
    if {person.name for person in roll.found} <= {problem.name for problem in fatal}:
        first = fatal[0] if fatal else f"{home.data_path} holds nobody of them"
        return [f"none of its {len(roll.people)} enrolled people can be used; the first reason: {first}"]
    return []
