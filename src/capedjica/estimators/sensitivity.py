r"""``check_sensitivity``: hostile subjects against what an analysis claims about its queries.

The cost of a release follows from two claims of its query: a subject's vector v, clipped to norm C, depends
on that subject's data and on public values only, and two subjects' vectors are never further apart than

.. math:: \| v - v' \| \le \mathrm{spread} \cdot C .

Clipping enforces a spread of 2. A smaller spread, and the first claim, are the author's. This module looks
for counterexamples: it replaces one subject of a site by hostile ones, at every public state that a run
passes through, and compares. It can show that a claim is false, never that it is true: prove the bound, then
check.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from capedjica.algorithms.analysis import Analysis, ReleasedMean, check_result
from capedjica.errors import InputError, ProtocolError, SensitivityError
from capedjica.mechanisms.contract import Query, Statistics
from capedjica.mechanisms.site.clipping import subject_batches
from capedjica.tools.arrays import FloatArray, Scan

Array = NDArray[Any]
# A run without noise, and runs with noise relative to the clip, which lead to other public states.
_NOISES: Final = (0.0, 0.1, 1.0)
_MOST_REQUESTS: Final = 20
# Rounding of a vector, relative to its clip: other batches may sum in another order.
_ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Request:
    """A question that sites are asked: the stage, what was published before, and the public state."""

    stage: int
    published: bytes
    state: bytes


@dataclass(frozen=True)
class CheckedQuery:
    """The largest change found for one query.

    Attributes
    ----------
    label : str
        Label of the query.
    bound : float
        Largest distance of two subjects' vectors according to the query, spread times C.
    largest : float
        Largest distance found.
    n_states : int
        Number of public states at which subjects were replaced; 0 if no run asked for the query.
    """

    label: str
    bound: float
    largest: float
    n_states: int

    def __str__(self) -> str:
        if self.n_states == 0:
            return f"{self.label}: NOT CHECKED, no run asked for it"
        states = "1 public state" if self.n_states == 1 else f"{self.n_states} public states"
        return f"{self.label}: at most {self.largest:.4g} of the claimed {self.bound:.4g} ({states})"


@dataclass(frozen=True)
class SensitivityCheck:
    """Result of `check_sensitivity`: no counterexample was found.

    Attributes
    ----------
    queries : tuple of CheckedQuery
        The largest change found for each query.
    n_hostile : int
        Number of hostile subjects that were tried.
    """

    queries: tuple[CheckedQuery, ...]
    n_hostile: int

    def __str__(self) -> str:
        head = f"No counterexample among {self.n_hostile} hostile subjects; this is a test, not a proof."
        return "\n".join([head, *map(str, self.queries)])


def check_sensitivity(
    analysis: Analysis[Any],
    subjects: Sequence[Any],
    hostile: Mapping[str, Any] | None = None,
    random_state: int = 0,
) -> SensitivityCheck:
    """Look for subjects that break what an analysis claims about its queries.

    Checked at each public state of runs with and without noise, for the first and the last subject of the
    site, replaced by each hostile one: the vectors of the other subjects do not change, every subject has
    exactly one vector, and no two subjects' vectors are further apart than spread times clip. Ordinary
    subjects must have vectors of the right size, and the runs must return a result that can be written.

    Parameters
    ----------
    analysis : Analysis
        An object with the methods of :class:`capedjica.algorithms.analysis.Analysis`.
    subjects : sequence
        At least two ordinary subjects of a site, in the form that ``analysis.site`` expects; few are enough.
    hostile : dict from name to subject, optional
        Further hostile subjects: the worst that the author can think of. Zeros, constants, huge and tiny
        numbers, NaN, infinity, heavy tails, single features and time points, and very short and long scans
        are always tried.
    random_state : int, default=0
        Seed of random subjects and of the noise in the runs.

    Returns
    -------
    SensitivityCheck
        The largest distance found for each query.

    Raises
    ------
    SensitivityError
        With the query, the hostile subject and what it did, if a claim is false.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import check_sensitivity
    >>> from capedjica.algorithms.tables.mean import MeanOfRows
    >>> print(check_sensitivity(MeanOfRows(3, clip=2.0), np.ones((4, 3))))
    No counterexample among 18 hostile subjects; this is a test, not a proof.
    mean of the subjects' vectors: at most 4 of the claimed 4 (1 public state)
    """
    people = [np.asarray(subject) for subject in subjects]
    if len(people) < 2:
        raise InputError(f"subjects must contain at least 2 subjects, got {len(people)}")
    rng = np.random.default_rng(random_state)
    enemies = {**_hostile_subjects(people[0], rng), **(hostile or {})}
    found: dict[int, list[float]] = {}
    for request in _requests(analysis, people, rng):
        query = analysis.stages()[request.stage].query
        distance = max(
            _largest_distance(analysis, people, number, enemies, request, query)
            for number in (0, len(people) - 1)
        )
        found.setdefault(request.stage, []).append(distance)
    queries = [stage.query for stage in analysis.stages()]
    return SensitivityCheck(
        tuple(
            CheckedQuery(query.label, _bound(query), max(found.get(stage, [0.0])), len(found.get(stage, [])))
            for stage, query in enumerate(queries)
        ),
        len(enemies),
    )


def _bound(query: Query) -> float:
    """Return the largest distance of two vectors; a cross-moment claims nothing but its clip."""
    return 2 * query.clip if query.cross is not None else query.spread * query.clip


def _hostile_subjects(example: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Return hostile subjects of the form of an ordinary one."""
    kind = example.dtype if np.issubdtype(example.dtype, np.floating) else np.dtype(np.float64)
    shape, most = example.shape, float(np.finfo(kind).max) / 4
    huge = most**0.4  # its square can still be computed
    subjects = {
        "zeros": np.zeros(shape),
        "ones": np.ones(shape),
        "minus ones": -np.ones(shape),
        "huge numbers": np.full(shape, huge),
        "huge negative numbers": np.full(shape, -huge),
        "huge numbers of both signs": huge * rng.choice([-1.0, 1.0], shape),
        "numbers whose squares overflow": np.full(shape, most),
        "tiny numbers": np.full(shape, float(np.finfo(kind).tiny)),
        "NaN": np.full(shape, np.nan),
        "infinity": np.full(shape, np.inf),
        "one NaN": _with_one(np.asarray(example, dtype=kind), np.nan),
        "one infinity": _with_one(np.asarray(example, dtype=kind), -np.inf),
        "one huge number": _with_one(np.zeros(shape), huge),
        "one number other than zero": _with_one(np.zeros(shape), 1.0),
        "random numbers": rng.standard_normal(shape),
        "large random numbers": 1e6 * rng.standard_normal(shape),
        "heavy tails": rng.standard_cauchy(shape),
        "the opposite": -np.asarray(example, dtype=kind),
    }
    if example.ndim == 2:
        subjects |= _hostile_scans(shape, rng)
    with np.errstate(over="ignore"):
        return {name: subject.astype(kind) for name, subject in subjects.items()}


