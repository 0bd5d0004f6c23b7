"""Lengths of scans that everybody may know: public numbers, never read off the data.

How long a scan is, is somebody's data: the neighbour of a data set may hold one of another length. So clips
and noise follow from ``scan_length``, which a study agrees on, and memory from :func:`longest_scan`: time
points beyond it do not take part, anywhere. What the scans of a site are reduced to is kept in memory that is
reserved for scans of that length before the first one is read, so that whether it suffices does not depend on
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.tools.arrays import Scan

TYPICAL_SCAN: Final = 250
"""Time points of a typical scan where a study does not say otherwise."""

LONGEST_SCAN: Final = 1 << 14
"""Time points of the longest scan that any study takes."""

# How many times as long as a typical scan one may be.
_ROOM: Final = 4


def check_scan_length(scan_length: int) -> int:
    """Return the length of a typical scan, between 1 and `LONGEST_SCAN`; refuse any other."""
    length = validate.count("scan_length", scan_length)
    if length > LONGEST_SCAN:
        raise InputError(f"scan_length must be at most {LONGEST_SCAN:,} time points, got {length:,}")
    return length


def longest_scan(scan_length: int) -> int:
    """Return how many time points of a scan take part: the first 4 times those of a typical scan."""
    return min(_ROOM * check_scan_length(scan_length), LONGEST_SCAN)


class CutScans(Sequence[Scan]):
    """Scans of which only the first time points take part.

    Parameters
    ----------
    scans : sequence of arrays (time, features)
        Read one at a time.
    longest : int
        How many time points take part.
    """

    def __init__(self, scans: Sequence[Scan], longest: int) -> None:
        self._scans, self.longest = scans, longest

    def __len__(self) -> int:
        return len(self._scans)

    def __iter__(self) -> Iterator[Scan]:
        # Unlike a generator, it goes on after a scan that cannot be read.
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Scan: ...

    @overload
    def __getitem__(self, index: slice) -> CutScans: ...

    def __getitem__(self, index: int | slice) -> Scan | CutScans:
        if isinstance(index, slice):
            return CutScans(self._scans[index], self.longest)
        return self._scans[index][: self.longest]


def reserve(n_scans: int, longest: int, width: int) -> NDArray[np.float32]:
    """Return memory for scans of the greatest length, (n_scans * longest, width), every page of it in use."""
    try:
        memory = np.empty((n_scans * longest, width), dtype=np.float32)
        # The system hands out addresses freely, and memory only when it is written to.
        memory.fill(0)
    except MemoryError:
        size = n_scans * longest * width * 4 / 1e9
        raise InputError(
            f"{n_scans} scans of up to {longest} time points need {size:.1f} GB of memory, more than there "
            "is: a study with a smaller scan_length needs less"
        ) from None
    return memory
