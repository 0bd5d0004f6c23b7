"""check_sensitivity: true claims pass, and each kind of false claim is found and named."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from capedjica import check_sensitivity, private_analysis
from capedjica.algorithms.analysis import Result, ResultTable
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.algorithms.state import pack, read_arrays
from capedjica.algorithms.tables.histogram import HistogramOfRows
from capedjica.algorithms.tables.mean import MeanOfRows
from capedjica.errors import InputError, ProtocolError, SensitivityError
from capedjica.mechanisms.contract import Query, Stage

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 3))
SCANS = [RNG.normal(size=(40, 6)).astype(np.float32) for _ in range(4)]


@dataclass(frozen=True)
class Custom:
    """One query, asked twice; the second time with the first mean as public state."""

    rows: Any
    query: Query = field(default=Query("vectors", 3, 1.0))

    def stages(self):
        return (Stage(self.query, 2),)

    def site(self, subjects):
        return partial(self._answer, subjects)

    def _answer(self, subjects, stage, published, state):
        return self.rows(subjects, read_arrays(state, center=(3,))["center"])

    def estimate(self, means, progress=None):
        first = means.mean(0, pack(center=np.zeros(3)))
        means.mean(0, pack(center=first))
        return Result()


def centred(subjects, center):
    return [np.asarray(subjects) - center]


@pytest.mark.parametrize(
    ("analysis", "subjects"),
    [
        (MeanOfRows(3, 2.0), ROWS),
        (HistogramOfRows((np.linspace(-2, 2, 5),) * 3), ROWS),
        (Custom(centred), ROWS),
        (SubjectMethod(6, 3, 40, 0.02), SCANS),
    ],
)
def test_true_claims_pass(analysis, subjects):
    found = check_sensitivity(analysis, subjects)
    assert all(query.largest <= query.bound * (1 + 1e-6) for query in found.queries)
    assert str(found).startswith("No counterexample among ")


def test_the_bound_of_a_mean_is_attained():
    (query,) = check_sensitivity(MeanOfRows(3, 2.0), ROWS).queries
    assert query.largest == pytest.approx(query.bound)


@pytest.mark.parametrize(("spread", "passes"), [(math.sqrt(2), True), (1.3, False), (1.0, False)])
def test_a_spread_that_is_too_small_is_found(spread, passes):
    """A unit vector of a bin: two are sqrt(2) apart."""

    def bins(subjects, center):
        with np.errstate(invalid="ignore"):
            return [np.eye(3)[np.nan_to_num(np.asarray(subjects)[:, 0] > 0).astype(int)]]

    analysis = Custom(bins, Query("bins", 3, 1.0, spread))
    if passes:
        check_sensitivity(analysis, ROWS)
    else:
        with pytest.raises(SensitivityError, match=r"'bins'.* are 1.414 apart, but the query claims at most"):
            check_sensitivity(analysis, ROWS)


def test_values_computed_across_subjects_are_found():
    def standardised(subjects, center):
        values = np.nan_to_num(np.asarray(subjects), posinf=0.0, neginf=0.0)
        return [values - values.mean(axis=0)]

    with pytest.raises(SensitivityError, match=r"the vector of subject \d changes by .* another|alone"):
        check_sensitivity(Custom(standardised), ROWS)


def test_a_mean_over_the_others_that_only_a_state_reveals_is_found():
    def sometimes(subjects, center):
        values = np.nan_to_num(np.asarray(subjects), posinf=0.0, neginf=0.0)
        return [values - (values.mean(axis=0) if np.any(center) else 0.0)]

    with pytest.raises(SensitivityError, match="may depend on that subject alone"):
        check_sensitivity(Custom(sometimes), ROWS)


def test_a_generator_that_ends_at_an_error_is_found():
    def one_by_one(subjects, center):
        for subject in subjects:
            if not np.isfinite(subject).all():
                raise ValueError("not finite")
            yield np.asarray(subject)[np.newaxis]

    with pytest.raises(SensitivityError, match="a generator ends at an error"):
        check_sensitivity(Custom(one_by_one), ROWS)


def test_a_map_that_fails_for_one_subject_passes():
    def one(subject):
        if not np.isfinite(subject).all():
            raise ValueError("not finite")
        return np.asarray(subject)[np.newaxis]

    check_sensitivity(Custom(lambda subjects, center: map(one, subjects)), ROWS)


def test_a_site_that_fails_is_found():
    @dataclass(frozen=True)
    class Fragile(Custom):
        def site(self, subjects):
            if not np.isfinite(np.asarray(subjects)).all():
                raise ValueError("not finite")
            return super().site(subjects)

    with pytest.raises(SensitivityError, match="the site fails with ValueError if subject 0 is replaced by"):
        check_sensitivity(Fragile(centred), ROWS)


def test_subjects_left_out_are_found():
    def usable(subjects, center):
        values = np.asarray(subjects)
        return [values[np.isfinite(values).all(axis=1)]]

    with pytest.raises(SensitivityError, match="4 vectors for 5 subjects"):
        check_sensitivity(Custom(usable), ROWS)


def test_own_hostile_subjects_are_tried():
    magic = np.array([0.125, 0.25, 0.5])

    def secret(subjects, center):
        values = np.asarray(subjects)
        found = (values == magic).all(axis=1)
        return [np.where(found[:, np.newaxis], 1.0, 0.0) * np.ones(3) * (2 if found.any() else 1)]

    query = Query("secret", 3, 1.0, 1.0)
    check_sensitivity(Custom(secret, query), ROWS)
    with pytest.raises(SensitivityError, match="replaced by: magic"):
        check_sensitivity(
            Custom(lambda s, c: [np.full((len(s), 3), (np.asarray(s) == magic).any())], query),
            ROWS,
            hostile={"magic": magic},
        )


def test_what_is_refused():
    with pytest.raises(InputError, match="at least 2 subjects, got 1"):
        check_sensitivity(MeanOfRows(3, 2.0), ROWS[:1])


def test_a_malformed_state_stays_a_protocol_error():
    @dataclass(frozen=True)
    class Wrong(Custom):
        def estimate(self, means, progress=None):
            means.mean(0, b"nonsense")
            return Result()

    with pytest.raises(ProtocolError):
        check_sensitivity(Wrong(centred), ROWS)


def test_any_analysis_runs_in_one_process():
    sites = {name: np.ones((50, 3)) for name in ("north", "south", "east", "west")}
    found = private_analysis(MeanOfRows(3, 2.0), sites, epsilon=5.0)
    assert np.allclose(found.result.value, 1.0, atol=0.5)
    assert found.privacy.epsilon <= 5.0
    with pytest.raises(InputError, match="epsilon"):
        private_analysis(MeanOfRows(3, 2.0), sites)


def test_vectors_of_another_size_are_found():
    """At a site they count as zeros, and the result would be noise."""
    with pytest.raises(SensitivityError, match=r"no ordinary subject .*\(subjects, 3\), got \[\(5, 2\)\]"):
        check_sensitivity(Custom(lambda subjects, center: [np.asarray(subjects)[:, :2]]), ROWS)


def test_an_error_with_ordinary_subjects_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        check_sensitivity(Custom(lambda subjects, center: 1 / 0), ROWS)


def test_a_query_that_no_run_asks_is_named():
    @dataclass(frozen=True)
    class Silent(Custom):
        def estimate(self, means, progress=None):
            return Result()

    assert "vectors: NOT CHECKED" in str(check_sensitivity(Silent(centred), ROWS))


@pytest.mark.parametrize("check", [check_sensitivity, partial(private_analysis, epsilon=1.0)])
def test_a_result_that_cannot_be_written_is_refused(check):
    @dataclass(frozen=True)
    class Bare(Custom):
        def estimate(self, means, progress=None):
            return 3.0

    @dataclass(frozen=True, eq=False)
    class Torn(Result):
        def tables(self):
            return [ResultTable("torn", "A table.", ["number", "value"], [("1", np.zeros(2))])]

    @dataclass(frozen=True)
    class Table(Custom):
        def estimate(self, means, progress=None):
            return Torn()

    given = [ROWS] * 4 if isinstance(check, partial) else ROWS
    with pytest.raises(InputError, match=r"Bare\.estimate must return a .*\.Result, got float"):
        check(Bare(centred), given)
    with pytest.raises(InputError, match="a row of the table 'torn' must have a text or a number for each"):
        check(Table(centred), given)
