"""Questions to sites that may take long to answer, be stopped, or be cut off for a while: what travels.

Every question travels in a parcel that is known by the question's hash. A site keeps working on a question
while the aggregator, every few seconds, asks for it again: as long as the site says that it is busy, it is
alive. So a statistic may take an hour and a dead site is still noticed within ``Patience.silence`` of the
aggregator's end, :mod:`capedjica.coordinator.flare.transport`.
A parcel that got lost is sent again; the site's end, :mod:`capedjica.site.agent.responder`, knows it by its
hash and works on it once.

All that comes back is signed by the site for the question of that hash
(:func:`capedjica.mechanisms.messages.read_reply`), so it does not matter who carries it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import ProtocolError
from capedjica.mechanisms.messages import VERSION, question_hash

# How long a site keeps the aggregator waiting before it says that it is busy.
HOLD_SECONDS: Final = 2.0
# How much longer its answer may be on its way.
TRANSIT_SECONDS: Final = 10.0

Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Parcel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A question on its way; without data, only the answer is asked for."""

    version: int
    hash: Hash
    data: bytes | None


class Notice(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """What the coordinator tells the sites outside of the contract, signed by the coordinator's key.

    Attributes
    ----------
    study : bytes
        The hash of the study.
    what : str
        "over": the study has ended, and there will be no more questions.
    when : str
        By the coordinator's clock.
    signature : bytes
        Over all of the above.
    """

    version: int
    study: Hash
    what: Annotated[str, Meta(pattern="^over$")]
    when: Annotated[str, Meta(max_length=40)]
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    @property
    def content(self) -> bytes:
        """What is signed."""
        return b"capedjica/notice/1\0" + _encoder.encode(msgspec.structs.replace(self, signature=b""))


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Parcel | Notice]] = msgspec.msgpack.Decoder(Parcel | Notice)


def write_parcel(question: bytes, hash_: bytes | None = None) -> bytes:
    """Return the bytes of a parcel with a question, or, with its hash alone, of one that asks again."""
    return _encoder.encode(Parcel(VERSION, hash_ or question_hash(question), None if hash_ else question))


def write_notice(notice: Notice) -> bytes:
    """Return the bytes of a notice."""
    return _encoder.encode(notice)


def read_parcel(data: bytes) -> Parcel | Notice:
    """Return what came, or raise ProtocolError whatever the bytes."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"a parcel of {len(data)} bytes cannot be read") from None
