"""A hospital for the ledger's tests: fixed keys, a directory, and short ways to ask for releases."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, Policy, Summary
from capedjica.privacy.ledger.log import _SCHEMA

DELTA = 1e-5
SITES = ("berlin", "lima", "osaka")
STORAGE_KEY = bytes(range(32))
POLICY = Policy(total=Cap(8.0, DELTA), per_study=Cap(4.0, DELTA))
_IDENTITY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


STUDY = digest("study")


def verify_with(identity: Ed25519PrivateKey) -> Callable[[bytes, bytes], bool]:
    def verify(signature: bytes, data: bytes) -> bool:
        try:
            identity.public_key().verify(signature, data)
        except InvalidSignature:
            return False
        return True

    return verify


class Site:
    """Where the ledger and its head are, and how this site opens them."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger.sqlite"
        self.head_path = directory / "second-place" / "head"
        self.head_path.parent.mkdir(exist_ok=True)

    def open(self, **changes: Any) -> Ledger:
        settings: dict[str, Any] = {
            "storage_key": STORAGE_KEY,
            "sign": _IDENTITY.sign,
            "verify": verify_with(_IDENTITY),
            "policy": POLICY,
            "head_path": self.head_path,
        }
        return Ledger.open(changes.pop("path", self.path), **settings | changes)

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        """The file as an intruder sees it: no triggers, no checks, hurried writes; triggers put back."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        triggers = [statement for statement in _SCHEMA if "TRIGGER" in statement]
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("BEGIN IMMEDIATE")
            for statement in triggers:
                connection.execute(f"DROP TRIGGER {statement.split()[2]}")
            yield connection
            for statement in triggers:
                connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            connection.close()


def refuse_to_make() -> bytes:
    raise AssertionError("make_message was called")


def ask(ledger: Ledger, slot: int = 0, **changes: Any) -> bytes:
    """One release with everything filled in."""
    request: dict[str, Any] = {
        "study": STUDY,
        "block": 0,
        "attempt": 0,
        "slot": slot,
        "participants": SITES,
        "request_hash": digest(f"request {slot}"),
        "mu": 0.05,
        "make_message": lambda: os.urandom(40),
        "summary": Summary("gradient of the unmixing matrix", 5),
    }
    return ledger.release(**request | changes)


def begin(ledger: Ledger, epsilon: float = 2.0) -> Ledger:
    """Approve the study and claim its block 0."""
    ledger.register_study(STUDY, "Resting state", Cap(epsilon, DELTA))
    ledger.claim(STUDY, 0, 0)
    return ledger
