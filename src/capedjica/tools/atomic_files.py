"""Files that are whole or not there at all, and that outlast a loss of power."""

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
    """A file is in the place of a new one."""


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Say in words what cannot be written, and why not."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} cannot be written: {error.strerror}") from None


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666, new: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write into, which gets its name when it is complete and on disk; OSError if it cannot.

    Until then it is a hidden draft beside its place, another one for each writer. An error removes the draft;
    that of a process that was killed is removed by the next writer of the same file.

    Parameters
    ----------
    path : Path
        Its place. A file that is there is replaced.
    mode : int
        Who may read it, from its first byte on; the umask takes away from it.
    new : bool
        Refuse to replace a file, by TakenError; also one that another process writes at the same time.
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
    """Open a draft that is locked until it is closed, or until its process ends, however it ends."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        file = open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Where a file system has no locks nothing is swept.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        # Another writer may have swept it before it was locked.
        if draft.exists():
            return file
        file.close()


def _sweep(path: Path) -> None:
    """Remove the drafts of a file that no process holds any more."""
    drafts = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):
        for name in filter(drafts.fullmatch, os.listdir(path.parent)):
            with suppress(OSError), open(path.with_name(name), "r+b") as draft:
                fcntl.flock(draft, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(draft.name)


def _link(draft: Path, path: Path) -> None:
    """Give a draft its name; unlike a rename, a link fails where that is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise TakenError(f"{path} exists already and is not overwritten") from None
    draft.unlink()


def write_whole(path: Path, content: bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Write what a file holds, as :func:`whole_file` does."""
    with whole_file(path, mode=mode, new=new) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: those of new files are not when the files are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that nobody else can read from its first byte on; durably."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # defence: enrolment-is-private
        write_whole(file, content, mode=0o600)
