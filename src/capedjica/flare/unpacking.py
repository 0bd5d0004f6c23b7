"""What FLARE makes of the bytes it receives, and puts into those it sends.

FLARE's way of packing objects knows one that stands for a file. Whoever receives it and hands any part of a
message back, as FLARE does with cookies, sends the content of that file along; and one that comes as a file
is written to a folder that all users of the machine share. Another kind of object has its receiver ask third
parties for more. None of these is ever sent by a study: a party neither takes nor gives them, and a site
takes nothing but the few kinds that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn

from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager
from nvflare.fuel.utils.fobs.fobs import FOBS_TYPE, Packer
from nvflare.fuel.utils.fobs.fobs import get_class_name as name_of

# All that comes to a site: what is said about jobs, parcels, and of parcels above ten megabytes a part apart.
KNOWN: Final = frozenset(
    {
        "nvflare.apis.fl_context.FLContext",
        "nvflare.apis.job_def.JobMetaKey",
        "nvflare.apis.shareable.Shareable",
        "nvflare.fuel.utils.fobs.datum.DatumRef",
        "nvflare.private.admin_defs.Message",
    }
)
_FILE: Final = name_of(Datum)


def install() -> None:
    """Let this process read and write no file for a message, and fetch nothing for one."""
    # defence: files-are-not-taken
    _refuse_types(Packer, lambda name: name == _FILE)
    # defence: files-are-not-packed
    _pack_no_files(DatumManager)
    # defence: files-are-not-written
    lobs.get_datum_dir = _refuse_files
    # defence: nothing-is-fetched
    lobs.get_dot_handler = lambda kind: None


def take_known_types_only() -> None:
    """Let this process unpack nothing but the kinds of objects that come to a site."""
    _refuse_types(Packer, lambda name: name not in KNOWN)


def _refuse_types(kind: type[Packer], is_strange: Callable[[Any], bool]) -> None:
    plain = kind.unpack

    @wraps(plain)
    def unpack(packer: Packer, obj: Any) -> Any:
        # defence: kinds-of-objects
        if type(obj) is dict and FOBS_TYPE in obj and is_strange(obj[FOBS_TYPE]):
            raise ValueError(f"an object of a kind that is not expected: {obj[FOBS_TYPE]!r:.100}")
        return plain(packer, obj)

    kind.unpack = unpack


def _pack_no_files(kind: type[DatumManager]) -> None:
    plain = kind.externalize

    @wraps(plain)
    def externalize(manager: DatumManager, data: Any) -> Any:
        if isinstance(data, Datum):
            raise ValueError("a message is not to hold a file")
        return plain(manager, data)

    kind.externalize = externalize


def _refuse_files() -> NoReturn:
    raise ValueError("a message held a file")
