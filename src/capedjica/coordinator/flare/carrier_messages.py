"""Messages between the aggregator and its carrier, in a module that does not import the aggregator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

# Roles of the carrier's processes: the relay of a job, and the dispatcher that submits jobs to the server.
RELAY: Final = "relay"
DISPATCHER: Final = "dispatcher"

# Largest frame in which a relay returns the replies of all sites, for any number of sites.
MOST_BYTES: Final = 1 << 31

Name = Annotated[str, Meta(max_length=64)]


class Post(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Parcels by site, and the time limit for the replies."""

    parcels: dict[Name, bytes]
    seconds: float


class Order(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Order to the dispatcher."""

    what: Literal["sites", "submit", "idle", "has ended"]
    job: Annotated[str, Meta(max_length=200)] = ""
    seed: int | None = None


class Report(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Dispatcher's report on an order.

    Attributes
    ----------
    server : str
        Start time of the server, which identifies it.
    heard : dict
        Connected sites, with the seconds since each was last heard from.
    idle : tuple of str
        Connected sites that run no job.
    job : str
        Name of the submitted job.
    ended : bool
        Whether the job has ended.
    error : str
        Reason for failure; empty on success.
    """

    server: Annotated[str, Meta(max_length=100)] = ""
    heard: dict[Name, float] = {}
    job: Annotated[str, Meta(max_length=200)] = ""
    ended: bool = False
    error: Annotated[str, Meta(max_length=1000)] = ""
    idle: tuple[Name, ...] = ()


Replies = dict[Name, bytes]


def write_replies(replies: Mapping[str, bytes]) -> bytes:
    """Encode the replies of sites."""
    return msgspec.msgpack.encode(dict(replies))


def read_replies(data: bytes) -> dict[str, bytes]:
    """Decode the replies of sites; empty if the bytes are invalid."""
    try:
        return msgspec.msgpack.decode(data, type=Replies)
    except (ValueError, RecursionError):
        return {}
