"""Atomic and durable writing of files."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from capedjica.errors import InputError


class TakenError(InputError):
    """A new file cannot be created because one already exists."""


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Convert OSError to an InputError that names what cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} cannot be written: {error.strerror}") from None


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666, new: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which is moved to ``path`` when it is complete and on disk.

    Until then it is a hidden draft in the same folder, with a different name for each writer. An error
    removes the draft; the draft of a killed process is removed by the next writer of the same file. Raises
    OSError if the file cannot be written.

    Parameters
    ----------
    path : Path
        The path of the file. An existing file is replaced.
    mode : int
        Permissions from the first byte on, subject to the umask.
    new : bool
        Raise TakenError instead of replacing a file, even one that another process writes concurrently.
    """
    _sweep(path)
    with _new_draft(path, mode) as file:
        draft = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if new:
                _link(draft, path)
            else:
                os.replace(draft, path)
            # defence: a-list-that-is-durable
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def _new_draft(path: Path, mode: int) -> IO[bytes]:
    """Open a draft that stays locked until it is closed or its process ends."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        file = open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # On a file system without locks no drafts are removed.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        # Another writer may have removed it before it was locked.
        if draft.exists():
            return file
        file.close()


def _sweep(path: Path) -> None:
    """Remove drafts of a file that are no longer held by any process."""
    drafts = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):
        for name in filter(drafts.fullmatch, os.listdir(path.parent)):
            with suppress(OSError), open(path.with_name(name), "r+b") as draft:
                fcntl.flock(draft, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(draft.name)


def _link(draft: Path, path: Path) -> None:
    """Move a draft to its final path; unlike a rename, a link fails if the path exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise TakenError(f"{path} already exists and is not overwritten") from None
    draft.unlink()


def write_whole(path: Path, content: bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Write the content of a file atomically (see :func:`whole_file`)."""
    with whole_file(path, mode=mode, new=new) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on disk, which syncing the files alone does not ensure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(file: Path, content: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only from the first byte on."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # defence: enrolment-is-private
        write_whole(file, content, mode=0o600)
