"""The ledger file: an append-only SQLite database.

It uses a rollback journal (``journal_mode=DELETE``) with ``synchronous=EXTRA`` and no write-ahead log:

- the ledger stays one file, so a copy of it is complete, even on a network drive, where the shared memory
  of a write-ahead log does not work;
- ``FULL`` syncs the database but not the removal of the journal, so a power failure right after the
  commit could undo it; ``EXTRA`` syncs the directory too. Once COMMIT returns, the entry is durable.

Every write runs under ``BEGIN IMMEDIATE``, so what was read before an entry is still valid when the entry is
written, even if other processes have the file open.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from capedjica.errors import InputError
from capedjica.privacy.ledger.entry import COLUMNS, Entry, Kind, Value
from capedjica.privacy.ledger.errors import StorageError, TamperedError

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x43504A4C
_OLDEST_SQLITE: Final = (3, 37, 0)  # the first with STRICT tables

_SCHEMA: Final = (
    """CREATE TABLE entry (
        seq INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        time_us INTEGER NOT NULL,
        study BLOB,
        block INTEGER,
        attempt INTEGER,
        slot INTEGER,
        request BLOB,
        mu2 REAL CHECK (mu2 >= 0),
        detail TEXT NOT NULL,
        previous BLOB NOT NULL,
        digest BLOB,
        hash BLOB NOT NULL UNIQUE
    ) STRICT""",
    "CREATE TABLE message (seq INTEGER PRIMARY KEY REFERENCES entry (seq), sealed BLOB NOT NULL) STRICT",
    "CREATE UNIQUE INDEX one_approval ON entry (study) WHERE kind = 'study'",
    # defence: one-claim-per-block
    "CREATE UNIQUE INDEX one_claim ON entry (study, block, attempt) WHERE kind = 'claim'",
    "CREATE UNIQUE INDEX one_release ON entry (study, block, attempt, slot) WHERE kind = 'release'",
    *(
        f"CREATE TRIGGER {table}_{action} BEFORE {action.upper()} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for table in ("entry", "message")
        for action in ("update", "delete")
    ),
    # INSERT OR REPLACE deletes without firing the delete triggers above.
    *(
        f"CREATE TRIGGER {table}_append BEFORE INSERT ON {table} "  # noqa: S608
        f"WHEN NEW.seq <= (SELECT max(seq) FROM {table}) "
        "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for table in ("entry", "message")
    ),
)
_SETTINGS: Final = (
    "journal_mode = DELETE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "foreign_keys = ON",
    "trusted_schema = OFF",
    "cell_size_check = ON",
)
_REASONS: Final = {
    sqlite3.SQLITE_BUSY: "it has been in use by another process for longer than the timeout",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only, or was moved or replaced while in use",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its directory exists and is writable",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_CORRUPT: "the file is corrupt",
    sqlite3.SQLITE_NOTADB: "the file is not a ledger",
    sqlite3.SQLITE_IOERR: "the disk reported an error",
}


class Log:
    """Access to the rows of the file, without interpreting them.

    Parameters
    ----------
    path : Path
        The file; if it does not exist, it is created readable by its owner only.
    timeout : float
        Seconds to wait for another process.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StorageError(f"a ledger needs SQLite 3.37 or newer, found {sqlite3.sqlite_version}")
        self.path = path
        _touch(path)
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        try:
            # Text that is not UTF-8 must reach the chain hash, which detects it, and not fail in the driver.
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            for setting in _SETTINGS:
                self._execute(f"PRAGMA {setting}")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file; any use afterwards is an error."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        # The driver cannot decode SQLite's own message if that quotes a damaged schema.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
            reason = _REASONS.get(code & 0xFF, " ".join(str(error).split()))
            raise StorageError(f"cannot use the ledger {self.path}: {reason}; nothing was sent") from error

    def _execute(self, sql: str, values: Sequence[Value] = ()) -> list[Any]:
        with self._translated():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self, mode: str = "IMMEDIATE") -> Iterator[None]:
        """Run a block as one transaction: committed as a whole, or rolled back if it raises."""
        if self._connection.in_transaction:
            raise StorageError("make_message must not use the ledger that is recording it; nothing was sent")
        self._execute(f"BEGIN {mode}")
        try:
            yield
            self._execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    @property
    def is_new(self) -> bool:
        """Whether the file is an empty database and not yet a ledger."""
        return self._pragma("application_id") == 0 and not self._schema()

    def create(self) -> None:
        """Write the schema into an empty database."""
        for statement in _SCHEMA:
            self._execute(statement)
        self._execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def check_schema(self) -> None:
        """Refuse a database that is not a ledger, has a newer schema, or whose schema was altered."""
        if self._pragma("application_id") != _APPLICATION_ID:
            raise InputError(f"{self.path} is an SQLite database, but not a ledger")
        version = self._pragma("user_version")
        if version > SCHEMA_VERSION:
            raise InputError(
                f"the ledger {self.path} has schema {version}, written by a newer version of capedjica; "
                f"this version supports schema {SCHEMA_VERSION}"
            )
        if version != SCHEMA_VERSION or self._schema() != set(_SCHEMA):
            raise TamperedError(f"the tables or triggers of the ledger {self.path} were changed")

    def check_file(self) -> None:
        """Refuse a file that fails SQLite's integrity check."""
        findings = self._execute("PRAGMA integrity_check(1)")[0][0]
        if findings != "ok":
            raise TamperedError(f"the ledger {self.path} is corrupt: {findings}")

    def _pragma(self, name: str) -> int:
        return int(self._execute(f"PRAGMA {name}")[0][0])

    def _schema(self) -> set[str]:
        rows = self._execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {sql for (sql,) in rows}

    def append(self, entry: Entry, sealed: bytes | None) -> None:
        """Append an entry and its sealed message."""
        marks = ", ".join("?" * len(COLUMNS))
        row = [getattr(entry, column) for column in COLUMNS]
        self._execute(f"INSERT INTO entry VALUES ({marks})", row)  # noqa: S608
        if sealed is not None:
            self._execute("INSERT INTO message VALUES (?, ?)", (entry.seq, sealed))

    def entries(self, first: int | None = None) -> Iterator[Entry]:
        """Yield the entries in order, unverified, all or from number ``first`` on."""
        columns, lowest = ", ".join(COLUMNS), -(1 << 63) if first is None else first
        query = f"SELECT {columns} FROM entry WHERE seq >= ? ORDER BY seq"  # noqa: S608
        for row in self._execute(query, (lowest,)):
            yield Entry(*row)

    def has(self, kind: Kind) -> bool:
        """Return whether there is an entry of a kind."""
        return bool(self._execute("SELECT 1 FROM entry WHERE kind = ? LIMIT 1", (kind,)))

    def hash_at(self, seq: int) -> bytes | None:
        """Return the hash of one entry, None if there is no such entry."""
        rows = self._execute("SELECT hash FROM entry WHERE seq = ?", (seq,))
        return rows[0][0] if rows else None

    def sealed(self, entry: Entry) -> bytes:
        """Return the sealed message of an entry after checking it against the entry's digest."""
        rows = self._execute("SELECT sealed FROM message WHERE seq = ?", (entry.seq,))
        if not rows:
            raise TamperedError(f"the message of entry {entry.seq} of the ledger was removed")
        sealed: bytes = rows[0][0]
        if not isinstance(sealed, bytes) or hashlib.sha256(sealed).digest() != entry.digest:
            raise TamperedError(f"the message of entry {entry.seq} of the ledger was edited")
        return sealed

    def message_numbers(self) -> set[int]:
        """Return the sequence numbers that have a sealed message."""
        return {seq for (seq,) in self._execute("SELECT seq FROM message")}

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r})"


def _touch(path: Path) -> None:
    """Create the file, accessible to its owner only; SQLite gives its journal the same permissions."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StorageError(f"cannot open the ledger {path}: {error.strerror}") from error
