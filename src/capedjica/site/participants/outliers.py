"""Recordings unlike those of the others at a site: no study is needed to see that something is odd.

What is usual is what more than half of the recordings have. Nobody is left out for being odd: these are notes
for the site, which looks before it enrols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from capedjica.data.scans import Problem, Recording
from capedjica.site.participants.cohort import Measures

# A scan of less than this part of the typical length was probably broken off.
_SHORT: Final = 0.5
_ALL_THE_SAME: Final = "the participant takes part all the same"


@dataclass(frozen=True)
class Measured:
    """A recording that could be read, whose it is, and what it says of itself."""

    person: str
    recording: Recording
    measures: Measures


def oddities(measured: Sequence[Measured]) -> Iterator[Problem]:
    """Yield which recordings have another grid, fewer time points or no confounds, unlike the others."""
    scans = [one for one in measured if one.recording.row is None]
    if len(scans) < 3:
        return
    grid, times = Counter(one.measures.grid for one in scans).most_common(1)[0]
    typical = median(one.measures.n_timepoints for one in scans)
    n_with = sum(one.recording.confounds is not None for one in scans)
    for one in scans:
        if 2 * times > len(scans) and one.measures.grid != grid:
            yield _odd(one, one.measures.grid, f"{grid}, as in {times} of {len(scans)}")
        if one.measures.n_timepoints < _SHORT * typical:
            usual = f"about {typical:g}, as is typical here"
            yield _odd(one, f"{one.measures.n_timepoints} time points", usual)
        if 2 * n_with > len(scans) and one.recording.confounds is None:
            yield _odd(one, "no table of confounds", f"one, as beside {n_with} of {len(scans)}")


def _odd(one: Measured, found: str, usual: str) -> Problem:
    return Problem(one.recording.path, found, f"{usual}; {_ALL_THE_SAME}", fatal=False, subject=one.person)
