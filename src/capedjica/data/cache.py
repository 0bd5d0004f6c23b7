"""Cache of extracted time series at a site, readable only by its owner.

The name of an entry is a hash of everything from which it was computed: the features, and the path, size and
modification time of every file involved. A modified file therefore has no entry, and an entry is never out of
date. Every entry ends with a hash of its content; a damaged entry is computed again.

When the set of participants whose series may be cached changes, a new edition begins. A process that does not
know of it yet continues to write entries of the previous edition, whenever and however it ends; they are
removed when the new edition is opened.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from capedjica.data.scans import Features, Recording
from capedjica.errors import InputError
from capedjica.tools.arrays import Scan
from capedjica.tools.atomic_files import whole_file

_ENTRY: Final = re.compile(r"([0-9a-f]{16}-)?[0-9a-f]{64}\.npy|\..*\.npy\.[0-9a-f]{16}\.part")
_DIGEST_SIZE: Final = 32
_LONGEST_HEADER: Final = 1024


class SeriesCache:
    """Extracted time series in a folder that only its owner can open.

    Parameters
    ----------
    folder : Path
        Created when the first entry is stored.
    edition : str, optional
        Prefix of every name: 16 hexadecimal digits that depend on the set of participants.
    """

    def __init__(self, folder: Path, edition: str = "") -> None:
        self.folder = folder
        self._prefix = f"{edition}-" if edition else ""

    def series(self, features: Features, recording: Recording) -> Scan:
        """Return the cached or newly extracted series of a recording; raise whatever extraction raises."""
        if features.key is None:
            return features.series(recording)
        path = self.folder / f"{self._prefix}{_name(features.key, recording)}.npy"
        kept = _read(path)
        if kept is None:
            kept = features.series(recording)
            # Nothing depends on an entry: if it cannot be stored, the series is extracted again.
            with suppress(OSError):
                self._write(path, kept)
        return kept

    def _write(self, path: Path, series: Scan) -> None:
        """Write an entry atomically, with permissions that never let other users read it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        numbers, header = np.ascontiguousarray(series, dtype=np.float32), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(numbers))
        digest = hashlib.sha256(header.getvalue())
        digest.update(numbers.data)
        with whole_file(path, mode=0o600) as file:
            file.write(header.getvalue())
            file.write(numbers.data)
            file.write(digest.digest())

    def purge(self) -> int:
        """Remove every entry, and the folder if it is then empty; return the number of entries removed."""
        removed = self._remove(lambda _: True)
        with suppress(OSError):
            self.folder.rmdir()
        return removed

    def purge_other_editions(self) -> int:
        """Remove all entries of other editions, including unfinished ones; return the number removed."""
        own = (self._prefix, f".{self._prefix}")
        return self._remove(lambda name: not name.startswith(own))

    def _remove(self, unwanted: Callable[[str], bool]) -> int:
        try:
            names = (path.name for path in self._files())
            entries = [name for name in names if _ENTRY.fullmatch(name) and unwanted(name)]
            for name in entries:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder} cannot be purged: {error.strerror}") from None
        return len(entries)

    def _files(self) -> Iterator[Path]:
        return self.folder.iterdir() if self.folder.is_dir() else iter(())

    def __repr__(self) -> str:
        return "SeriesCache()"


def _name(key: bytes, recording: Recording) -> str:
    digest = hashlib.sha256(b"capedjica/series/1" + hashlib.sha256(key).digest())
    for path in recording.sources:
        digest.update(f"{os.path.abspath(path)}\0{_state(path)}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _state(path: Path) -> str:
    """Return a string that changes whenever a file does."""
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def _array(entry: NDArray[np.uint8]) -> Scan:
    """Return the array of a .npy file, in the memory of its content."""
    header = io.BytesIO(entry[:_LONGEST_HEADER].tobytes())
    np.lib.format.read_magic(header)
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(header)
    series: Scan = entry[header.tell() :].view(dtype).reshape(shape, order="F" if by_columns else "C")
    return series


def _read(path: Path) -> Scan | None:
    """Return an entry, or None if it does not exist or is damaged."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
        entry, digest = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
        if hashlib.sha256(entry.data).digest() != digest.tobytes():
            return None
        series = _array(entry)
    except (OSError, ValueError):
        return None
    return series
