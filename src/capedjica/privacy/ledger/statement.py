"""The ledger for people: what was spent, what left, and one file with everything."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from capedjica.privacy.ledger.books import Books, Slot, Study
from capedjica.privacy.ledger.entry import COLUMNS, Entry, Release
from capedjica.privacy.ledger.policy import Cap, Policy, epsilon_of, total
from capedjica.privacy.statement import round_up


@dataclass(frozen=True, slots=True)
class Summary:
    """What a message says, in plain words, and how many numbers it holds."""

    what: str
    numbers: int


@dataclass(frozen=True, slots=True)
class Spent:
    r"""A sum of charges: :math:`\mu^2`, and the epsilon it means at the delta of the cap it is held to."""

    title: str
    mu2: float
    epsilon: float
    delta: float
    cap: Cap
    n_releases: int
    n_aborted: int
    revoked: bool = False

    def __str__(self) -> str:
        return (
            f"{self.title}: epsilon {round_up(self.epsilon)} at delta {self.delta:.3g} of {self.cap}, "
            f"{self.n_releases} releases, {self.n_aborted} of them aborted"
            + ("; the approval was revoked" if self.revoked else "")
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """What was spent by each study, keyed by its hash, and by all together."""

    overall: Spent
    studies: dict[bytes, Spent]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was handed out: when, to which study, what, and what it cost."""

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
    aborted: bool
    message: bytes = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.when:%Y-%m-%d %H:%M:%S} UTC, to study '{self.title}': {self.what}; {self.numbers} "
            f"numbers in {len(self.message)} bytes, cost epsilon {round_up(self.epsilon)} "
            f"at delta {self.delta:.3g}" + ("; later aborted" if self.aborted else "")
        )


def totals(books: Books, policy: Policy) -> Totals:
    """Add up the charges of each study, and of the site at the delta of its total cap."""
    studies = {key: _spent(study) for key, study in books.studies.items()}
    mu2 = total(books.all_charges())
    releases, aborted = len(books.releases), len(books.aborted)
    epsilon, delta = epsilon_of(mu2, policy.total.delta), policy.total.delta
    return Totals(Spent("all studies", mu2, epsilon, delta, policy.total, releases, aborted), studies)


def _spent(study: Study) -> Spent:
    mu2, delta = total(study.charges), study.cap.delta
    epsilon = epsilon_of(mu2, delta)
    releases, aborted = len(study.charges), study.n_aborted
    return Spent(study.title, mu2, epsilon, delta, study.cap, releases, aborted, study.revoked)


def sent(books: Books, slot: Slot, entry: Entry, message: bytes) -> Sent:
    """Describe one release."""
    study, release, mu2 = books.studies[slot.study], entry.read(Release), entry.mu2 or 0.0
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
        aborted=slot in books.aborted,
        message=message,
    )


def as_json(entries: Sequence[Entry], spent: Totals, messages: Mapping[int, bytes]) -> bytes:
    """Return everything as indented JSON: hashes in hexadecimal, messages in base64, infinity as text."""
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
