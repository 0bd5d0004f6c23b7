"""The keys of a ledger: each key seals messages and signs heads from one entry on, until the next key.

A change of key is an entry of the chain. The old key signs the entry, so its holder agreed to the change. The
sealed message of the entry, under the new key, is the old storage key. The new key can therefore unseal every
earlier message, and no other entry is rewritten: all charges stay as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from capedjica.errors import InputError
from capedjica.privacy.ledger.entry import Entry, KeyChange, encode
from capedjica.privacy.ledger.errors import TamperedError, WrongKeyError
from capedjica.privacy.ledger.head import Sign, Verify
from capedjica.privacy.ledger.vault import Vault

_STATEMENT: Final = b"capedjica ledger key change 1\0"


@dataclass(frozen=True, slots=True)
class Period:
    """The period of one key: its first entry, its vault for messages and its verification of heads."""

    first: int
    vault: Vault
    verify: Verify


class Keys:
    """All keys of a ledger, in order.

    Parameters
    ----------
    storage_key : bytes
        The current storage key.
    periods : sequence of Period
        All periods; the last is that of the current key.
    """

    __slots__ = ("_periods", "_storage_key")

    def __init__(self, storage_key: bytes, periods: Sequence[Period]) -> None:
        self._storage_key, self._periods = storage_key, tuple(periods)

    @property
    def present(self) -> Period:
        """The period of the current key."""
        return self._periods[-1]

    def at(self, seq: int) -> Period:
        """Return the period that contains an entry."""
        return next(period for period in reversed(self._periods) if period.first <= max(seq, 1))

    def verifier(self, seq: int) -> Verify:
        """Return the function that verifies a head signed at an entry."""
        return self.at(seq).verify

    def hand_over(
        self, ledger: bytes, seq: int, previous: bytes, old: bytes, new: bytes, sign: Sign
    ) -> tuple[KeyChange, bytes]:
        """Return the detail of entry ``seq``, which changes the key, and the message to seal in it."""
        if old == new:
            raise InputError("the new key must differ from the old key")
        statement = _statement(ledger, seq, previous, old, new)
        signature = sign(statement)
        if not verifies(old, signature, statement):
            raise InputError("the old public key is not the key that signs this ledger")
        return KeyChange(old.hex(), new.hex(), signature.hex()), self._storage_key

    def __repr__(self) -> str:
        return f"Keys({len(self._periods)} periods)"


def open_keys(
    storage_key: bytes,
    verify: Verify,
    ledger: bytes,
    genesis: Entry,
    changes: Sequence[Entry],
    sealed: Callable[[Entry], bytes],
) -> Keys:
    """Return all keys of a ledger, given the current one; each key unseals the key before it."""
    periods = list(_periods(storage_key, verify, ledger, [genesis, *changes], sealed))
    return Keys(storage_key, periods[::-1])


def _periods(
    storage_key: bytes,
    verify: Verify,
    ledger: bytes,
    begun: Sequence[Entry],
    sealed: Callable[[Entry], bytes],
) -> Iterator[Period]:
    """Yield the periods that begin with these entries, the last first."""
    follower: str | None = None
    for entry in reversed(begun):
        vault = Vault(storage_key, ledger)
        message = vault.unseal(sealed(entry), entry.binding())
        if message is None:
            raise WrongKeyError(_wrong_key(entry, follower is not None))
        yield Period(entry.seq, vault, verify)
        if entry.kind == "key":
            change = _agreed(entry, ledger, follower)
            storage_key, follower = message, change.old
            verify = partial(verifies, bytes.fromhex(change.old))


def _wrong_key(entry: Entry, uncovered: bool) -> str:
    if uncovered:
        return f"the key that was in force at entry {entry.seq} of the ledger cannot be unsealed"
    when = "" if entry.kind == "genesis" else f", whose key was changed on {entry.when:%Y-%m-%d %H:%M} UTC"
    return f"the storage key is not that of the ledger{when}"


def _agreed(entry: Entry, ledger: bytes, follower: str | None) -> KeyChange:
    """Return a key change after checking the old key's signature and that the next change continues it."""
    change = entry.read(KeyChange)
    old, new = bytes.fromhex(change.old), bytes.fromhex(change.new)
    statement = _statement(ledger, entry.seq, entry.previous, old, new)
    # defence: the-old-key-agrees
    if not verifies(old, bytes.fromhex(change.signature), statement) or follower not in (None, change.new):
        raise TamperedError(f"the change of key in entry {entry.seq} of the ledger was not agreed to")
    return change


def _statement(ledger: bytes, seq: int, previous: bytes, old: bytes, new: bytes) -> bytes:
    return _STATEMENT + encode((ledger, seq, previous, old, new))


def verifies(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether an Ed25519 signature is valid for a public key; False for malformed input."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
