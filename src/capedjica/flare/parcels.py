"""Questions to sites that may take long to answer, be stopped, or be cut off for a while: what travels.

Every question travels in a parcel with a number of its own. A site keeps working on a question while the
aggregator, every few seconds, asks for it again: as long as the site says that it is busy, it is alive. So a
statistic may take an hour and a dead site is still noticed within ``Patience.silence`` of the aggregator's
end, :mod:`capedjica.coordinator.flare.courier`. A parcel that got lost is sent again; the site's end,
:mod:`capedjica.site.flare.desk`, knows it by its number and works on it once.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from capedjica.tools.version import __version__

# All parties of a study run the same version: what they compute must be the same to the last bit.
VERSION: Final = __version__
# How long a site keeps the aggregator waiting before it says that it is busy.
HOLD_SECONDS: Final = 2.0
# How much longer its answer may be on its way.
TRANSIT_SECONDS: Final = 10.0

Number = Annotated[bytes, Meta(min_length=8, max_length=8)]
Version = Annotated[str, Meta(max_length=64)]
State = Literal["done", "busy", "unknown", "refused"]


class Parcel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A question on its way; without data, only the answer is asked for."""

    version: Version
    number: Number
    data: bytes | None


class Slip(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a site gives back: the answer, that it is not ready, that it was never asked, or why not."""

    version: Version
    state: State
    data: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_parcels: Final = msgspec.msgpack.Decoder(Parcel)
_slips: Final = msgspec.msgpack.Decoder(Slip)


def write_parcel(number: bytes, question: bytes | None) -> bytes:
    """Return the bytes of a parcel of this version."""
    return _encoder.encode(Parcel(VERSION, number, question))


def read_parcel(data: bytes) -> Parcel:
    """Return a parcel; ValueError or RecursionError for other bytes."""
    return _parcels.decode(data)


def write_slip(state: State, data: bytes) -> bytes:
    """Return the bytes of a slip of this version."""
    return _encoder.encode(Slip(VERSION, state, data))


def read_slip(data: bytes) -> Slip:
    """Return a slip; ValueError or RecursionError for other bytes."""
    return _slips.decode(data)


def plain(text: str) -> str:
    """Return a peer's words as a person may see them: short, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:200])
