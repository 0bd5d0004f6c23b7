"""File locks between processes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capedjica.errors import InputError
from capedjica.tools.atomic_files import writing


class BusyError(InputError):
    """Another process holds the lock."""


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock file; a missing file is not created."""
    if not path.exists():
        return False
    try:
        with locked(path, ""):
            return False
    except BusyError:
        return True


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file, created if missing; raise BusyError with ``busy`` if another process holds it.

    The operating system releases the lock when the process ends, however it ends.
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
