"""Read a site's participants one at a time, each as one (time, features) array.

There are two ways to read them. Before any budget is spent, :meth:`People.check` reports all problems to the
site. During a run nothing may depend on the data, so ``people[m]`` never fails: a participant whose
recordings can no longer be used is a subject without time points, who contributes zero. Only a lack of memory
is raised, because it may be caused by other subjects that are read at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.algorithms.parallel import InParallel
from capedjica.data.cache import SeriesCache
from capedjica.data.covariates import Covariates, covariates_of
from capedjica.data.scans import Features, Person, Problem, Recording
from capedjica.data.timeseries import value_problems
from capedjica.privacy import validate
from capedjica.tools.arrays import Scan

Notes = Callable[[Scan], Iterable[tuple[str, str]]]


class People(Sequence[Scan]):
    """The participants of a site. Each is read on every access, so that only one is in memory at a time.

    Several recordings of one participant form one subject: each is centred separately (and standardised, if
    the features require it), and then they are concatenated in time.

    Parameters
    ----------
    people : iterable of Person
        Participants, each with at least one recording.
    features : Features
        Features to compute from a recording.
    cache : SeriesCache, optional
        Cache for extracted series.
    """

    def __init__(
        self, people: Iterable[Person], features: Features, cache: SeriesCache | None = None
    ) -> None:
        self.people = tuple(people)
        self.features = features
        self.cache = cache
        self._unreadable: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names of the participants."""
        return [person.name for person in self.people]

    @property
    def n_unreadable(self) -> int:
        """Number of participants that were unusable when accessed; it never leaves the site."""
        return len(self._unreadable)

    def __len__(self) -> int:
        return len(self.people)

    @overload
    def __getitem__(self, index: int) -> Scan: ...

    @overload
    def __getitem__(self, index: slice) -> People: ...

    def __getitem__(self, index: int | slice) -> Scan | People:
        if isinstance(index, slice):
            return People(self.people[index], self.features, self.cache)
        person = self.people[index]
        try:
            return joined(list(self._runs(person)))
        except MemoryError:
            # A caller that reads several participants in parallel tries again with this one alone.
            raise
        except Exception:
            # The reason of the failure may depend on data, and the caller might forward an exception message.
            self._unreadable.add(person.name)
            return np.empty((0, self.features.n_features), dtype=np.float32)

    def covariates(self, index: int, motion: bool = False) -> Covariates:
        """Return a participant's row, and motion if requested; never fails."""
        return covariates_of(self.people[index], motion)

    def _runs(self, person: Person) -> Iterator[Scan]:
        """Yield the series of a participant's recordings, until they exceed what any study uses."""
        n_timepoints = 0
        for recording in person.recordings:
            series = self._series(recording)
            yield series
            n_timepoints += len(series)
            if n_timepoints >= LONGEST_SCAN:
                return

    def _series(self, recording: Recording) -> Scan:
        if self.cache is None:
            return self.features.series(recording)
        return self.cache.series(self.features, recording)

    def __repr__(self) -> str:
        return f"People({len(self)} people, n_features={self.features.n_features})"

    def check(
        self,
        n_components: int,
        progress: Callable[[], None] | None = None,
        longest: int = LONGEST_SCAN,
        notes: Notes = lambda series: (),
    ) -> list[Problem]:
        """Read every participant once, several at a time, and return all problems in their order.

        Parameters
        ----------
        n_components : int
            Minimum number of time points of a participant, over all recordings; a row of a participant table
            is a single one, and need not have more.
        progress : callable, optional
            Called after each participant.
        longest : int
            Largest number of time points of a participant that are used.
        notes : callable
            Returns what is found and expected for a series that is readable but of little or no use.
        """
        validate.count("n_components", n_components)
        found: list[Problem] = []
        layouts: dict[Path, str] = {}
        examined = InParallel(
            lambda person: self._problems(person, n_components, longest, layouts, notes), self.people
        )
        for person in self.people:
            try:
                problems = next(examined)
            except MemoryError:
                problems = [Problem(Path(person.name), "too large for the memory", "a smaller recording")]
            found += [replace(problem, subject=person.name) for problem in problems]
            if progress is not None:
                progress()
        paths = [recording.path for person in self.people for recording in person.recordings]
        in_order = {path: layouts[path] for path in paths if path in layouts}
        return found + [replace(odd, subject=self._owner(odd.path)) for odd in _odd_layouts(in_order)]

    def _problems(
        self, person: Person, n_components: int, longest: int, layouts: dict[Path, str], notes: Notes
    ) -> list[Problem]:
        """Return the problems of one participant's recordings, and record the grids of the valid ones."""
        if not person.recordings:
            return [Problem(Path(person.name), "no recording", "at least one")]
        found: list[Problem] = []
        n_timepoints = 0
        for recording in person.recordings:
            try:
                series = self._series(recording)
                layouts[recording.path] = self.features.layout(recording)
            except MemoryError:
                # Tried again with this participant alone.
                raise
            except Exception:
                found += self.features.problems(recording)
                continue
            n_timepoints += len(series)
            found += value_problems(recording.path, series)
            found += [
                Problem(recording.path, f"{what} ({person.name})", expected, fatal=False, alike=expected)
                for what, expected in notes(series)
            ]
        of_scans = all(recording.row is None for recording in person.recordings)
        if of_scans and n_timepoints < n_components and not any(problem.fatal for problem in found):
            expected = f"at least {n_components}, the number of components"
            found.append(Problem(person.recordings[0].path, f"{n_timepoints} time points", expected))
        if n_timepoints > longest:
            expected = f"at most {longest}; only the first {longest} are used"
            found.append(Problem(person.recordings[0].path, f"{n_timepoints} time points", expected, False))
        return found

    def _owner(self, path: Path) -> str:
        return next(person.name for person in self.people if path in {r.path for r in person.recordings})


def joined(series: Sequence[Scan]) -> Scan:
    """Return the runs of one participant, each centred separately, as one; a single run is unchanged."""
    if len(series) == 1:
        return series[0]
    return np.concatenate([run - run.mean(axis=0) for run in series])


def _odd_layouts(layouts: dict[Path, str]) -> Iterator[Problem]:
    """Yield recordings whose grid differs from that of most recordings at the site."""
    counts = Counter(layouts.values())
    if len(counts) < 2:
        return
    usual, times = counts.most_common(1)[0]
    for path, layout in layouts.items():
        if layout != usual:
            expected = f"{usual}, as in {times} runs; it is resampled to the study's grid nevertheless"
            yield Problem(path, layout, expected, fatal=False)
