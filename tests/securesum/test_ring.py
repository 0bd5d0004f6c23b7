import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.securesum.ring import SUM_LIMIT, FixedPoint, lift, to_ring

int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(int64))
def test_lift_undoes_to_ring(values):
    integers = np.array(values, dtype=np.int64)
    words = to_ring(integers)
    assert words.dtype == np.uint64
    assert [int(w) for w in words] == [v % 2**64 for v in values]
    np.testing.assert_array_equal(lift(words), integers)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=20),
    st.sampled_from([2.0**-40, 1e-9, 0.3]),
)
def test_decoded_value_is_nearest_point_of_the_grid(values, step):
    grid = FixedPoint(step=step, bound=5.0, n_terms=10)
    decoded = grid.decode(grid.encode(values))
    assert np.all(np.abs(decoded - values) <= step * (0.5 + 1e-12) + 5 * 2**-50)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_encoded_sum_equals_sum_of_integers_whatever_the_signs(values):
    grid = FixedPoint(step=2.0**-50, bound=1.0, n_terms=50)
    total = np.add.reduce(grid.encode(values))
    exact = sum(round(v * 2**50) for v in values)
    assert int(lift(np.array([total]))[0]) == exact


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.0000001, -2.0])
def test_encode_refuses_what_is_not_within_the_public_bound(bad):
    grid = FixedPoint(step=1e-6, bound=1.0)
    with pytest.raises(InputError, match="not finite or exceeds the public bound 1"):
        grid.encode([0.0, bad])


def test_grid_is_refused_exactly_when_the_sum_could_reach_the_limit():
    n_terms, step = 8, 1.0
    fits = SUM_LIMIT / n_terms - 2**12
    FixedPoint(step, fits, n_terms)
    with pytest.raises(InputError, match=r"could reach 2\^62"):
        FixedPoint(step, SUM_LIMIT / n_terms, n_terms)


def test_largest_admitted_sum_does_not_wrap():
    n_terms = 8
    grid = FixedPoint(1.0, SUM_LIMIT / n_terms - 2**12, n_terms)
    total = np.add.reduce(grid.encode([grid.bound] * n_terms))
    assert grid.decode(np.array([total]))[0] == n_terms * grid.bound


@pytest.mark.parametrize(
    ("step", "bound", "n_terms", "named"),
    [
        (0.0, 1.0, 1, "step"),
        (-1.0, 1.0, 1, "step"),
        (np.nan, 1.0, 1, "step"),
        (np.inf, 1.0, 1, "step"),
        (1.0, -1.0, 1, "bound"),
        (1.0, np.inf, 1, "bound"),
        (1.0, np.nan, 1, "bound"),
        (1.0, 1.0, 0, "n_terms"),
        (5e-324, 1.0, 1, "wrap"),
    ],
)
def test_impossible_grids_are_refused(step, bound, n_terms, named):
    with pytest.raises(InputError, match=named):
        FixedPoint(step, bound, n_terms)
