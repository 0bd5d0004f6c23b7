r"""One vector per subject computed from a scan, as input for analyses of rows.

``average`` is the mean over time of every feature, or the row of a participant table. All other values are
:mod:`capedjica.algorithms.outcomes`, computed from the features or from the time courses of networks.

Time courses are those of networks that an earlier analysis of the same study published: a centred scan times
its unmixing matrix. Everything is computed from one subject only, so it has no privacy cost.
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
# Correlations and deviations of fewer time points are meaningless.
_FEWEST: Final = 3


@dataclass(frozen=True)
class Values:
    """Computation of a vector from a scan.

    Parameters
    ----------
    kind : str
        "average", or the name of an outcome.
    n_courses : int
        Number of features of a scan, or of networks of the earlier analysis.
    order : tuple of int
        Indices of the selected numbers, in order; all of them if empty.
    center, scale : tuple of float
        Public numbers that are subtracted from these, and by which they are then divided; unused if empty.
    groups, bands, shrinkage
        Settings of the outcome.
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
        """Outcome computed from the time courses; None for averages."""
        if self.kind == "average":
            return None
        return Outcome(self.kind, self.n_courses, self.groups, self.bands, self.shrinkage)

    @property
    def size(self) -> int:
        """Length of a vector."""
        return len(self.order) or self._all

    @property
    def _all(self) -> int:
        return self.n_courses if self.outcome is None else self.outcome.size

    def names(self, courses: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the numbers, given those of the features or networks."""
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
        """Return the vector of a subject, with NaN where it cannot be computed."""
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
    """Numbers computed from the covariates of a subject, in addition to the scan."""

    @property
    def size(self) -> int:
        """Number of values."""

    @property
    def motion(self) -> bool:
        """Whether head motion is among the required covariates."""

    def of(self, covariates: Mapping[str, Any], site: str) -> FloatArray:
        """Return the numbers of a subject of a site, with NaN where they are unavailable."""


@dataclass(frozen=True, eq=False)
class OfScans(Generic[Found_co]):
    """An analysis of rows, applied to scans.

    Parameters
    ----------
    rows : Analysis
        Analysis of the rows.
    values : Values
        Computation of a row from a scan.
    n_features : int
        Number of features of a scan.
    longest : int
        Largest number of time points of a scan that are used.
    networks : str
        Name of the earlier analysis whose networks are used; empty for none.
    unmixing : array (R, D), optional
        Result of that analysis; only the aggregator has it, and publishes it.
    beside : NumbersBeside, optional
        Numbers that precede those of the scan in a row, computed from covariates of the subject.
    """

    rows: Analysis[Found_co]
    values: Values
    n_features: int
    longest: int
    networks: str = ""
    unmixing: FloatArray | None = None
    beside: NumbersBeside | None = None

    def stages(self) -> tuple[Stage, ...]:
        """Return the queries of the analysis of rows."""
        return self.rows.stages()

    def following(self, earlier: dict[str, Result]) -> OfScans[Found_co]:
        """Return the analysis with the networks of an earlier one."""
        if not self.networks:
            return self
        return replace(self, unmixing=earlier[self.networks].arrays()["unmixing"])

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the statistics of a site, from rows computed once for every published matrix."""
        return _ScanRows(self, subjects)

    def estimate(self, means: Means, progress: Progress | None = None) -> Found_co:
        """Publish the networks, if any, and analyse the rows."""
        if not self.networks:
            return self.rows.estimate(means, progress)
        assert self.unmixing is not None
        beside = _Beside(means, pack(unmixing=self.unmixing))
        return self.rows.estimate(beside, progress)


class _Beside:
    """Means whose public data always include the networks."""

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
    """Statistics of a site: the cached rows, and their analysis."""

    def __init__(self, analysis: OfScans[Result], subjects: Sequence[Scan]) -> None:
        self._analysis, self._subjects = analysis, subjects
        self._scans = CutScans(subjects, analysis.longest)
        self._n_beside = 0 if analysis.beside is None else analysis.beside.size
        # Allocated and written before any scan is read: whether memory suffices must not depend on the data.
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
            # A failure on one subject's scan must not affect the contribution of another.
            try:
                row[self._n_beside :] = next(computed)
                row[: self._n_beside] = self._numbers_beside(number)
            except Exception:
                # defence: one-row-fails-alone
                row[:] = np.nan
        self._networks, self._statistics = networks, self._analysis.rows.site(list(self._rows))

    def _numbers_beside(self, number: int) -> FloatArray:
        """Return the covariates of a subject as numbers; NaN for subjects without a row."""
        beside = self._analysis.beside
        if beside is None:
            return np.empty(0)
        subjects = cast(Any, self._subjects)
        return beside.of(subjects.covariates(number, beside.motion), subjects.site)


def _apart(published: bytes) -> tuple[bytes, bytes]:
    """Return the networks, and the other public data."""
    try:
        return msgspec.msgpack.decode(published, type=tuple[bytes, bytes])
    except (msgspec.MsgspecError, ValueError):
        raise ProtocolError(f"public data of {len(published)} bytes are malformed") from None
