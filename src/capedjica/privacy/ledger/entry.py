"""One line of the ledger: its fields, its canonical bytes and its place in the hash chain.

Entry k carries ``hash_k = SHA-256(fields of k, digest of its sealed message, hash_{k-1})`` over an
encoding in which different fields never give the same bytes. So whoever knows one hash knows, by
collision resistance, every entry up to it, messages included.
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
    """What only one kind of entry says, kept as JSON so that a person can read it."""


class Genesis(Detail, frozen=True):
    """The first entry: the random name of this ledger, in hexadecimal."""

    ledger: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]

    @property
    def name(self) -> bytes:
        """The name as 16 bytes."""
        return bytes.fromhex(self.ledger)


class Approval(Detail, frozen=True, omit_defaults=True):
    """A study that may charge up to (epsilon, delta) for one unit: a subject, or a time point of one.

    What has its default is left out of the JSON, as it was before there was another: a chain of hashes does
    not change.
    """

    title: str
    epsilon: float
    delta: float
    neighbour: Neighbour = "subject"
    units_per_subject: int = 1


class Claim(Detail, frozen=True):
    """A block of masks, which live in the memory of one incarnation only."""

    incarnation: str


class ReleaseDetail(Detail, frozen=True):
    """A message: between whom, what it says and how many numbers it has."""

    participants: tuple[str, ...]
    what: str
    numbers: int


class Note(Detail, frozen=True):
    """Why something was revoked, burnt, aborted or rebuilt; or a note by itself, which charges nothing."""

    reason: str


class KeyChange(Detail, frozen=True):
    """A new key of the site: both public keys and the old one's signature, in hexadecimal."""

    old: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    new: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


AnyDetail = TypeVar("AnyDetail", bound=Detail)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger, in the order of its columns; ``None`` where a kind has no such field.

    ``digest`` is the SHA-256 of the sealed message, ``time_us`` microseconds since 1970 (UTC) by the
    site's own clock: for people, never for order. The order is ``seq``.
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
        """Decode the detail; one that does not parse means that somebody else wrote it."""
        try:
            return msgspec.json.decode(self.detail, type=kind)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise TamperedError(f"entry {self.seq} of the ledger cannot be read; it was edited") from None

    def binding(self) -> bytes:
        """Associated data of the sealed message: everything the entry says before the message exists."""
        return _BINDING + encode(astuple(self)[: COLUMNS.index("digest")])

    def chain_hash(self) -> bytes:
        """SHA-256 of the canonical encoding of all fields but the hash itself."""
        return hashlib.sha256(_CHAIN + encode(astuple(self)[: COLUMNS.index("hash")])).digest()

    def chained(self, digest: bytes | None) -> Entry:
        """Return the entry with the digest of its sealed message and its hash filled in."""
        with_digest = replace(self, digest=digest)
        return replace(with_digest, hash=with_digest.chain_hash())


def linked(entries: Iterable[Entry], seq: int, previous: bytes) -> Iterator[Entry]:
    """Yield entries that follow one another, and the entry ``seq`` with hash ``previous``; refuse others."""
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
    """Encode values so that no two different tuples give the same bytes: type, length, content."""
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
