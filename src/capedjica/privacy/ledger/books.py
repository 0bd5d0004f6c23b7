"""State of the ledger derived from its entries: a pure function of the chain, without file access.

The books are a fold over all verified entries in order. Every decision of the ledger is based on them, so it
depends only on data covered by the chain hash.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from capedjica.errors import InputError, ProtocolError
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger.entry import Approval, Claim, Entry, Note, ReleaseDetail
from capedjica.privacy.ledger.errors import (
    NotApprovedError,
    SlotBurntError,
    SlotUsedError,
    TamperedError,
)
from capedjica.privacy.neighbour import WHOLE_SUBJECT, ProtectedUnit

Field = TypeVar("Field", int, float, bytes)


class Slot(NamedTuple):
    """One use of a mask: the block and attempt of a study, and the position in that block."""

    study: bytes
    block: int
    attempt: int
    slot: int

    def __str__(self) -> str:
        return (
            f"slot {self.slot} of block {self.block}, attempt {self.attempt}, study {self.study.hex()[:16]}"
        )


@dataclass(slots=True)
class Study:
    """An approved study and its charges."""

    title: str
    cap: Cap
    unit: ProtectedUnit = WHOLE_SUBJECT
    revoked: bool = False
    charges: list[float] = field(default_factory=list)
    n_aborted: int = 0

    def __str__(self) -> str:
        return f"study '{self.title}'"


class Books:
    """Studies, claimed blocks, used slots and notes, according to the entries so far."""

    def __init__(self) -> None:
        self.studies: dict[bytes, Study] = {}
        self.releases: dict[Slot, Entry] = {}
        self.aborted: set[Slot] = set()
        self.burnt: set[Slot] = set()
        self.notes: list[Entry] = []
        self._claims: dict[bytes, dict[tuple[int, int], str]] = defaultdict(dict)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry in sequence; refuse an invalid one, which this site cannot have written."""
        try:
            self._apply(entry)
        except (KeyError, TypeError, InputError):
            raise TamperedError(f"entry {entry.seq} of the ledger is invalid; it was forged") from None

    def _apply(self, entry: Entry) -> None:
        if entry.kind == "note":
            entry.read(Note)
            self.notes.append(entry)
        if entry.kind in ("genesis", "head-rebuilt", "key", "note"):
            return
        study = _present(entry.study)
        match entry.kind:
            case "study" if study not in self.studies:
                approval = entry.read(Approval)
                self.studies[study] = Study(
                    approval.title,
                    Cap(approval.epsilon, approval.delta),
                    ProtectedUnit(approval.neighbour, approval.units_per_subject),
                )
            case "revoke":
                self.studies[study].revoked = True
            case "claim":
                self._claims[study][_block(entry)] = entry.read(Claim).incarnation
            case "release" | "burn" | "abort":
                self._apply_to_slot(entry, Slot(study, *_block(entry), _present(entry.slot)))
            case _:
                raise TypeError(entry.kind)

    def _apply_to_slot(self, entry: Entry, slot: Slot) -> None:
        study = self.studies[slot.study]
        if entry.kind == "release":
            self.releases[slot] = entry
            study.charges.append(_present(entry.mu2))
        elif entry.kind == "burn":
            self.burnt.add(slot)
        else:
            self.aborted.add(slot)
            study.n_aborted += 1

    def approved(self, study: bytes) -> Study:
        """Return an approved study; refuse one that is unknown or revoked."""
        known = self.studies.get(study)
        if known is None:
            raise NotApprovedError(f"study {study.hex()[:16]} is not approved at this site; nothing was sent")
        # defence: revoked-approvals
        if known.revoked:
            raise NotApprovedError(f"the approval of {known} was revoked at this site; nothing was sent")
        return known

    def all_charges(self) -> list[float]:
        """Return every charge of every study, including revoked ones."""
        return [charge for study in self.studies.values() for charge in study.charges]

    def check_claim(self, study: bytes, block: int, attempt: int) -> None:
        """Refuse a block that is not strictly after all earlier blocks of its study."""
        self.approved(study)
        last = self.last_claim(study)
        # defence: blocks-only-grow-by-the-ledger
        if (block, attempt) <= last:
            raise ProtocolError(
                f"block {block}, attempt {attempt} of study {study.hex()[:16]} is not after block {last[0]}, "
                f"attempt {last[1]}, which this site already used; block numbers only grow"
            )

    def last_claim(self, study: bytes) -> tuple[int, int]:
        """Return the last (block, attempt) claimed for a study, (-1, -1) if there is none."""
        return max(self._claims[study], default=(-1, -1))

    def stored(self, slot: Slot, request: bytes, participants: tuple[str, ...]) -> Entry | None:
        """Return the release that already answered this exact request, None if the slot is unused."""
        entry = self.releases.get(slot)
        if entry is None:
            return None
        # defence: one-request-for-a-slot
        if entry.request != request or entry.read(ReleaseDetail).participants != participants:
            raise SlotUsedError(f"{slot} already answered another request; a new slot is needed")
        return entry

    def check_fresh(self, slot: Slot, incarnation: str) -> None:
        """Refuse a slot unless its unused mask is in the memory of this incarnation."""
        owner = self._claims[slot.study].get((slot.block, slot.attempt))
        if owner is None:
            raise ProtocolError(f"{slot} was not claimed at this site; claim its block first")
        # defence: slots-of-a-dead-process
        if slot in self.burnt or owner != incarnation:
            raise SlotBurntError(f"{slot} is used up: its mask was touched or lost; a new block is needed")


def _block(entry: Entry) -> tuple[int, int]:
    return _present(entry.block), _present(entry.attempt)


def _present(value: Field | None) -> Field:
    if value is None:
        raise TypeError("a field is missing")
    return value