def _with_one(array: Array, value: float) -> Array:
    changed = array.copy()
    changed.flat[-1] = value
    return changed


def _hostile_scans(shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Array]:
    length, n_features = shape
    course = rng.standard_normal((length, 1))
    return {
        "no time point": np.empty((0, n_features)),
        "one time point": rng.standard_normal((1, n_features)),
        "two time points": rng.standard_normal((2, n_features)),
        "a long scan": rng.standard_normal((3 * length, n_features)),
        "the same course everywhere": np.repeat(course, n_features, axis=1),
        "one feature that varies": np.pad(course, ((0, 0), (0, n_features - 1))),
        "one volume that differs": np.vstack([np.zeros((length - 1, n_features)), np.ones((1, n_features))]),
        "constant features": np.repeat(rng.standard_normal((1, n_features)), length, axis=0),
    }


class _Run:
    """Means of a site, with noise from a seed; it keeps what it was asked."""

    def __init__(
        self, analysis: Analysis[Any], site: Statistics, n_people: int, noise: float, rng: np.random.Generator
    ) -> None:
        self._queries = [stage.query for stage in analysis.stages()]
        self._site, self._n_people, self._noise, self._rng = site, n_people, noise, rng
        self._published = b""
        self.requests: list[Request] = []
        self.released: list[ReleasedMean] = []

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return a mean with noise."""
        query, request = self._queries[stage], Request(stage, self._published, state)
        self.requests.append(request)
        noise = self._noise * query.clip
        value = noise * self._rng.standard_normal(query.size)
        rows = _rows(self._site, request, query)
        _check_ordinary(rows, self._site, request, query)
        if query.cross is None:
            value += _clipped(rows, query).mean(axis=0)
        self.released.append(ReleasedMean(stage, value, noise, self._n_people, ("site",)))
        return value

    def publish(self, data: bytes) -> None:
        """Keep what was published."""
        self._published = data


def _requests(analysis: Analysis[Any], people: list[Array], rng: np.random.Generator) -> Iterator[Request]:
    """Yield different requests of some runs, the first and the last of each stage among them."""
    by_stage: dict[int, dict[Request, None]] = {}
    for noise in _NOISES:
        run = _Run(analysis, analysis.site(people), len(people), noise, rng)
        check_result(analysis.estimate(run), analysis)
        for request in run.requests:
            by_stage.setdefault(request.stage, {})[request] = None
    for requests in map(list, by_stage.values()):
        chosen = np.unique(np.linspace(0, len(requests) - 1, _MOST_REQUESTS).astype(int))
        yield from (requests[number] for number in chosen)


def _rows(site: Statistics, request: Request, query: Query) -> FloatArray:
    """Return the subjects' vectors as a site reads them."""
    batches = list(
        subject_batches(lambda: site(request.stage, request.published, request.state), query.row_size)
    )
    return np.concatenate(batches) if batches else np.empty((0, query.row_size))


