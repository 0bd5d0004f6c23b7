"""The signed head: the length of the ledger and its last hash, stored in a separate location.

The chain alone cannot reveal that its end is missing. A head signed by the site can: the ledger had that
state once, so a ledger that is shorter, or differs at that entry, is not the one that the head was taken
from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy.ledger.errors import StorageError, TamperedError
from capedjica.tools.atomic_files import write_whole

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]

_MAGIC: Final = b"cpdjhd01"
NAME_BYTES: Final = 16
_BODY: Final = struct.Struct(f">8s{NAME_BYTES}sQ32s")
_SIGNATURE_BYTES: Final = 64
HEAD_BYTES: Final = _BODY.size + _SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Head:
    """The ledger's name, the sequence number of its last entry and that entry's chain hash."""

    ledger: bytes
    seq: int
    hash: bytes

    def signed(self, sign: Sign, verify: Verify) -> bytes:
        """Return the head as 128 bytes: magic, name, number, hash, Ed25519 signature."""
        body = _BODY.pack(_MAGIC, self.ledger, self.seq, self.hash)
        signature = sign(body)
        if len(signature) != _SIGNATURE_BYTES or not verify(signature, body):
            raise InputError("sign and verify must belong to the same Ed25519 identity; they do not match")
        return body + signature

    @classmethod
    def claimed(cls, data: bytes) -> Head | None:
        """Return the content of a head without checking its signature; None if it is not a head."""
        if not isinstance(data, bytes) or len(data) != HEAD_BYTES or not data.startswith(_MAGIC):
            return None
        return cls(*_BODY.unpack(data[: _BODY.size])[1:])

    @classmethod
    def parse(cls, data: bytes, verifier: Callable[[int], Verify], source: str) -> Head:
        """Parse a signed head strictly; ``source`` names its origin in the error message.

        ``verifier`` maps an entry number to the verification function of the key in force at that entry.
        """
        head = cls.claimed(data)
        if head is None:
            raise TamperedError(f"{source} is not a ledger head of {HEAD_BYTES} bytes")
        # defence: the-old-key-is-out-of-force
        if not verifier(head.seq)(data[_BODY.size :], data[: _BODY.size]):
            raise TamperedError(f"{source} was not signed by this site")
        return head

    @classmethod
    def readable(cls, data: bytes, verifier: Callable[[int], Verify]) -> bool:
        """Return whether ``data`` is a head signed by this site."""
        try:
            cls.parse(data, verifier, "it")
        except TamperedError:
            return False
        return True


def read_head(path: Path) -> bytes | None:
    """Return the content of the head file, None if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read the ledger's head {path}: {error.strerror}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file atomically: a crash leaves the old or the new content, and the new one is durable."""
    try:
        write_whole(path, data, mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
