"""A site's people, as an analysis asks for them: one after the other, each as one (time, features) array.

Two readers look at them. Before anything is spent, :meth:`People.check` tells the site everything that is
wrong. During a run nothing may depend on data, so ``people[m]`` never fails: somebody whose recordings can no
longer be used is a subject without time points, who contributes zero. Only a lack of memory is told, because
it may be that of others who are read at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.data.cache import SeriesCache
from capedjica.data.covariates import Covariates, covariates_of
from capedjica.data.scans import Features, Person, Problem, Recording
from capedjica.data.timeseries import value_problems
from capedjica.privacy import validate
from capedjica.tools.arrays import Scan

Notes = Callable[[Scan], Iterable[tuple[str, str]]]


class People(Sequence[Scan]):
    """The people of a site; each is read anew whenever they are asked for, so one is in memory at a time.

    Several recordings of one person are one subject: each is centred by itself (and standardised, if the
    features say so), and then they are joined in time.

    Parameters
    ----------
    people : iterable of Person
        Each with at least one recording.
    features : Features
        What is made of a recording.
    cache : SeriesCache, optional
        Where series are kept once they were extracted.
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
        """The people's names."""
        return [person.name for person in self.people]

    @property
    def n_unreadable(self) -> int:
        """How many people could not be used when they were asked for; never leaves the site."""
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
            # Whoever reads several people at once tries again with this one alone.
            raise
        except Exception:
            # Why it failed may depend on data, and whoever asks may send on what an exception says.
            self._unreadable.add(person.name)
            return np.empty((0, self.features.n_features), dtype=np.float32)

    def covariates(self, index: int, motion: bool = False) -> Covariates:
        """Return what a person's row says, and their motion if asked for; never fails."""
        return covariates_of(self.people[index], motion)

    def _runs(self, person: Person) -> Iterator[Scan]:
        """Yield the series of a person's recordings, up to more time points than any study takes."""
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
        """Read everybody once and return everything that is wrong, in the order of the people.

        Parameters
        ----------
        n_components : int
            Time points that everybody must have at least, in all recordings together; a row of a table of
            people is one, and need not be more.
        progress : callable, optional
            Called after each person.
        longest : int
            How many time points of a person take part.
        notes : callable
            Returns what is found and expected of a series that can be read but is of less or no use.
        """
        validate.count("n_components", n_components)
        found: list[Problem] = []
        layouts: dict[Path, str] = {}
        for person in self.people:
            problems = self._problems(person, n_components, longest, layouts, notes)
            found += [replace(problem, subject=person.name) for problem in problems]
            if progress is not None:
                progress()
        return found + [replace(odd, subject=self._owner(odd.path)) for odd in _odd_layouts(layouts)]

    def _problems(
        self, person: Person, n_components: int, longest: int, layouts: dict[Path, str], notes: Notes
    ) -> list[Problem]:
        """Return what is wrong with one person's recordings, and note the layouts of those that are not."""
        if not person.recordings:
            return [Problem(Path(person.name), "no recording", "at least one")]
        found: list[Problem] = []
        n_timepoints = 0
        for recording in person.recordings:
            try:
                series = self._series(recording)
                layouts[recording.path] = self.features.layout(recording)
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
            expected = f"at least the {n_components} of the components"
            found.append(Problem(person.recordings[0].path, f"{n_timepoints} time points", expected))
        if n_timepoints > longest:
            expected = f"at most {longest}, of which all take part; of these, the first {longest} do"
            found.append(Problem(person.recordings[0].path, f"{n_timepoints} time points", expected, False))
        return found

    def _owner(self, path: Path) -> str:
        return next(person.name for person in self.people if path in {r.path for r in person.recordings})


def joined(series: Sequence[Scan]) -> Scan:
    """Return the runs of one person, each centred by itself, as one; a single run as it is."""
    if len(series) == 1:
        return series[0]
    return np.concatenate([run - run.mean(axis=0) for run in series])


def _odd_layouts(layouts: dict[Path, str]) -> Iterator[Problem]:
    """Say which recordings are on another grid than most of the site."""
    counts = Counter(layouts.values())
    if len(counts) < 2:
        return
    usual, times = counts.most_common(1)[0]
    for path, layout in layouts.items():
        if layout != usual:
            expected = f"{usual}, as in {times} recordings; it is brought to the study's grid all the same"
            yield Problem(path, layout, expected, fatal=False)
