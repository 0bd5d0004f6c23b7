"""Files that are whole or not there at all, and that outlast a loss of power."""

from __future__ import annotations

import os
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

    Until then it is a hidden draft beside its place. An error removes the draft; that of a process that was
    killed makes way for the next.

    Parameters
    ----------
    path : Path
        Its place. A file that is there is replaced.
    mode : int
        Who may read it, from its first byte on; the umask takes away from it.
    new : bool
        Refuse to replace a file, by TakenError; also one that another process writes at the same time.
    """
    own = f".{secrets.token_hex(8)}" if new else ""
    draft = path.with_name(f".{path.name}{own}.part")
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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
