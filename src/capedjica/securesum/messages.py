"""Messages of a secure sum: exact encoding and strict parsing.

A message is a MessagePack array: its kind (which implies the round), the protocol version, the study hash,
the roster hash, block, attempt, sender, and then its own fields. A site's message is followed by 64 bytes,
its Ed25519 signature of everything before; other sites receive such messages unchanged inside the
aggregator's lists. The aggregator signs nothing, because the protocol does not rely on its statements.

================  ==============================  ====================================================
round             site to aggregator              aggregator to each site still taking part
================  ==============================  ====================================================
1 advertise keys  :class:`Advertisement`          :class:`KeyList`, the advertisements of U1
2 share keys      :class:`SharedKeys`             :class:`ShareList`, the shares dealt to it by U2
3 masked input    :class:`MaskedInput`            :class:`SurvivorList`, U3
4 agree           :class:`Agreement`              :class:`AgreementList`, at least t agreements on U3
5 unmask          :class:`Unmasking`
================  ==============================  ====================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import ProtocolError
from capedjica.securesum.identity import AGGREGATOR, NAME_PATTERN, SIGNATURE_BYTES, Identity
from capedjica.securesum.parameters import COUNTER_LIMIT, HASH_BYTES, PROTOCOL_VERSION, SumParameters, framed
from capedjica.securesum.shamir import SHARE_BYTES

PUBLIC_KEY_BYTES: Final = 32
# Two shares under AES-GCM with its tag of 16 bytes.
ENVELOPE_BYTES: Final = 2 * SHARE_BYTES + 16
# Upper bound on the size of a message without the vector, per site of the roster.
_BYTES_PER_SITE: Final = 1024

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Counter = Annotated[int, Meta(ge=0, le=COUNTER_LIMIT - 1)]
Hash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
PublicKey = Annotated[bytes, Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
Share = Annotated[bytes, Meta(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Envelope = Annotated[bytes, Meta(min_length=ENVELOPE_BYTES, max_length=ENVELOPE_BYTES)]


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The fields that every message is bound to; the kind of the message implies the round."""

    version: Counter
    study_hash: Hash
    roster_hash: Hash
    block: Counter
    attempt: Counter
    sender: Name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sender={self.sender!r}, block={self.block}, attempt={self.attempt})"


class Advertisement(Message, frozen=True):
    """Round 1: fresh X25519 public keys, one for sealing shares to the site and one for masks."""

    channel_key: PublicKey
    mask_key: PublicKey


class SharedKeys(Message, frozen=True):
    """Round 2: for each peer, sealed shares of b_u and of the secret mask key; and commitments to them."""

    seed_commitment: Hash
    envelopes: dict[Name, Envelope]
    seed_share_commitments: dict[Name, Hash]
    key_share_commitments: dict[Name, Hash]


class MaskedInput(Message, frozen=True):
    """Round 3: the masked vector as little-endian words."""

    words: memoryview


class Agreement(Message, frozen=True):
    """Round 4: the sender received the set of survivors with this hash, and no other set."""

    survivors_hash: Hash


class Unmasking(Message, frozen=True):
    """Round 5: a share of b_v for every survivor v, and of the mask key for every other site of U2."""

    seed_shares: dict[Name, Share]
    key_shares: dict[Name, Share]


class KeyList(Message, frozen=True):
    """Answer to round 1: the signed advertisements of U1."""

    advertisements: tuple[bytes, ...]


class ShareList(Message, frozen=True):
    """Answer to round 2: what the other sites of U2 sealed for the receiver."""

    envelopes: dict[Name, Envelope]


class SurvivorList(Message, frozen=True):
    """Answer to round 3: U3, the sites whose masked input arrived."""

    survivors: tuple[Name, ...]


class AgreementList(Message, frozen=True):
    """Answer to round 4: the signed agreements on U3."""

    agreements: tuple[bytes, ...]


SiteMessage = Advertisement | SharedKeys | MaskedInput | Agreement | Unmasking
AggregatorMessage = KeyList | ShareList | SurvivorList | AgreementList
Expected = TypeVar("Expected", bound=Message)

_encoder: Final = msgspec.msgpack.Encoder()
_site_decoder: Final[msgspec.msgpack.Decoder[SiteMessage]] = msgspec.msgpack.Decoder(SiteMessage)
_aggregator_decoder: Final[msgspec.msgpack.Decoder[AggregatorMessage]] = msgspec.msgpack.Decoder(
    AggregatorMessage
)


