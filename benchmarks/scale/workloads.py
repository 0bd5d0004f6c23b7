r"""Workloads of one size each: whole studies in one process, and secure sums alone.

Scans are simulated when they are asked for and forgotten afterwards, as a site reads them from disk: a scan
is :math:`x_t = A s_t + 0.1 n_t` with Laplace sources and normal noise, drawn from the number of the
participant. A site asks for each twice, once for the subspace and once for the projection onto it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, cast, overload

import numpy as np
from numpy.typing import NDArray

from benchmarks.sum_in_process import SumInProcess
from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.engines.inprocess import Letter
from capedjica.mechanisms.site.answering import Site
from capedjica.tools.arrays import FloatArray, Scan

DELTA: Final = 1e-5
NOISE: Final = np.float32(0.1)


@dataclass(frozen=True)
class Cost:
    """What one workload took.

    Attributes
    ----------
    seconds, cpu : float
        Elapsed time, and processor time of all threads.
    site_cpu : float
        Processor time of one site, on average.
    site_bytes : float
        Bytes that one site sent, on average.
    total_bytes : float
        Bytes that all sites and the aggregator sent.
    """

    seconds: float
    cpu: float
    site_cpu: float
    site_bytes: float
    total_bytes: float


class SimulatedScans(Sequence[Scan]):
    """Scans of a site that exist only while they are used.

    Parameters
    ----------
    mixing : array (D, R)
        A, of all participants.
    n_scans, length : int
        Number of participants, and of time points of each.
    site : int
        Number of the site, for the seeds.
    """

    def __init__(self, mixing: NDArray[np.float32], n_scans: int, length: int, site: int) -> None:
        self._mixing, self._n_scans, self._length, self._site = mixing, n_scans, length, site

    def __len__(self) -> int:
        return self._n_scans

    @overload
    def __getitem__(self, index: int) -> Scan: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Scan]: ...

    def __getitem__(self, index: int | slice) -> Scan | Sequence[Scan]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < self._n_scans:
            raise IndexError(index)
        rng = np.random.default_rng((self._site, index))
        size, width = self._mixing.shape
        sources = rng.laplace(size=(self._length, width)).astype(np.float32)
        scan: Scan = sources @ self._mixing.T
        scan += NOISE * rng.standard_normal((self._length, size), dtype=np.float32)
        return scan

    def __iter__(self) -> Iterator[Scan]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True)
class StudySize:
    """The size of a whole study by the default method.

    Attributes
    ----------
    sites, participants : int
        Number of sites, and of participants of all together.
    components, length, rotations : int
        R, the time points of a scan, and the number of rotations.
    features : tuple of int
        Sides of the box of voxels; one number for features without positions.
    basis : bool
        Whether the voxels are represented by the smoothest cosines.
    epsilon : float
        Total budget: with few participants only a large one leaves maps that varimax converges on.
    """

    sites: int
    participants: int
    components: int
    length: int
    rotations: int
    features: tuple[int, ...]
    basis: bool = False
    epsilon: float = 10.0

    @property
    def n_features(self) -> int:
        """D."""
        return prod(self.features)


def mixing_matrix(size: StudySize) -> NDArray[np.float32]:
    """Return A, whose columns are Gaussian blobs around random places, about as wide as leaves them apart."""
    rng = np.random.default_rng(0)
    sides = np.array(size.features)
    width = 0.5 * (size.n_features / size.components) ** (1 / len(sides))
    columns = np.empty((size.n_features, size.components), dtype=np.float32)
    for column in columns.T:
        squares: FloatArray = np.zeros(())
        for side, centre in zip(sides, rng.uniform(0, sides), strict=True):
            squares = np.add.outer(squares, (np.arange(side) - centre) ** 2)
        column[:] = np.exp(-squares.ravel() / (2 * width**2))
    return columns


class _TimedSite:
    """A site of which the processor time is counted."""

    def __init__(self, site: Site) -> None:
        self._site, self.cpu = site, 0.0

    def handle(self, data: bytes) -> bytes:
        start = time.process_time()
        try:
            return self._site.handle(data)
        finally:
            self.cpu += time.process_time() - start


def run_study(size: StudySize) -> Cost:
    """Run a whole study with all messages of the protocol, to the networks and their stability."""
    wall, cpu = time.perf_counter(), time.process_time()
    basis = low_pass_within(np.ones(size.features, dtype=np.bool_)) if size.basis else None
    mixing = mixing_matrix(size)
    edges = [size.participants * s // size.sites for s in range(size.sites + 1)]
    sites = {
        f"site-{s:03d}": SimulatedScans(mixing, edges[s + 1] - edges[s], size.length, s)
        for s in range(size.sites)
    }
    terms = in_process(epsilon=size.epsilon, delta=DELTA)
    noise = terms.mean_noise([len(site) for site in sites.values()])
    method = SubjectMethod(
        size.n_features, size.components, size.length, noise, max_rotations=size.rotations, basis=basis
    )
    sent: Counter[str] = Counter()

    def count(letter: Letter) -> list[bytes]:
        sent[letter.direction] += len(letter.data)
        return [letter.data]

    study = EmbeddedStudy.of("scale", method, sites, terms, carrier=count)
    timed = {name: _TimedSite(site) for name, site in study.sites.items()}
    study.engine.sites = cast(dict[str, Site], timed)
    found = method.estimate(study)
    assert found.stability is not None
    assert np.isfinite(found.estimate).all()
    return Cost(
        seconds=time.perf_counter() - wall,
        cpu=time.process_time() - cpu,
        site_cpu=sum(site.cpu for site in timed.values()) / size.sites,
        site_bytes=sent["answer"] / size.sites,
        total_bytes=sent.total(),
    )


def run_sum(n_sites: int, length: int) -> Cost:
    """Run one secure sum with all its sites in this process."""
    parties = SumInProcess(n_sites, length)  # its keys are those that sites have for years
    wall, cpu = time.perf_counter(), time.process_time()
    ones = np.ones(length, dtype=np.uint64)
    sites = {name: parties.site(name, ones) for name in parties.identities}
    of_sites = 0.0
    requests: dict[str, bytes] | None = None
    while not parties.aggregator.done:
        start = time.process_time()
        if requests is None:
            answers = {name: site.start() for name, site in sites.items()}
        else:
            answers = {name: sites[name].receive(data) for name, data in requests.items()}
        of_sites += time.process_time() - start
        requests = parties.collect(answers)
    assert np.all(parties.aggregator.result == n_sites)
    return Cost(
        seconds=time.perf_counter() - wall,
        cpu=time.process_time() - cpu,
        site_cpu=of_sites / n_sites,
        site_bytes=parties.sent.total() / n_sites,
        total_bytes=parties.sent.total() + parties.received.total(),
    )
