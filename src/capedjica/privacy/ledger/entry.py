"""One entry of the ledger: its fields, its canonical encoding and its hash in the chain.

Entry k carries ``hash_k = SHA-256(fields of k, digest of its sealed message, hash_{k-1})`` over an
encoding in which different fields never give the same bytes. By collision resistance, one hash therefore
determines every entry up to it, including its messages.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from capedjica.privacy.ledger.errors import TamperedError
from capedjica.privacy.neighbour import Neighbour

Value = int | float | str | bytes | None
Kind = Literal[
    "genesis", "study", "revoke", "claim", "release", "burn", "abort", "head-rebuilt", "key", "note"
]

GENESIS_HASH: Final = bytes(32)
_CHAIN: Final = b"capedjica ledger entry 1\0"
_BINDING: Final = b"capedjica ledger message 1\0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Detail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of one kind of entry, stored as readable JSON."""


class Genesis(Detail, frozen=True):
    """The first entry: the random name of this ledger, in hexadecimal."""

    ledger: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]

    @property
    def name(self) -> bytes:
        """The name as 16 bytes."""
        return bytes.fromhex(self.ledger)


class Approval(Detail, frozen=True, omit_defaults=True):
    """A study that may charge up to (epsilon, delta) for one unit: a subject or a single time point.

    Fields with their default value are omitted from the JSON, so that the hashes of entries written before
    these fields existed do not change.
    """

    title: str
    epsilon: float
    delta: float
    neighbour: Neighbour = "subject"
    units_per_subject: int = 1


class Claim(Detail, frozen=True):
    """A claimed block of masks, which exist only in the memory of one incarnation."""

    incarnation: str


class ReleaseDetail(Detail, frozen=True):
    """A message: the participating sites, a description and the number of values."""

    participants: tuple[str, ...]
    what: str
    numbers: int


class Note(Detail, frozen=True):
    """The reason for a revocation, used-up slot, abort or rebuilt head; or a note, which charges nothing."""

    reason: str


class KeyChange(Detail, frozen=True):
    """A change of the site's key: both public keys and the old key's signature, in hexadecimal."""

    old: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    new: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


AnyDetail = TypeVar("AnyDetail", bound=Detail)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger, in column order; ``None`` if the kind has no such field.

    ``digest`` is the SHA-256 of the sealed message. ``time_us`` is in microseconds since 1970 (UTC) by the
    site's own clock; it is for information only. The order is given by ``seq``.
    """

    seq: int
    kind: Kind
    time_us: int
    study: bytes | None
    block: int | None
    attempt: int | None
    slot: int | None
    request: bytes | None
    mu2: float | None
    detail: str
    previous: bytes
    digest: bytes | None = None
    hash: bytes = b""

    @property
    def when(self) -> datetime:
        """The time of the entry in UTC."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    def read(self, kind: type[AnyDetail]) -> AnyDetail:
        """Decode the detail; a detail that does not parse was edited."""
        try:
            return msgspec.json.decode(self.detail, type=kind)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise TamperedError(f"entry {self.seq} of the ledger cannot be read; it was edited") from None

    def binding(self) -> bytes:
        """Return the associated data of the sealed message: all fields known before it is sealed."""
        return _BINDING + encode(astuple(self)[: COLUMNS.index("digest")])

    def chain_hash(self) -> bytes:
        """Return the SHA-256 of the canonical encoding of all fields except the hash itself."""
        return hashlib.sha256(_CHAIN + encode(astuple(self)[: COLUMNS.index("hash")])).digest()

    def chained(self, digest: bytes | None) -> Entry:
        """Return the entry with the digest of its sealed message and its hash filled in."""
        with_digest = replace(self, digest=digest)
        return replace(with_digest, hash=with_digest.chain_hash())


def linked(entries: Iterable[Entry], seq: int, previous: bytes) -> Iterator[Entry]:
    """Yield entries that form a chain after entry ``seq`` with hash ``previous``; refuse any other."""
    for entry in entries:
        seq += 1
        if entry.seq != seq:
            raise TamperedError(f"entry {seq} of the ledger is missing; entry {entry.seq} is in its place")
        if entry.chain_hash() != entry.hash:
            raise TamperedError(f"entry {seq} of the ledger was edited or moved")
        if entry.previous != previous:
            raise TamperedError(
                f"entry {seq} of the ledger does not follow entry {seq - 1}; one was replaced"
            )
        previous = entry.hash
        yield entry


COLUMNS: Final = tuple(f.name for f in fields(Entry))


def encode(values: tuple[Value, ...]) -> bytes:
    """Encode values as type, length and content, so that different tuples never give the same bytes."""
    return b"".join(_encode_one(value) for value in values)


def _encode_one(value: Value) -> bytes:
    match value:
        case None:
            tag, content = b"N", b""
        case int():
            tag, content = b"I", struct.pack(">q", value)
        case float():
            tag, content = b"R", struct.pack(">d", value)
        case str():
            tag, content = b"T", value.encode("utf-8", "surrogateescape")
        case bytes():
            tag, content = b"B", value
    return tag + struct.pack(">Q", len(content)) + content