def header(parameters: SumParameters, sender: str) -> tuple[int, bytes, bytes, int, int, str]:
    """Return the fields with which every message of ``sender`` in this sum begins."""
    return (
        PROTOCOL_VERSION,
        parameters.study_hash,
        parameters.roster.hash,
        parameters.block,
        parameters.attempt,
        sender,
    )


def encode(message: Message) -> bytes:
    """Return the encoded bytes of an aggregator's message."""
    return _encoder.encode(message)


def encode_payload(message: Message) -> bytearray:
    """Return the encoded bytes of a site's message before signing."""
    # Allocated at full size from the start: a growing buffer would need half as much memory again.
    payload = bytearray(len(message.words) + _BYTES_PER_SITE if isinstance(message, MaskedInput) else 0)
    _encoder.encode_into(message, payload)
    return payload


def sign(payload: bytearray, identity: Identity) -> bytes:
    """Return the payload of a site's message followed by the site's signature of it."""
    return b"".join((payload, identity.sign(_signed_bytes(payload))))


def size_limit(parameters: SumParameters) -> int:
    """Return the size in bytes above which a message of this sum is refused without parsing."""
    return 8 * parameters.length + _BYTES_PER_SITE * (len(parameters.roster.sites) + 1)


def read_site_message(data: bytes, parameters: SumParameters, expected: type[Expected]) -> Expected:
    """Return the message in signed bytes; for any malformed bytes raise ProtocolError and nothing else."""
    if not SIGNATURE_BYTES < len(data) <= size_limit(parameters):
        raise ProtocolError(
            f"a message of {len(data)} bytes cannot be read: it is too short or too long for this sum"
        )
    view = memoryview(data)
    payload, signature = view[:-SIGNATURE_BYTES], view[-SIGNATURE_BYTES:]
    message = _decode(_site_decoder, payload)
    site = parameters.roster.site(message.sender)
    _check_header(message, parameters)
    if not isinstance(message, expected):
        raise ProtocolError(
            f"site {site.name} sent {type(message).__name__} in the round of {expected.__name__}: refused"
        )
    # defence: pinned-keys
    if not site.verify(bytes(signature), _signed_bytes(payload)):
        raise ProtocolError(
            f"{expected.__name__} of site {site.name} is not signed by that site's pinned key"
        )
    return message


def read_aggregator_message(data: bytes, parameters: SumParameters, expected: type[Expected]) -> Expected:
    """Return the aggregator's message in ``data``, or raise ProtocolError."""
    if len(data) > size_limit(parameters):
        raise ProtocolError(f"a message of {len(data)} bytes is too long for this sum")
    message = _decode(_aggregator_decoder, data)
    if message.sender != AGGREGATOR:
        raise ProtocolError(f"a message from the aggregator names {message.sender!r} as its sender")
    _check_header(message, parameters)
    if not isinstance(message, expected):
        raise ProtocolError(
            f"the aggregator sent {type(message).__name__} in the round of {expected.__name__}: refused"
        )
    return message


def listed(names: Collection[str]) -> str:
    """Return names from a message as text, at most ten of them."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(sorted(names)[:10]) + more


def check_distinct_keys(keys: Mapping[str, Advertisement]) -> None:
    """Refuse a public key that is used twice, that is, a copied or replayed key."""
    owners: dict[bytes, str] = {}
    for name, message in keys.items():
        for key in (message.channel_key, message.mask_key):
            if key in owners:
                raise ProtocolError(f"sites {owners[key]} and {name} advertised the same public key")
            owners[key] = name


_Decoded = TypeVar("_Decoded")


def _decode(decoder: msgspec.msgpack.Decoder[_Decoded], data: bytes | memoryview) -> _Decoded:
    try:
        return decoder.decode(data)
    # Every error of the decoder, and UnicodeDecodeError, is a ValueError.
    except ValueError as error:
        # The error may quote the message, so it is kept short and on one line.
        raise ProtocolError(f"a message of {len(data)} bytes cannot be read: {str(error)[:100]!a}") from None


def _check_header(message: Message, parameters: SumParameters) -> None:
    for field, wanted in zip(Message.__struct_fields__, header(parameters, message.sender), strict=True):
        given = getattr(message, field)
        if given != wanted:
            raise ProtocolError(
                f"a message of {message.sender} belongs to another {field.replace('_', ' ')}: "
                f"{_short(given)}, not {_short(wanted)}"
            )


def _short(value: object) -> str:
    return value.hex()[:16] + "…" if isinstance(value, bytes) else str(value)


def _signed_bytes(payload: bytearray | memoryview) -> bytes:
    return framed(b"capedjica/securesum/signature", hashlib.sha256(payload).digest())
