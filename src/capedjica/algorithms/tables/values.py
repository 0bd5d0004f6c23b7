r"""One vector per person from their scan: what analyses of rows are computed on in a study of scans.

``average`` is the mean over time of every feature, or the row of a table with a row per person; everything
else is one of :mod:`capedjica.algorithms.outcomes`, of the features or of the time courses of networks.

Time courses are those of networks that an earlier analysis of the same study published: a centred scan times
its unmixing matrix. All that is computed touches one person only, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

import msgspec
import numpy as np

from capedjica.algorithms.analysis import Analysis, Means, Progress, Result
from capedjica.algorithms.ica.individual import centre
from capedjica.algorithms.ica.scan_length import CutScans
from capedjica.algorithms.outcomes import Band, Outcome, OutcomeName
from capedjica.algorithms.parallel import InParallel
from capedjica.algorithms.state import pack, read_arrays
from capedjica.errors import ProtocolError
from capedjica.mechanisms.contract import Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan

ValuesName = Literal["average"] | OutcomeName
Found_co = TypeVar("Found_co", bound=Result, covariant=True)
# Correlations and deviations of fewer time points mean nothing.
_FEWEST: Final = 3


@dataclass(frozen=True)
class Values:
    """How a scan becomes a vector.

    Parameters
    ----------
    kind : str
        "average", or the name of an outcome.
    n_courses : int
        Features of a scan, or networks of the earlier analysis.
    order : tuple of int
        Which of the numbers, in which order; all of them where it is empty.
    center, scale : tuple of float
        Public numbers that are subtracted from these, and by which they are divided then; none where empty.
    groups, bands, shrinkage
        Of the outcome.
    """

    kind: ValuesName
    n_courses: int
    order: tuple[int, ...] = ()
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    groups: tuple[str, ...] = ()
    bands: tuple[Band, ...] = ()
    shrinkage: float = 0.1

    @property
    def outcome(self) -> Outcome | None:
        """What is computed of time courses; None for averages."""
        if self.kind == "average":
            return None
        return Outcome(self.kind, self.n_courses, self.groups, self.bands, self.shrinkage)

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return len(self.order) or self._all

    @property
    def _all(self) -> int:
        return self.n_courses if self.outcome is None else self.outcome.size

    def names(self, courses: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the numbers, from those of the features or networks."""
        if self.outcome is not None:
            courses = self.outcome.names(courses)
        names = [courses[number] for number in self.order or range(self._all)]
        if self.center:
            names = [
                f"({name} - {center:g})" if center else name
                for name, center in zip(names, self.center, strict=True)
            ]
        if self.scale:
            names = [
                f"{name} / {scale:g}" if scale != 1 else name
                for name, scale in zip(names, self.scale, strict=True)
            ]
        return tuple(names)

    def of(self, scan: Scan, unmixing: FloatArray | None) -> FloatArray:
        """Return the vector of a person; NaN where it cannot be had."""
        with np.errstate(all="ignore"):
            if len(scan) < (1 if self.kind == "average" else _FEWEST):
                return np.full(self.size, np.nan)
            values = np.asarray(scan, dtype=np.float64)
            courses = values if unmixing is None else centre(values) @ unmixing.T
            if not np.isfinite(courses).all():
                return np.full(self.size, np.nan)
            numbers = self._numbers(courses, values, unmixing)
            chosen = numbers[list(self.order)] if self.order else numbers
            moved = chosen - np.array(self.center) if self.center else chosen
            return moved / np.array(self.scale) if self.scale else moved

    def _numbers(self, courses: FloatArray, scan: FloatArray, unmixing: FloatArray | None) -> FloatArray:
        if self.outcome is None:
            average: FloatArray = courses.mean(axis=0)
            return average
        return self.outcome.numbers(courses, scan, unmixing)


class NumbersBeside(Protocol):
    """Numbers made of what is known of a person besides their scan: their covariates."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def motion(self) -> bool:
        """Whether the person's motion in the scanner is among what has to be known."""

    def of(self, covariates: Mapping[str, Any], site: str) -> FloatArray:
        """Return the numbers of a person of a site; NaN where they cannot be had."""


