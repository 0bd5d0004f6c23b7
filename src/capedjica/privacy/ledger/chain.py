"""The hash chain on disk: file, verified entries, sealed messages and signed head, kept consistent."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from capedjica.errors import InputError
from capedjica.privacy.ledger.books import Books
from capedjica.privacy.ledger.entry import GENESIS_HASH, Detail, Entry, Genesis, Kind, Note, linked
from capedjica.privacy.ledger.errors import RestoredError, StorageError, TamperedError, WrongKeyError
from capedjica.privacy.ledger.head import NAME_BYTES, Head, Sign, Verify, read_head, write_atomically
from capedjica.privacy.ledger.keys import Keys, Period, open_keys
from capedjica.privacy.ledger.log import Log
from capedjica.privacy.ledger.vault import Vault

_GIVEN: Final = "the given head"


class Chain:
    """Entries appended one by one, each verified before it enters the books.

    ``books`` and the tip only ever hold committed entries: entries appended by a transaction are read back
    and verified by the next one. A transaction that is rolled back therefore leaves no trace in memory
    either.

    Parameters
    ----------
    path, head_path : Path
        The ledger file, and the separate location of its signed head.
    storage_key : bytes
        32 secret bytes.
    sign, verify : callables
        Signing and verification with the site's Ed25519 identity.
    timeout : float
        Seconds to wait for another process.
    rebuild_head : bool
        Whether a head that is missing, damaged or not signed by this site may be replaced, which is recorded.
        A head of another ledger or of a later entry is never replaced.
    """

    def __init__(
        self,
        path: Path,
        head_path: Path,
        storage_key: bytes,
        sign: Sign,
        verify: Verify,
        timeout: float,
        rebuild_head: bool,
    ) -> None:
        if path == head_path:
            raise InputError(f"head_path must differ from the path of the ledger, got {path} for both")
        self.path, self.head_path = path, head_path
        self.books = Books()
        self._sign, self._verify = sign, verify
        self._pid, self._lock, self._closed = os.getpid(), threading.RLock(), False
        self._log = Log(path, timeout)
        try:
            self._start(storage_key, rebuild_head)
        except BaseException:
            self._log.close()
            raise

    def _start(self, storage_key: bytes, rebuild_head: bool) -> None:
        with self._log.transaction():
            if self._log.is_new:
                self._create(storage_key)
            self._log.check_schema()
        # Only after the commit: a head written earlier would survive a crash that rolls the commit back.
        with self._log.transaction():
            self._unlock(storage_key)
            self._catch_up()
            rebuilding = rebuild_head and self._head_is_lost()
            if rebuilding:
                self.append("head-rebuilt", Note("the head was missing or unreadable"))
            else:
                self._check_head_file()
        with self._log.transaction():
            self._catch_up()
            self._write_head()

    def _create(self, storage_key: bytes) -> None:
        if read_head(self.head_path) is not None:
            raise RestoredError(
                f"the ledger {self.path} is missing or empty, but its head {self.head_path} exists; "
                "restore the latest copy of the ledger"
            )
        self._log.create()
        name = os.urandom(NAME_BYTES)
        self._tip = Head(name, 0, GENESIS_HASH)
        self._keys = Keys(storage_key, [Period(1, Vault(storage_key, name), self._verify)])
        # The empty message is used to recognise the storage key.
        self.append("genesis", Genesis(name.hex()), message=b"")

    def _unlock(self, storage_key: bytes) -> None:
        """Read the ledger's name from its first entry, and check the key against the sealed messages."""
        genesis = next(linked(self._log.entries(), 0, GENESIS_HASH), None)
        if genesis is None or genesis.kind != "genesis":
            raise TamperedError("entry 1 of the ledger is missing")
        name = genesis.read(Genesis).name
        self._tip = Head(name, 0, GENESIS_HASH)
        changes = [entry for entry in self.entries() if entry.kind == "key"] if self._log.has("key") else []
        try:
            self._keys = open_keys(storage_key, self._verify, name, genesis, changes, self._log.sealed)
        except WrongKeyError as error:
            self._check_age(name)
            raise WrongKeyError(f"{self.path}: {error}") from None

    def _check_age(self, name: bytes) -> None:
        """Refuse a ledger that predates the current key, if that key signed a later head of it."""
        data = read_head(self.head_path)
        if data is None or not Head.readable(data, lambda _: self._verify):
            return
        head = Head.parse(data, lambda _: self._verify, "its head")
        if head.ledger == name and self._log.hash_at(head.seq) is None:
            raise RestoredError(
                f"the ledger {self.path} predates the current key, but its head {self.head_path} was signed "
                f"at entry {head.seq}: an older copy was restored; replace it with the latest copy"
            )

    def close(self) -> None:
        """Close the file; any use afterwards is an error."""
        with self._lock:
            self._closed = True
            self._log.close()

    def __len__(self) -> int:
        return self._tip.seq

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one consistent state of the file, with the books up to date."""
        with self._exclusive(), self._log.transaction("DEFERRED"):
            self._catch_up()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Append in one transaction, with the books up to date; the head is written before it ends."""
        with self._exclusive():
            with self._log.transaction():
                self._settle()
                yield
            # Under the lock again, so that the heads of two processes cannot overtake each other.
            # defence: head-before-sending
            with self._log.transaction():
                self._settle()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise StorageError("a ledger cannot be used after a fork; open it again in the child process")
        with self._lock:
            if self._closed:
                raise StorageError(f"the ledger {self.path} is closed")
            yield

    def _settle(self) -> None:
        self._catch_up()
        if self._check_head_file() < self._tip.seq:
            self._write_head()

    def _catch_up(self) -> None:
        """Verify and apply the entries committed since the last read, by any process."""
        entries = self._log.entries(self._tip.seq or None)
        if self._tip.seq:
            last = next(entries, None)
            if last is None or (last.seq, last.hash) != (self._tip.seq, self._tip.hash):
                raise RestoredError(
                    f"entry {self._tip.seq} of {self.path} was replaced while in use; nothing was sent"
                )
        for entry in linked(entries, self._tip.seq, self._tip.hash):
            if entry.kind == "key" and entry.seq > self._keys.present.first:
                raise WrongKeyError(
                    f"the key of the ledger {self.path} was changed while in use; open it with the new key"
                )
            self.books.apply(entry)
            self._tip = Head(self._tip.ledger, entry.seq, entry.hash)

    # Entries; inside a transaction

    def append(
        self,
        kind: Kind,
        detail: Detail,
        study: bytes | None = None,
        block: int | None = None,
        attempt: int | None = None,
        slot: int | None = None,
        *,
        request: bytes | None = None,
        mu2: float | None = None,
        message: bytes | None = None,
    ) -> None:
        """Append one entry, at most one per transaction, and its message, sealed under the current key."""
        now, text = time.time_ns() // 1000, msgspec.json.encode(detail).decode()
        seq, previous = self._tip.seq + 1, self._tip.hash
        entry = Entry(seq, kind, now, study, block, attempt, slot, request, mu2, text, previous)
        sealed = None if message is None else self._keys.present.vault.seal(message, entry.binding())
        digest = None if sealed is None else hashlib.sha256(sealed).digest()
        self._log.append(entry.chained(digest), sealed)

    def entries(self) -> list[Entry]:
        """Return all entries, verified again from the first."""
        return list(linked(self._log.entries(), 0, GENESIS_HASH))

    def message(self, entry: Entry) -> bytes:
        """Return the message of an entry as it was handed out."""
        vault = self._keys.at(entry.seq).vault
        message = vault.unseal(self._log.sealed(entry), entry.binding())
        if message is None:
            raise TamperedError(f"the message of entry {entry.seq} of the ledger cannot be unsealed")
        return message

    def verify(self) -> int:
        """Verify file, schema, entries, sealed messages and head; return the number of entries."""
        self._log.check_file()
        self._log.check_schema()
        entries = self.entries()
        spoken_of = {entry.seq for entry in entries if entry.digest is not None and self._log.sealed(entry)}
        for seq in self._log.message_numbers() - spoken_of:
            raise TamperedError(f"message {seq} of the ledger was inserted; no entry refers to it")
        self._check_head_file()
        return len(entries)

    # The key

    def change_key(self, storage_key: bytes, old: bytes, new: bytes) -> None:
        """Change to another key from the next entry on, and close this chain, which holds the old key."""
        with self._exclusive():
            try:
                with self._log.transaction():
                    self._settle()
                    name, seq, previous = self._tip.ledger, self._tip.seq + 1, self._tip.hash
                    detail, message = self._keys.hand_over(name, seq, previous, old, new, self._sign)
                    self._keys = Keys(storage_key, [Period(seq, Vault(storage_key, name), self._verify)])
                    self.append("key", detail, message=message)
            finally:
                self.close()

    # The head; inside a transaction

    def signed_head(self) -> bytes:
        """Return the signed head of the current chain."""
        return self._tip.signed(self._sign, self._verify)

    def compare(self, data: bytes, source: str = _GIVEN) -> int:
        """Compare the chain with a signed head, and return that head's sequence number."""
        return self._fit(Head.parse(data, self._keys.verifier, source), source)

    def _fit(self, head: Head, source: str) -> int:
        if head.ledger != self._tip.ledger:
            raise TamperedError(f"the ledger {self.path} is not the one that {source} belongs to")
        if head.seq > self._tip.seq:
            raise RestoredError(
                f"the ledger {self.path} has {self._tip.seq} entries, but {source} was signed at entry "
                f"{head.seq}: an older copy was restored; replace it with the latest copy"
            )
        if self._log.hash_at(head.seq) != head.hash:
            raise TamperedError(f"entry {head.seq} of the ledger is not the one that {source} was signed for")
        return head.seq

    def _check_head_file(self) -> int:
        data, source = read_head(self.head_path), f"its head {self.head_path}"
        if data is not None:
            if not Head.readable(data, self._keys.verifier):
                self._check_claim(data, source)
            # defence: head-in-the-second-place
            return self.compare(data, source)
        # The head is first written when the ledger has one entry, so a longer ledger has lost its head.
        if self._tip.seq > 1:
            raise RestoredError(
                f"the ledger {self.path} cannot be compared with {source}, which is missing; restore it, or, "
                "if it is permanently lost, accept the ledger as it is with: capedjica ledger rebuild-head"
            )
        return 0

    def _head_is_lost(self) -> bool:
        """Return whether the head is missing, or cannot be verified and does not contradict the ledger."""
        data = read_head(self.head_path)
        if data is None:
            return True
        if Head.readable(data, self._keys.verifier):
            return False
        self._check_claim(data, f"its head {self.head_path}")
        return True

    def _check_claim(self, data: bytes, source: str) -> None:
        """Refuse a ledger that contradicts an unverified head: a later key may have signed that head."""
        claimed = Head.claimed(data)
        if claimed is not None:
            # defence: a-head-that-speaks-of-more
            self._fit(claimed, source)

    def _write_head(self) -> None:
        write_atomically(self.head_path, self.signed_head())
