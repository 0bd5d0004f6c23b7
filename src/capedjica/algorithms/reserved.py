"""Room for what a site keeps of all its participants, in bounded memory.

It is allocated before the first scan is read, for as much as any scans could need, so that whether there is
enough does not depend on the data. Up to `IN_MEMORY` bytes it is memory. Beyond, it is a file without a name,
which only this process can open and which vanishes with it: its pages are mapped when they are used, and
unmapped when others have been used since. The operating system keeps as many of them as it has memory to
spare, but the process needs only `IN_MEMORY` bytes, however many participants there are.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from capedjica.errors import InputError

IN_MEMORY: Final = 1 << 24
"""Number of bytes up to which room is memory, and of a file's pages that are mapped at a time."""

# Meant for large files, unlike /tmp, which is memory on many systems (systemd, "Using /tmp/ and /var/tmp/
# safely"). The files have no name there.
_LARGE_FILES: Final = Path("/var/tmp")  # noqa: S108
# The file system cannot allocate without writing.
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Reserved:
    """Allocated bytes, to be used as arrays.

    Parameters
    ----------
    n_bytes : int
        How many; they are zero at first.
    what : str
        For what, in the plural, for the error if there is no such room.
    """

    def __init__(self, n_bytes: int, what: str) -> None:
        self._touched = 0
        try:
            self._file = None if n_bytes <= IN_MEMORY else _mapped(n_bytes)
        except OSError as error:
            raise InputError(
                f"{what} need {n_bytes / 1e9:.1f} GB on disk, which {folder()} does not have ({error}); set "
                "TMPDIR to a folder with more room, or use a smaller scan_length"
            ) from None
        # The system assigns physical memory only when a page is written: full(), not zeros().
        memory = np.full(n_bytes, 0, dtype=np.uint8) if self._file is None else self._file
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)

    @property
    def on_disk(self) -> bool:
        """Whether it is a file."""
        return self._file is not None

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the first bytes as an array, which shares them with all others."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._bytes[:size].view(dtype).reshape(shape)

    def touch(self, n_bytes: int) -> None:
        """Note that so many bytes are about to be used, once; others may have to be read again.

        Nothing is lost: pages that were written and unmapped are still in the file.
        """
        self._touched += n_bytes
        if self._file is not None and self._touched > IN_MEMORY:
            self._touched = n_bytes
            if hasattr(mmap, "MADV_DONTNEED"):
                self._file.madvise(mmap.MADV_DONTNEED)


def folder() -> Path:
    """Return where files are: in TMPDIR if that is set, otherwise where large temporary files belong."""
    if not os.environ.get("TMPDIR") and os.access(_LARGE_FILES, os.W_OK | os.X_OK):
        return _LARGE_FILES
    return Path(tempfile.gettempdir())


def _mapped(n_bytes: int) -> mmap.mmap:
    # Allocating would fail, too, but only after it filled the disk, which other programs need.
    free = shutil.disk_usage(folder()).free
    if n_bytes > free:
        raise OSError(f"{free / 1e9:.1f} GB are free")
    with tempfile.TemporaryFile(dir=folder()) as file:
        _allocate(file, n_bytes)
        return mmap.mmap(file.fileno(), n_bytes)


def _allocate(file: IO[bytes], n_bytes: int) -> None:
    """Assign the file its disk blocks: a mapped page without one would end the process when it is written."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    for start in range(0, n_bytes, IN_MEMORY):
        file.write(bytes(min(IN_MEMORY, n_bytes - start)))
    file.flush()
