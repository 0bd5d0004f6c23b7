"""A site's own sum: exact, clipped, and defined whatever a subject's data are."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capedjica.errors import ProtocolError
from capedjica.mechanisms.release import plan_release
from capedjica.mechanisms.site.clipping import sum_subjects
from tests.mechanisms.world import make_data, make_study


def plan_for(size, sizes=(6, 5, 7), **options):
    study = make_study(make_data(sizes, size), **options)
    contract = study.contract
    return plan_release(contract, contract.stages[0].query, 1.0, contract.roster.names)


PLAN = plan_for(4)
GRID = PLAN.scale["s0"] / PLAN.step
anything = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=300)
@given(arrays(np.float64, st.tuples(st.integers(0, 8), st.just(4)), elements=anything))
def test_any_data_give_a_sum_within_the_sensitivity(rows):
    """No rows at all, NaN, infinity, overflow: the sum is defined, and one row moves it by at most C."""
    total, n_zero = sum_subjects(lambda: [rows], PLAN, "s0", 6)
    assert total.dtype == np.int64
    assert 0 <= n_zero <= 6
    longest = GRID + math.sqrt(4) / 2
    assert np.linalg.norm(total.astype(float)) <= min(len(rows), 6) * longest * (1 + 1e-12)


@settings(max_examples=200)
@given(
    arrays(np.float64, (1, 4), elements=st.floats(-1e6, 1e6)), arrays(np.float64, (1, 4), elements=anything)
)
def test_replacing_one_subject_moves_the_sum_by_at_most_the_sensitivity(one, other):
    here, _ = sum_subjects(lambda: [one], PLAN, "s0", 1)
    there, _ = sum_subjects(lambda: [other], PLAN, "s0", 1)
    sensitivity = 2 * GRID + math.sqrt(4)
    assert np.linalg.norm((here - there).astype(float)) <= sensitivity * (1 + 1e-12)


def test_broken_subjects_contribute_zero_and_are_counted():
    rows = np.full((6, 4), 0.3)
    rows[1, 2], rows[3, 0], rows[4, 1] = np.nan, np.inf, -np.inf
    total, n_zero = sum_subjects(lambda: [rows], PLAN, "s0", 6)
    assert n_zero == 3
    assert total == pytest.approx(np.rint(np.full(4, 0.3 * GRID)) * 3)


def test_batches_of_any_kind_give_the_same_sum():
    rows = np.random.default_rng(3).standard_normal((6, 4))
    expected, _ = sum_subjects(lambda: [rows], PLAN, "s0", 6)
    for batches in (
        [rows[:2], rows[2:]],
        iter([rows[i : i + 1] for i in range(6)]),
        [np.asfortranarray(rows)],
    ):
        total, n_zero = sum_subjects(partial(iter, batches), PLAN, "s0", 6)
        assert (total == expected).all()
        assert n_zero == 0
    single, _ = sum_subjects(lambda: [rows.astype(np.float32)], PLAN, "s0", 6)
    assert single == pytest.approx(expected, rel=1e-6, abs=10)


def row_of(subject):
    """What a real statistic may do with a broken scan."""
    if subject is None:
        raise ValueError("the scan of Mrs. Smith is broken")
    return np.full((1, 4), subject)


def test_a_subject_that_fails_is_zero_and_changes_nobody_else():
    """Each subject in turn breaks: the sum loses that subject's part, and no other."""
    subjects = [0.1, 0.2, 0.3, -0.1, 0.4, 0.05]
    parts = [np.rint(np.full(4, value * GRID)) for value in subjects]
    for broken in range(6):
        scans = [None if number == broken else value for number, value in enumerate(subjects)]
        total, n_zero = sum_subjects(partial(map, row_of, scans), PLAN, "s0", 6)
        assert n_zero == 1
        assert (total == sum(parts[:broken] + parts[broken + 1 :])).all()


def test_endless_errors_end():
    total, n_zero = sum_subjects(partial(map, row_of, itertools.repeat(None)), PLAN, "s0", 6)
    assert n_zero == 6
    assert not total.any()


def test_a_statistic_that_fails_at_once_is_zero_unless_it_is_the_state_that_is_refused():
    def fails(error):
        raise error

    total, n_zero = sum_subjects(partial(fails, ValueError("scan 7 is broken")), PLAN, "s0", 6)
    assert n_zero == 6
    assert not total.any()
    with pytest.raises(ProtocolError, match="a public state of 3 bytes"):
        sum_subjects(partial(fails, ProtocolError("a public state of 3 bytes")), PLAN, "s0", 6)


@pytest.mark.parametrize(
    "batch",
    [
        None,
        "scan.nii",
        7.0,
        [["a", "b", "c", "d"]],
        [[1.0, 2.0], [3.0]],
        np.array([[None] * 4], dtype=object),
        np.ones((1, 4, 4)),
    ],
)
def test_what_is_no_array_of_rows_counts_as_one_subject_of_zero(batch):
    total, n_zero = sum_subjects(lambda: [batch, np.full((1, 4), 0.1)], PLAN, "s0", 2)
    assert n_zero == 1
    assert (total == np.rint(np.full(4, 0.1 * GRID))).all()


@pytest.mark.parametrize("size", [1, 4, 300, 100_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 200.0])
def test_no_vector_of_the_longest_norm_is_lost(size, epsilon):
    """The bound on the integers leaves room for what clipping and rounding may do to a vector of norm C."""
    plan = plan_for(size, epsilon=epsilon)
    rows = np.random.default_rng(size).standard_normal((6, size)) * 5
    rows[0], rows[1, 1:] = 1 / math.sqrt(size), 0
    assert sum_subjects(lambda: [rows], plan, "s0", 6)[1] == 0


def test_wrong_shapes_and_surplus_subjects_are_ignored():
    assert sum_subjects(lambda: [np.ones((2, 3)), np.ones(4)], PLAN, "s0", 6)[1] == 6
    total, n_zero = sum_subjects(lambda: [np.full((9, 4), 0.1)], PLAN, "s0", 6)
    assert n_zero == 0
    assert total == pytest.approx(np.rint(np.full(4, 0.1 * GRID)) * 6)


def test_the_sum_cannot_leave_the_ring():
    """Equation (2) of the module, for extreme but accepted settings."""
    for epsilon in (1e-3, 1.0, 300.0):
        plan = plan_for(50, sizes=(2000, 3, 900), epsilon=epsilon)
        reach = plan.n_subjects * (1 / plan.step + 1) + 12 * math.sqrt(sum(n**2 for n in plan.noise.values()))
        assert reach < 2**62
        assert min(plan.noise.values()) >= 2**16
