"""Outliers among the recordings of a site, detected without a study.

A recording is an outlier if it differs from more than half of the others. Outliers are not excluded: they are
notes for the site to review before it enrols participants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from capedjica.data.scans import Problem, Recording
from capedjica.site.participants.cohort import Measures

# A scan shorter than this fraction of the median length was probably interrupted.
_SHORT: Final = 0.5
_ALL_THE_SAME: Final = "the participant is not excluded"


@dataclass(frozen=True)
class Measured:
    """A readable recording with its participant and measures."""

    person: str
    recording: Recording
    measures: Measures


def oddities(measured: Sequence[Measured]) -> Iterator[Problem]:
    """Yield recordings that differ from the others in grid, number of time points or confounds."""
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
            usual = f"about {typical:g}, the median of this site"
            yield _odd(one, f"{one.measures.n_timepoints} time points", usual)
        if 2 * n_with > len(scans) and one.recording.confounds is None:
            yield _odd(one, "no confounds table", f"one, as for {n_with} of {len(scans)}")


def _odd(one: Measured, found: str, usual: str) -> Problem:
    return Problem(one.recording.path, found, f"{usual}; {_ALL_THE_SAME}", fatal=False, subject=one.person)
