"""Message formats for questions to sites that may be slow, stopped or temporarily disconnected.

Every question is sent in a parcel that is identified by the question's hash. While a site works on a
question, the aggregator asks for the answer again every few seconds; as long as the site replies that it is
busy, it is alive. A statistic may therefore take an hour, and a dead site is still detected within
``Patience.silence`` (:mod:`capedjica.coordinator.flare.transport`). A lost parcel is sent again; the site
(:mod:`capedjica.site.agent.responder`) recognises it by its hash and processes it once.

Every reply is signed by the site for the question with that hash
(:func:`capedjica.mechanisms.messages.read_reply`), so the transport need not be trusted.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from capedjica.errors import ProtocolError
from capedjica.mechanisms.messages import VERSION, question_hash

# How long a site delays its reply before it answers that it is busy.
HOLD_SECONDS: Final = 2.0
# Additional time allowed for the transit of its answer.
TRANSIT_SECONDS: Final = 10.0

Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Parcel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A question in transit; without data, a repeated request for its answer."""

    version: int
    hash: Hash
    data: bytes | None


class Notice(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A notice of the coordinator to the sites outside the contract, signed with the coordinator's key.

    Attributes
    ----------
    study : bytes
        The hash of the study.
    what : str
        "over": the study has ended, and there will be no more questions.
    when : str
        Time of the notice by the coordinator's clock.
    signature : bytes
        The coordinator's signature of all of the above.
    """

    version: int
    study: Hash
    what: Annotated[str, Meta(pattern="^over$")]
    when: Annotated[str, Meta(max_length=40)]
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        return b"capedjica/notice/1\0" + _encoder.encode(msgspec.structs.replace(self, signature=b""))


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Parcel | Notice]] = msgspec.msgpack.Decoder(Parcel | Notice)


def write_parcel(question: bytes, hash_: bytes | None = None) -> bytes:
    """Return the bytes of a parcel with a question or, if its hash is given, of a repeated request."""
    return _encoder.encode(Parcel(VERSION, hash_ or question_hash(question), None if hash_ else question))


def write_notice(notice: Notice) -> bytes:
    """Return the bytes of a notice."""
    return _encoder.encode(notice)


def read_parcel(data: bytes) -> Parcel | Notice:
    """Return the parcel or notice in ``data``; raise ProtocolError for any malformed bytes."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"a parcel of {len(data)} bytes cannot be read") from None
