"""Interface of an analysis: its queries, the statistics of a site, and the result computed from the means.

Every analysis in the package implements :class:`Analysis`, as do those of other packages. Engines use nothing
else: the same object runs in one process, from a ``study.toml`` and between institutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from capedjica.errors import InputError
from capedjica.mechanisms.contract import Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

Progress = Callable[[Any, int], None]
_CELL = (str, int, float, np.number, np.bool_, type(None))


@dataclass(frozen=True, eq=False)
class ReleasedMean:
    """A released mean.

    Attributes
    ----------
    stage : int
        Stage of the query.
    value : array
        The noisy mean.
    noise : float
        Standard deviation of the noise on each coordinate.
    n_people : int
        Number of participants enrolled at the contributing sites; 0 if unknown.
    sites : tuple of str
        The contributing sites; empty if unknown.
    """

    stage: int
    value: FloatArray
    noise: float
    n_people: int = 0
    sites: tuple[str, ...] = ()


class Means(Protocol):
    """Source of private means: an aggregator with its sites."""

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means released so far."""

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""

    def publish(self, data: bytes) -> None:
        """Send public data to all sites."""


class Replay:
    """Replay of means that were released before."""

    def __init__(self, released: Sequence[ReleasedMean]) -> None:
        self._all, self._n_done = list(released), 0

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means requested so far."""
        return self._all[: self._n_done]

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the next mean."""
        released = self._all[self._n_done]
        self._n_done += 1
        assert released.stage == stage
        return released.value

    def publish(self, data: bytes) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class ResultTable:
    """A table of results: a file for spreadsheets, and a section of the report.

    Attributes
    ----------
    name : str
        Name of the file, without its extension.
    caption : str
        Description of the table, in a sentence or two.
    columns : sequence of str
        Column names.
    rows : sequence
        Rows with one value per column, a text, a number or None; the first value names the row.
    chart : {"bars", "none"}
        Whether the report draws the second column as bars, one for each row.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chart: Literal["bars", "none"] = "none"

    def __post_init__(self) -> None:
        """Refuse a row that cannot be written: known here, and not after the last release of a study."""
        for row in self.rows:
            if len(row) != len(self.columns) or not all(isinstance(cell, _CELL) for cell in row):
                columns = ", ".join(self.columns)
                raise InputError(
                    f"a row of the table '{self.name}' must have a text or a number for each of its columns "
                    f"({columns}), got {tuple(row)!r}"
                )


@dataclass(frozen=True, eq=False)
class Result:
    """Result of an analysis; each analysis has its own subclass.

    Attributes
    ----------
    n_iter : int
        Number of iterations run.
    with_tabs : bool
        Whether tables are also written as tab-separated files, as in BIDS.
    """

    with_tabs: ClassVar[bool] = False

    n_iter: int = field(default=1, kw_only=True)

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the results as arrays, by file name."""
        return {}

    def tables(self) -> Sequence[ResultTable]:
        """Return the results as tables."""
        return ()

    @property
    def maps(self) -> FloatArray | None:
        """Maps with one number for each feature, shown at the positions of the features; None if none."""
        return None

    @property
    def stability(self) -> FloatArray | None:
        """Stability of each map under the noise, from 0 to 1; None if it cannot be determined."""
        return None


Found_co = TypeVar("Found_co", bound=Result, covariant=True)


class Analysis(Protocol[Found_co]):
    """An analysis with all its public parameters.

    It depends only on the means, so the same means give the same result. This makes it possible to resume an
    interrupted run.
    """

    def stages(self) -> tuple[Stage, ...]:
        """Return all possible queries, in order; their shares add up to 1."""

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the statistics of a site, whose subjects are read one at a time."""

    def estimate(self, means: Means, progress: Progress | None = None) -> Found_co:
        """Request the means, and return the result computed from them.

        ``progress(estimate, iteration)`` is called after each iteration of an iterative analysis.
        """


def check_result(found: object, analysis: object) -> None:
    """Refuse what an analysis returned if a study could not write it."""
    if not isinstance(found, Result):
        name, given = type(analysis).__name__, type(found).__name__
        raise InputError(f"{name}.estimate must return a capedjica.extending.Result, got {given}")
    found.arrays(), found.tables()
