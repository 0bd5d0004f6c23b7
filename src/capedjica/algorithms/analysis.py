"""An analysis, whatever it computes: what it asks, what a site answers, what becomes of the means.

Every analysis of the package is an :class:`Analysis`, and so is one that somebody else writes. Engines know
no more of it than that: the same object runs in one process, from a ``study.toml`` and between institutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from capedjica.mechanisms.contract import Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

Progress = Callable[[Any, int], None]


@dataclass(frozen=True, eq=False)
class ReleasedMean:
    """A mean as it was published.

    Attributes
    ----------
    stage : int
        What was asked.
    value : array
        The numbers.
    noise : float
        Standard deviation of the noise on each.
    n_people : int
        How many people the sites that took part had enrolled; 0 where that is not known.
    """

    stage: int
    value: FloatArray
    noise: float
    n_people: int = 0


class Means(Protocol):
    """Who makes means private: an aggregator with its sites."""

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means that were made so far."""

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""

    def publish(self, data: bytes) -> None:
        """Hand public data to all sites."""


class Replay:
    """Means that were made before."""

    def __init__(self, released: Sequence[ReleasedMean]) -> None:
        self._all, self._n_done = list(released), 0

    @property
    def released(self) -> Sequence[ReleasedMean]:
        """The means that were asked for so far."""
        return self._all[: self._n_done]

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the next mean."""
        released = self._all[self._n_done]
        self._n_done += 1
        assert released.stage == stage
        return released.value

    def publish(self, data: bytes) -> None:
        """Tell nobody."""


@dataclass(frozen=True)
class ResultTable:
    """Numbers for people: a file that a spreadsheet opens, and a section of the report.

    Attributes
    ----------
    name : str
        Of the file, without its ending.
    caption : str
        What is to be seen, in a sentence or two.
    columns : sequence of str
        What each number of a row is.
    rows : sequence
        Each with one value per column, the first naming the row.
    chart : {"bars", "none"}
        Whether the report draws the second column as bars, one for each row.
    """

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chart: Literal["bars", "none"] = "none"


@dataclass(frozen=True, eq=False)
class Result:
    """What an analysis found; each has a class of its own with attributes of its own.

    Attributes
    ----------
    n_iter : int
        Steps that were made.
    with_tabs : bool
        Whether tables are also written with tabs between their cells, as BIDS has them.
    """

    with_tabs: ClassVar[bool] = False

    n_iter: int = field(default=1, kw_only=True)

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return what programs read, by the names of the files."""
        return {}

    def tables(self) -> Sequence[ResultTable]:
        """Return what people read."""
        return ()

    @property
    def maps(self) -> FloatArray | None:
        """Rows with one number for each feature, to be shown where the features are; None for others."""
        return None

    @property
    def stability(self) -> FloatArray | None:
        """How stable each map is under the noise, from 0 to 1; None where that cannot be told."""
        return None


Found_co = TypeVar("Found_co", bound=Result, covariant=True)


class Analysis(Protocol[Found_co]):
    """An analysis with all its public parameters.

    What it does is a function of the means alone, so the same means give the same result: that is how a run
    that was interrupted goes on.
    """

    def stages(self) -> tuple[Stage, ...]:
        """Return everything that may be asked, in order; the shares add up to 1."""

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return what a site computes, from subjects that are read one at a time."""

    def estimate(self, means: Means, progress: Progress | None = None) -> Found_co:
        """Ask for the means, and return what follows from them.

        ``progress(estimate, iteration)`` is called after each iteration of those analyses that iterate.
        """