@dataclass(frozen=True, eq=False)
class OfScans(Generic[Found_co]):
    """An analysis of rows, computed on scans.

    Parameters
    ----------
    rows : Analysis
        What is computed of the rows.
    values : Values
        How a scan becomes a row.
    n_features : int
        Of a scan.
    longest : int
        How many time points of a scan take part.
    networks : str
        Name of the earlier analysis whose networks are used; empty for none.
    unmixing : array (R, D), optional
        What that analysis found; only the aggregator has it, and publishes it.
    beside : NumbersBeside, optional
        Numbers that come before those of the scan in a row, from what else is known of the person.
    """

    rows: Analysis[Found_co]
    values: Values
    n_features: int
    longest: int
    networks: str = ""
    unmixing: FloatArray | None = None
    beside: NumbersBeside | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Return what is asked of the rows."""
        return self.rows.stages()

    def following(self, earlier: dict[str, Result]) -> OfScans[Found_co]:
        """Return the analysis with the networks of an earlier one."""
        if not self.networks:
            return self
        return replace(self, unmixing=earlier[self.networks].arrays()["unmixing"])

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return what a site computes, from rows that are made once for every matrix that is published."""
        return _ScanRows(self, subjects)

    def estimate(self, means: Means, progress: Progress | None = None) -> Found_co:
        """Publish the networks, if there are any, and analyse the rows."""
        if not self.networks:
            return self.rows.estimate(means, progress)
        assert self.unmixing is not None
        beside = _Beside(means, pack(unmixing=self.unmixing))
        return self.rows.estimate(beside, progress)


class _Beside:
    """Means whose public data always have the networks beside them."""

    def __init__(self, means: Means, networks: bytes) -> None:
        self._means, self._networks = means, networks
        self.mean = means.mean
        self.publish(b"")

    @property
    def released(self) -> Sequence[Any]:
        return self._means.released

    def publish(self, data: bytes) -> None:
        self._means.publish(msgspec.msgpack.encode((self._networks, data)))


class _ScanRows:
    """What a site computes: the rows, kept, and what the analysis makes of them."""

    def __init__(self, analysis: OfScans[Result], subjects: Sequence[Scan]) -> None:
        self._analysis, self._subjects = analysis, subjects
        self._scans = CutScans(subjects, analysis.longest)
        self._n_beside = 0 if analysis.beside is None else analysis.beside.size
        # Before anybody's scan is read, and every page written to: whether there is memory must not depend on
        # data.
        self._rows = np.full((len(subjects), self._n_beside + analysis.values.size), np.nan)
        self._networks: bytes | None = None
        self._statistics: Statistics | None = None

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[Scan]:
        networks, own = _apart(published) if self._analysis.networks else (b"", published)
        if self._statistics is None or networks != self._networks:
            self._fill(networks)
        assert self._statistics is not None
        return self._statistics(stage, own, state)

    def _fill(self, networks: bytes) -> None:
        values, unmixing, self._statistics = self._analysis.values, None, None
        if self._analysis.networks:
            shape = (values.n_courses, self._analysis.n_features)
            unmixing = read_arrays(networks, unmixing=shape)["unmixing"]
        computed = InParallel(partial(values.of, unmixing=unmixing), self._scans)
        for number, row in enumerate(self._rows):
            # Whatever goes wrong with one person's scan must not touch anybody else's part.
            try:
                row[self._n_beside :] = next(computed)
                row[: self._n_beside] = self._numbers_beside(number)
            except Exception:
                # defence: one-row-fails-alone
                row[:] = np.nan
        self._networks, self._statistics = networks, self._analysis.rows.site(list(self._rows))

    def _numbers_beside(self, number: int) -> FloatArray:
        """Return what else is known of a person; nobody's row can be had of subjects that have none."""
        beside = self._analysis.beside
        if beside is None:
            return np.empty(0)
        subjects = cast(Any, self._subjects)
        return beside.of(subjects.covariates(number, beside.motion), subjects.site)


def _apart(published: bytes) -> tuple[bytes, bytes]:
    """Return the networks and what is published besides."""
    try:
        return msgspec.msgpack.decode(published, type=tuple[bytes, bytes])
    except (msgspec.MsgspecError, ValueError):
        raise ProtocolError(f"public data of {len(published)} bytes cannot be read") from None
