"""Public scan lengths, which are never derived from the data.

The length of a scan is personal data: a neighbouring data set may contain one of a different length. Clipping
and noise therefore depend on ``scan_length``, on which a study agrees, and memory on :func:`longest_scan`:
time points beyond it are not used anywhere. The reduced scans of a site are stored in room that is allocated
for scans of that length before the first one is read (:mod:`capedjica.algorithms.reserved`), so that whether
it suffices does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from capedjica.algorithms.reserved import Reserved
from capedjica.errors import InputError
from capedjica.privacy import validate
from capedjica.tools.arrays import Scan

TYPICAL_SCAN: Final = 250
"""Default number of time points of a typical scan."""

LONGEST_SCAN: Final = 1 << 14
"""Largest number of time points of a scan in any study."""

# Largest length of a scan, in multiples of a typical one.
_ROOM: Final = 4


def check_scan_length(scan_length: int) -> int:
    """Return the length of a typical scan; raise an error unless it is between 1 and `LONGEST_SCAN`."""
    length = validate.count("scan_length", scan_length)
    if length > LONGEST_SCAN:
        raise InputError(f"scan_length must be at most {LONGEST_SCAN:,} time points, got {length:,}")
    return length


def longest_scan(scan_length: int) -> int:
    """Return how many time points of a scan are used: at most 4 times those of a typical scan."""
    return min(_ROOM * check_scan_length(scan_length), LONGEST_SCAN)


class CutScans(Sequence[Scan]):
    """Scans truncated to their first time points.

    Parameters
    ----------
    scans : sequence of arrays (time, features)
        Scans, read one at a time.
    longest : int
        Number of time points to use.
    """

    def __init__(self, scans: Sequence[Scan], longest: int) -> None:
        self._scans, self.longest = scans, longest

    def __len__(self) -> int:
        return len(self._scans)

    def __iter__(self) -> Iterator[Scan]:
        # Unlike a generator, a map continues after a scan that cannot be read.
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Scan: ...

    @overload
    def __getitem__(self, index: slice) -> CutScans: ...

    def __getitem__(self, index: int | slice) -> Scan | CutScans:
        if isinstance(index, slice):
            return CutScans(self._scans[index], self.longest)
        return self._scans[index][: self.longest]


def reserve(n_scans: int, longest: int, width: int) -> Reserved:
    """Return room for scans of the largest length in single precision, (n_scans * longest, width)."""
    return Reserved(4 * n_scans * longest * width, f"{n_scans} scans of up to {longest} time points")
