"""The ledger of a site: every release is recorded and charged once, before it leaves, within the cap."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.privacy import validate
from capedjica.privacy.charges import Cap, charge, total
from capedjica.privacy.ledger import checks
from capedjica.privacy.ledger.account import Sent, Summary, Totals, as_json, sent, totals
from capedjica.privacy.ledger.books import Slot
from capedjica.privacy.ledger.chain import Chain
from capedjica.privacy.ledger.entry import Approval, Claim, Entry, Note, ReleaseDetail
from capedjica.privacy.ledger.errors import LedgerError, SlotBurntError
from capedjica.privacy.ledger.head import Sign, Verify, write_atomically
from capedjica.privacy.ledger.policy import Policy
from capedjica.privacy.neighbour import WHOLE_SUBJECT, ProtectedUnit


class Ledger:
    """An append-only, crash-safe record of every release of a site; opened with :meth:`open`.

    A release goes through four states, each durable before the next: nothing; recorded with its charge
    and its bytes (one transaction); covered by the signed head; handed out. A crash at any moment leaves, at
    worst, a charge without a sent message, never a sent message without its charge. A repeated request gets
    the stored bytes and is not charged again.

    Masks are kept in memory only. A block belongs to the *incarnation* (one call of ``open``) that claimed
    it; for any other incarnation its unused slots are used up.

    Objects may be shared between threads. After a fork the child process must open the ledger again, because
    it would otherwise hold the same masks as its parent.
    """

    def __init__(self, chain: Chain, policy: Policy) -> None:
        self._chain = chain
        self._policy = policy
        self._incarnation = os.urandom(16).hex()
        self._touched: set[Slot] = set()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_key: bytes,
        sign: Sign,
        verify: Verify,
        policy: Policy,
        head_path: str | os.PathLike[str],
        timeout: float = 30.0,
        rebuild_head: bool = False,
    ) -> Self:
        """Open or create a ledger, and verify all its entries against the chain and the head.

        Parameters
        ----------
        path : path
            The ledger file; its directory must exist.
        storage_key : bytes
            32 secret bytes under which messages are encrypted at rest.
        sign, verify : callables
            ``sign(data) -> signature`` and ``verify(signature, data) -> bool`` of the site's Ed25519
            identity; ``verify`` must return False for malformed bytes rather than raise.
        policy : Policy
            The caps of the site.
        head_path : path
            Location of the signed head, preferably on another disk and not in the same backup as the
            ledger. A ledger older than its head is refused.
        timeout : float
            Seconds to wait for another process that uses the ledger.
        rebuild_head : bool
            Accept a missing or unreadable head and write a new one, which is itself recorded. A
            readable head that contradicts the ledger is still refused.
        """
        chain = Chain(
            Path(path).absolute(),
            Path(head_path).absolute(),
            checks.secret_or_hash("storage_key", storage_key),
            sign,
            verify,
            validate.positive("timeout", timeout),
            rebuild_head,
        )
        return cls(chain, policy)

    def close(self) -> None:
        """Close the file; any use afterwards is an error."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self._chain.path)!r}, {len(self._chain)} entries)"

    def change_key(self, *, storage_key: bytes, old: bytes, new: bytes) -> None:
        """Change to a new key of the site, in one entry that the old key signs, and close the ledger.

        Open the ledger again with the new key, which then signs the head. Until then the old head is compared
        with the ledger, so a crash in between loses nothing. A process that still has the ledger open with
        the old key is refused.

        Parameters
        ----------
        storage_key : bytes
            32 secret bytes of the new key.
        old, new : bytes
            The Ed25519 public keys of both.
        """
        self._chain.change_key(
            checks.secret_or_hash("storage_key", storage_key),
            checks.secret_or_hash("old", old),
            checks.secret_or_hash("new", new),
        )

    def note(self, text: str, sealed: bytes = b"") -> None:
        """Record an event with its time, and ``sealed`` encrypted under the key; charges nothing."""
        reason = checks.text("text", text)
        with self._chain.writing():
            self._chain.append("note", Note(reason), message=sealed)

    def notes(self) -> list[tuple[str, bytes]]:
        """Return the text and the sealed data of all notes, in order."""
        with self._chain.reading():
            return [(note.read(Note).reason, self._chain.message(note)) for note in self._chain.books.notes]

    # Studies and blocks

    def register_study(self, study: bytes, title: str, cap: Cap, unit: ProtectedUnit = WHOLE_SUBJECT) -> None:
        """Approve a study, identified by its hash, for at most ``cap`` for each protected ``unit``.

        Approving it again with the same arguments changes nothing. A cap cannot be raised and a revoked
        approval cannot be restored: a changed study is a different study.
        """
        study, title = checks.secret_or_hash("study", study), checks.text("title", title)
        most = self._policy.per_study
        if cap.mu2 > most.mu2:
            raise BudgetExceededError(
                f"study '{title}' requests {cap}, but this site's limit for one study is {most}"
            )
        with self._chain.writing():
            if study not in self._chain.books.studies:
                approval = Approval(title, cap.epsilon, cap.delta, unit.neighbour, unit.per_subject)
                self._chain.append("study", approval, study)
                return
            known = self._chain.books.approved(study)
            if (known.title, known.cap, known.unit) != (title, cap, unit):
                raise InputError(
                    f"study {study.hex()[:16]} is already approved as '{known.title}' for {known.cap} "
                    f"for each {known.unit.named()}, got '{title}' for {cap} for each {unit.named()}"
                )

    def revoke(self, study: bytes, reason: str) -> None:
        """Revoke the approval of a study: nothing more is sent for it, not even stored bytes."""
        study, reason = checks.secret_or_hash("study", study), checks.text("reason", reason)
        with self._chain.writing():
            self._chain.books.approved(study)
            self._chain.append("revoke", Note(reason), study)

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Claim a block of masks for this incarnation; block numbers must increase, also across restarts.

        Raises
        ------
        ProtocolError
            If (block, attempt) is not after every earlier one of the study, or the study is not approved.
        """
        study = checks.secret_or_hash("study_hash", study_hash)
        place = checks.natural("block", block), checks.natural("attempt", attempt)
        with self._chain.writing():
            self._chain.books.check_claim(study, *place)
            self._chain.append("claim", Claim(self._incarnation), study, *place)

    # Releases

    def release(
        self,
        study: bytes,
        block: int,
        attempt: int,
        slot: int,
        participants: Collection[str],
        request_hash: bytes,
        mu: float,
        make_message: Callable[[], bytes],
        summary: Summary,
    ) -> bytes:
        r"""Record, charge and return the answer to a request, or return the stored answer to a repeated one.

        Parameters
        ----------
        study : bytes
            Hash of the approved study (32 bytes).
        block, attempt, slot : int
            The mask to use, from a block claimed by this incarnation.
        participants : collection of str
            The sites of this release.
        request_hash : bytes
            Hash of the public state and the query (32 bytes).
        mu : float
            The cost of the release: :math:`\mu^2` is charged. Infinity for a release without privacy.
        make_message : callable
            Draws the noise, uses the mask and returns the bytes. Called at most once for a slot, and only if
            the charge is within the caps. If it raises, nothing is charged and the slot is used up, since its
            mask may have been used.
        summary : Summary
            A short description of the message.

        Returns
        -------
        bytes
            The message to send; recorded, charged and covered by the head before this returns. If
            StorageError is raised after the entry was recorded (the head could not be written), repeating
            the request returns the recorded bytes.
        """
        place = _place(study, block, attempt, slot)
        request = checks.secret_or_hash("request_hash", request_hash)
        numbers = checks.natural("summary.numbers", summary.numbers)
        names = checks.participants(participants)
        detail = ReleaseDetail(names, checks.text("summary.what", summary.what), numbers)
        asked = charge(mu)
        with self._burning(place), self._chain.writing():
            self._chain.books.approved(place.study)
            stored = self._chain.books.stored(place, request, names)
            # defence: stored-answers
            if stored is not None:
                return self._chain.message(stored)
            self._check_fresh(place)
            self._check_budget(asked, place.study)
            self._touched.add(place)
            message = checks.message(make_message())
            # defence: record-before-sending
            self._chain.append("release", detail, *place, request=request, mu2=asked, message=message)
        return message

    def record_abort(self, study: bytes, block: int, attempt: int, slot: int, reason: str) -> None:
        """Record that a release was aborted because a site was lost; it stays charged."""
        place, reason = _place(study, block, attempt, slot), checks.text("reason", reason)
        with self._chain.writing():
            if place not in self._chain.books.releases:
                raise ProtocolError(f"{place} has no release to abort")
            if place not in self._chain.books.aborted:
                self._chain.append("abort", Note(reason), *place)

    def _check_fresh(self, place: Slot) -> None:
        # defence: slot-touched-before
        if place in self._touched:
            raise SlotBurntError(f"{place} is used up: its mask was touched; a new block is needed")
        self._chain.books.check_fresh(place, self._incarnation)

    def _check_budget(self, asked: float, study: bytes) -> None:
        books, policy = self._chain.books, self._policy
        approved = books.approved(study)
        cap = min(approved.cap, policy.per_study, key=lambda c: c.mu2)
        policy.check(asked, approved.charges, cap, str(approved))
        policy.check(asked, books.all_charges(), policy.total, "this site in total")

    @contextmanager
    def _burning(self, place: Slot) -> Iterator[None]:
        """Mark the slot as used up, in its own entry, if its mask was used and no message was recorded."""
        try:
            yield
        except BaseException:
            if place in self._touched:
                # If even this entry fails, the set in memory and the incarnation still keep the slot used up.
                with suppress(LedgerError), self._chain.writing():
                    books = self._chain.books
                    if place not in books.releases and place not in books.burnt:
                        self._chain.append("burn", Note("no message could be made"), *place)
            raise

    # Reading

    @property
    def head(self) -> bytes:
        """The current signed head, 128 bytes; it reveals the length of the ledger, so it is sent sealed."""
        with self._chain.reading():
            return self._chain.signed_head()

    def check_against(self, head: bytes) -> None:
        """Compare the ledger with one of its own heads, returned by another party.

        Raises
        ------
        RestoredError
            If the head is ahead of the ledger: an older copy was restored.
        TamperedError
            If it is not a head of this ledger, or its entry does not match the ledger.
        """
        with self._chain.reading():
            self._chain.compare(head)

    def verify_chain(self) -> int:
        """Verify all entries, messages and the head; return the number of entries."""
        with self._chain.reading():
            return self._chain.verify()

    def entries(self) -> list[Entry]:
        """Return all entries in order, after verifying them."""
        with self._chain.reading():
            return self._chain.entries()

    def totals(self) -> Totals:
        """Return the charges of each study and in total."""
        with self._chain.reading():
            return totals(self._chain.books, self._policy)

    def check_affordable(self, study: bytes, mu2: float) -> None:
        r"""Check that further charges of :math:`\mu^2` in total fit within the caps; charges nothing.

        Raises
        ------
        BudgetExceededError
            If they would exceed a cap.
        """
        with self._chain.reading():
            self._check_budget(validate.nonnegative("mu2", mu2), checks.secret_or_hash("study", study))

    def spent(self, study: bytes) -> float:
        r"""Return the sum of the charges, :math:`\mu^2`, of a study approved at this site."""
        with self._chain.reading():
            return total(self._chain.books.approved(study).charges)

    def last_block(self, study: bytes) -> int:
        """Return the number of the last block claimed for a study, -1 if there is none."""
        with self._chain.reading():
            return self._chain.books.last_claim(study)[0]

    def outbox(self) -> Iterator[Sent]:
        """Yield every message ever handed out, in order, with its description and cost.

        If a process was killed after recording a message and before sending it, the message is included: it
        cannot be known whether it was sent, so it counts as sent.
        """
        with self._chain.reading():
            releases = list(self._chain.books.releases.items())
        for place, entry in releases:
            with self._chain.reading():
                item = sent(self._chain.books, place, entry, self._chain.message(entry))
            yield item

    def export(self, path: str | os.PathLike[str], *, messages: bool = False) -> None:
        """Write the whole ledger to one JSON file, with the unencrypted messages only if ``messages``."""
        target = Path(path).absolute()
        if target.resolve() in (self._chain.path.resolve(), self._chain.head_path.resolve()):
            raise InputError(f"the export must not replace the ledger or its head, got {target}")
        with self._chain.reading():
            entries = self._chain.entries()
            released = [entry for entry in entries if entry.kind == "release"] if messages else []
            plain = {entry.seq: self._chain.message(entry) for entry in released}
            spent = totals(self._chain.books, self._policy)
        write_atomically(target, as_json(entries, spent, plain))


def _place(study: bytes, block: int, attempt: int, slot: int) -> Slot:
    return Slot(
        checks.secret_or_hash("study", study),
        checks.natural("block", block),
        checks.natural("attempt", attempt),
        checks.natural("slot", slot),
    )
