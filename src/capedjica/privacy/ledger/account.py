"""Human-readable views of the ledger: budget spent, messages sent, and the JSON export."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from capedjica.privacy.charges import Cap, epsilon_of, total
from capedjica.privacy.ledger.books import Books, Slot, Study
from capedjica.privacy.ledger.entry import COLUMNS, Entry, ReleaseDetail
from capedjica.privacy.ledger.policy import Policy
from capedjica.privacy.neighbour import Neighbour
from capedjica.privacy.wording import NOT_PRIVATE, round_up


@dataclass(frozen=True, slots=True)
class Summary:
    """A short description of a message and the number of values it holds."""

    what: str
    numbers: int


@dataclass(frozen=True, slots=True)
class Spent:
    r"""A sum of charges: :math:`\mu^2`, and the corresponding epsilon at the delta of its cap.

    Both are for one unit of ``neighbour``. If that is a time point, ``subject_mu2`` and
    ``subject_epsilon`` are those of a whole subject: k^2 times the mu^2 of each study in which a subject
    holds up to k time points. For several studies the unit is the smallest one, which is also protected as
    part of a subject.
    """

    title: str
    mu2: float
    epsilon: float
    delta: float
    cap: Cap
    n_releases: int
    n_aborted: int
    neighbour: Neighbour
    subject_mu2: float
    subject_epsilon: float
    revoked: bool = False

    def __str__(self) -> str:
        return (
            f"{self.title}: {_cost(self)} at delta {self.delta:.3g} of {self.cap}, "
            f"{self.n_releases} releases, {self.n_aborted} of them aborted"
            + ("; the approval was revoked" if self.revoked else "")
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The charges of each study, keyed by its hash, and of all studies in total."""

    overall: Spent
    studies: dict[bytes, Spent]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was handed out: its time, study, content and cost."""

    seq: int
    when: datetime
    title: str
    slot: Slot
    participants: tuple[str, ...]
    what: str
    numbers: int
    mu2: float
    epsilon: float
    delta: float
    neighbour: Neighbour
    subject_epsilon: float
    aborted: bool
    message: bytes = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.when:%Y-%m-%d %H:%M:%S} UTC, to study '{self.title}': {self.what}; {self.numbers} "
            f"values in {len(self.message)} bytes, {self._cost_words}"
            + ("; later aborted" if self.aborted else "")
        )

    @property
    def _cost_words(self) -> str:
        if math.isinf(self.epsilon):
            return NOT_PRIVATE
        return f"cost {_cost(self)} at delta {self.delta:.3g}"


def _cost(spent: Spent | Sent) -> str:
    """Return an epsilon together with its unit."""
    unit = "participant" if spent.neighbour == "subject" else "single time point"
    whole = ""
    if spent.neighbour != "subject":
        whole = f" ({round_up(spent.subject_epsilon)} for each participant)"
    return f"epsilon {round_up(spent.epsilon)} for each {unit}{whole}"


def totals(books: Books, policy: Policy) -> Totals:
    """Return the sum of the charges of each study, and of the site at the delta of its total cap."""
    studies = {key: _spent(study) for key, study in books.studies.items()}
    mu2, subject_mu2 = total(books.all_charges()), total([one.subject_mu2 for one in studies.values()])
    samples = any(one.neighbour == "sample" for one in studies.values())
    delta = policy.total.delta
    overall = Spent(
        "all studies",
        mu2,
        epsilon_of(mu2, delta),
        delta,
        policy.total,
        len(books.releases),
        len(books.aborted),
        "sample" if samples else "subject",
        subject_mu2 if samples else mu2,
        epsilon_of(subject_mu2 if samples else mu2, delta),
    )
    return Totals(overall, studies)


def _spent(study: Study) -> Spent:
    mu2, delta = total(study.charges), study.cap.delta
    subject_mu2 = _of_a_subject(mu2, study)
    return Spent(
        study.title,
        mu2,
        epsilon_of(mu2, delta),
        delta,
        study.cap,
        len(study.charges),
        study.n_aborted,
        study.unit.neighbour,
        subject_mu2,
        epsilon_of(subject_mu2, delta),
        study.revoked,
    )


def _of_a_subject(mu2: float, study: Study) -> float:
    """Return k^2 mu^2, rounded up: the total cost of all units that a subject holds."""
    if study.unit.is_subject or mu2 == 0:
        return mu2
    return math.nextafter(study.unit.per_subject**2 * mu2, math.inf)


def sent(books: Books, slot: Slot, entry: Entry, message: bytes) -> Sent:
    """Return the description of one release."""
    study, release, mu2 = books.studies[slot.study], entry.read(ReleaseDetail), entry.mu2 or 0.0
    delta = study.cap.delta
    return Sent(
        seq=entry.seq,
        when=entry.when,
        title=study.title,
        slot=slot,
        participants=release.participants,
        what=release.what,
        numbers=release.numbers,
        mu2=mu2,
        epsilon=epsilon_of(mu2, delta),
        delta=delta,
        neighbour=study.unit.neighbour,
        subject_epsilon=epsilon_of(_of_a_subject(mu2, study), delta),
        aborted=slot in books.aborted,
        message=message,
    )


def as_json(entries: Sequence[Entry], spent: Totals, messages: Mapping[int, bytes]) -> bytes:
    """Return the ledger as indented JSON: hashes in hexadecimal, messages in base64, infinity as text."""
    document = {
        "totals": _plain(asdict(spent.overall)),
        "studies": {key.hex(): _plain(asdict(value)) for key, value in spent.studies.items()},
        "entries": [_entry(entry, messages.get(entry.seq)) for entry in entries],
    }
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def _entry(entry: Entry, message: bytes | None) -> dict[str, Any]:
    row = {name: _plain(value) for name in COLUMNS if (value := getattr(entry, name)) is not None}
    row |= {"time": entry.when.isoformat(), "detail": json.loads(entry.detail)}
    if message is not None:
        row["message"] = base64.b64encode(message).decode()
    return row


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case bytes():
            return value.hex()
        case float() if math.isinf(value):
            return "infinity"
        case _:
            return value
