"""Files that outlast a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

from capedjica.errors import InputError


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: those of new files are not when the files are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it has its old content or its new one."""
    draft = path.with_name(f".{path.name}.part")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def write_private(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that nobody else can read from its first byte on; durably."""
    draft = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        # defence: enrolment-is-private
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        draft.replace(file)
        # defence: a-list-that-is-durable
        sync_folder(file.parent)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