def _check_ordinary(rows: FloatArray, site: Statistics, request: Request, query: Query) -> None:
    """Refuse a site that says nothing: errors and vectors of another size count as zero there, silently."""
    if np.isfinite(rows).all(axis=1).any():
        return
    # An error of the author's code is raised here as it is.
    shapes = [np.shape(batch) for batch in site(request.stage, request.published, request.state)]
    raise SensitivityError(
        f"'{query.label}': no ordinary subject has a usable vector, so that all would count as zero. A site "
        f"returns finite arrays of shape (subjects, {query.row_size}), got {shapes}"
    )


def _clipped(rows: FloatArray, query: Query) -> FloatArray:
    """Return the vectors as they count: clipped, and zero where they are not finite."""
    vectors = rows[:, query.row_size - query.size :]
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        clipped = vectors * np.minimum(1.0, query.clip / np.maximum(norms, query.clip))
    return np.where(np.isfinite(clipped).all(axis=1, keepdims=True), clipped, 0.0)


def _largest_distance(
    analysis: Analysis[Any],
    people: list[Array],
    number: int,
    enemies: Mapping[str, Any],
    request: Request,
    query: Query,
) -> float:
    """Return the largest distance of two vectors of the replaced subject or of others."""
    before = _clipped(_rows(analysis.site(people), request, query), query)
    _check_count(before, people, query, "ordinary subjects")
    vectors, names = list(before), [f"subject {place}" for place in range(len(people))]
    for name, enemy in enemies.items():
        after = _clipped(_rows_with(analysis, people, number, enemy, request, query, name), query)
        _check_count(after, people, query, f"subject {number} replaced by: {name}")
        _check_others(before, after, number, query, name)
        vectors.append(after[number])
        names.append(name)
    return _check_distances(np.array(vectors), names, query)


def _rows_with(
    analysis: Analysis[Any],
    people: list[Array],
    number: int,
    enemy: Any,
    request: Request,
    query: Query,
    name: str,
) -> FloatArray:
    """Return the vectors with one subject replaced; an error there would be visible outside the site."""
    replaced: list[Scan] = [*people[:number], np.asarray(enemy), *people[number + 1 :]]
    try:
        # Hostile numbers are meant to overflow; what counts is the vector.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return _rows(analysis.site(replaced), request, query)
    except ProtocolError:
        raise
    except Exception as error:
        raise SensitivityError(
            f"'{query.label}': the site fails with {type(error).__name__} if subject {number} is replaced "
            f"by: {name}. An error is visible outside the site; an unusable subject must get a vector of "
            "zeros or NaN"
        ) from error


def _check_count(rows: FloatArray, people: Sequence[Any], query: Query, whose: str) -> None:
    if len(rows) != len(people):
        raise SensitivityError(
            f"'{query.label}': {len(rows)} vectors for {len(people)} subjects ({whose}). Every subject needs "
            "exactly one; code that can fail must be a map over subjects, since a generator ends at an error"
        )


def _check_others(before: FloatArray, after: FloatArray, number: int, query: Query, name: str) -> None:
    change = np.linalg.norm(after - before, axis=1)
    change[number] = 0.0
    if change.max() > _ROUNDING * query.clip:
        raise SensitivityError(
            f"'{query.label}': the vector of subject {int(change.argmax())} changes by {change.max():.3g} if "
            f"subject {number} is replaced by: {name}. A subject's vector may depend on that subject alone; "
            "anything computed across subjects is a query of its own"
        )


def _check_distances(vectors: FloatArray, names: Sequence[str], query: Query) -> float:
    distances, bound = pdist(vectors), _bound(query)
    worst = int(distances.argmax())
    if distances[worst] > bound + _ROUNDING * query.clip:
        first, second = (int(place[worst]) for place in np.triu_indices(len(vectors), 1))
        raise SensitivityError(
            f"'{query.label}': the vectors of two subjects ({names[first]}; {names[second]}) are "
            f"{distances[worst]:.4g} apart, but the query claims at most {bound:.4g} (spread "
            f"{query.spread:g} times clip {query.clip:g})"
        )
    return float(distances[worst])
