"""One process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capedjica.errors import InputError
from capedjica.tools.atomic_files import writing


class BusyError(InputError):
    """Another process holds what is wanted."""


def is_held(path: Path) -> bool:
    """Whether a process holds a file; nothing is made where it is missing."""
    if not path.exists():
        return False
    try:
        with locked(path, ""):
            return False
    except BusyError:
        return True


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a file, made where it is missing; BusyError with ``busy`` while another process does.

    The operating system lets go of it when the process ends, however it ends.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")  # noqa: SIM115 (closed below)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise BusyError(busy) from None
        except OSError as error:
            raise InputError(f"{path} cannot be locked: {error.strerror}") from None
        yield
