"""What the aggregator and its carrier say to each other; the carrier can load it without the aggregator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

# As what the carrier's processes connect: the relay of a job, and who hands jobs to the server.
RELAY: Final = "relay"
DISPATCHER: Final = "dispatcher"

# Bytes of a frame in which a relay hands back what all sites returned, of however many there are.
MOST_BYTES: Final = 1 << 31

Name = Annotated[str, Meta(max_length=64)]


class Post(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Parcels for sites by name, and how long to wait for what they return."""

    parcels: dict[Name, bytes]
    seconds: float


class Order(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is wanted of the dispatcher."""

    what: Literal["sites", "submit", "idle", "has ended"]
    job: Annotated[str, Meta(max_length=200)] = ""
    seed: int | None = None


class Report(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What came of it.

    Attributes
    ----------
    server : str
        By which one server is told from the next: when it began.
    heard : dict
        The sites that are connected, and how many seconds ago each was heard.
    idle : tuple of str
        The sites that are connected and run no job.
    job : str
        The name of the job that was submitted.
    ended : bool
        Whether a job has ended.
    error : str
        Why nothing came of it.
    """

    server: Annotated[str, Meta(max_length=100)] = ""
    heard: dict[Name, float] = {}
    job: Annotated[str, Meta(max_length=200)] = ""
    ended: bool = False
    error: Annotated[str, Meta(max_length=1000)] = ""
    idle: tuple[Name, ...] = ()


Replies = dict[Name, bytes]


def write_replies(replies: Mapping[str, bytes]) -> bytes:
    """Return the bytes of what sites returned."""
    return msgspec.msgpack.encode(dict(replies))


def read_replies(data: bytes) -> dict[str, bytes]:
    """Return what sites returned; nothing for other bytes."""
    try:
        return msgspec.msgpack.decode(data, type=Replies)
    except (ValueError, RecursionError):
        return {}
