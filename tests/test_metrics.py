"""Properties that define the metrics, and the input that they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.errors import InputError
from capedjica.metrics import (
    captured_energy,
    match_components,
    matched_map_correlation,
    normalized_gain_index,
    subspace_angles,
)

sizes = st.integers(2, 7)
magnitudes = st.floats(1e-3, 1e3)
gains = sizes.flatmap(
    lambda n: arrays(np.float64, (n, n), elements=magnitudes | magnitudes.map(lambda x: -x))
)
seeds = st.integers(0, 2**32 - 1)


def rotation(size, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


@given(gains)
def test_gain_index_is_the_formula_and_between_0_and_1(P):
    a, n = np.abs(P), len(P)
    rows = sum(sum(a[i]) / max(a[i]) - 1 for i in range(n))
    columns = sum(sum(a[:, j]) / max(a[:, j]) - 1 for j in range(n))
    q = normalized_gain_index(P)
    assert q == pytest.approx((rows + columns) / (2 * n * (n - 1)), rel=1e-9, abs=1e-12)
    assert -1e-12 <= q <= 1 + 1e-12


@given(gains, seeds, st.floats(-200, 200))
def test_gain_index_ignores_order_sign_and_common_scale(P, seed, exponent):
    rng = np.random.default_rng(seed)
    n = len(P)
    changed = P[rng.permutation(n)][:, rng.permutation(n)] * rng.choice([-1, 1], n)
    q = normalized_gain_index(P)
    assert normalized_gain_index(changed * 10.0**exponent) == pytest.approx(q, rel=1e-9, abs=1e-12)
    assert normalized_gain_index(P.T) == pytest.approx(q, rel=1e-9, abs=1e-12)


@given(sizes, seeds)
def test_gain_index_is_0_exactly_for_scaled_permutations(n, seed):
    rng = np.random.default_rng(seed)
    P = np.diag(rng.uniform(0.1, 10, n) * rng.choice([-1, 1], n))[rng.permutation(n)]
    assert normalized_gain_index(P) == pytest.approx(0, abs=1e-12)
    assert normalized_gain_index(P + 0.01) > 1e-4


def test_gain_index_at_its_ends():
    assert normalized_gain_index(np.eye(5)) == 0
    assert normalized_gain_index(np.ones((5, 5))) == 1
    assert normalized_gain_index([[-3.0]]) == 0


@pytest.mark.parametrize(
    ("P", "message"),
    [
        ([[1.0, np.nan], [0.0, 1.0]], "P must be finite"),
        ([[1.0, np.inf], [0.0, 1.0]], "P must be finite"),
        ([[1.0, 1.0], [0.0, 0.0]], "row or a column of zeros"),
        ([[1.0, 0.0], [1.0, 0.0]], "row or a column of zeros"),
        (np.ones((2, 3)), "P must be square"),
        ([1.0, 2.0], "P must be a matrix"),
        (np.zeros((0, 0)), "P must be a matrix"),
        ([["a"]], "P must be an array of real numbers"),
        (np.ones((2, 2, 2)), "P must be a matrix"),
    ],
)
def test_gain_index_refuses(P, message):
    with pytest.raises(InputError, match=message):
        normalized_gain_index(P)


@given(sizes, seeds)
def test_matching_undoes_order_sign_scale_and_offset(n, seed):
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, 5, 8))
    order, signs = rng.permutation(n), rng.choice([-1.0, 1.0], n)
    shape = (n, 1, 1)
    estimated = true[order] * (signs * rng.uniform(0.1, 10, n)).reshape(shape) + rng.normal(size=shape)
    matching = match_components(estimated, true)
    assert_array_equal(order[matching.permutation], np.arange(n))
    assert_array_equal(matching.signs, signs[matching.permutation])
    assert_allclose(matching.correlations, 1, rtol=1e-9)
    assert (matching.correlations <= 1).all()
    assert matched_map_correlation(estimated, true) == pytest.approx(1)


def test_matching_is_the_best_assignment_not_a_greedy_one():
    t = 2 * np.pi * np.arange(50) / 50
    e, f, g = np.sin(t), np.cos(t), np.sin(2 * t)
    # correlations with (e, f): estimate 0 has (0.8, 0.6), estimate 1 has (0.7, 0); greedy gives 0.8 + 0.
    estimated = [0.8 * e + 0.6 * f, 0.7 * e + np.sqrt(1 - 0.49) * g]
    matching = match_components(estimated, [e, f])
    assert_array_equal(matching.permutation, [1, 0])
    assert_allclose(matching.correlations, [0.7, 0.6], atol=1e-9)


def test_unrelated_maps_do_not_match():
    rng = np.random.default_rng(0)
    assert matched_map_correlation(rng.normal(size=(5, 400)), rng.normal(size=(5, 400))) < 0.3


@pytest.mark.parametrize(
    ("estimated", "true", "message"),
    [
        (
            np.ones((2, 4)),
            np.eye(2, 4),
            "estimated must not contain a constant component; component 0 is constant",
        ),
        (np.eye(2, 4), np.zeros((2, 4)), "true must not contain a constant"),
        (np.eye(2, 4), np.eye(3, 4), "estimated must have the same shape as true"),
        (np.full((2, 4), np.nan), np.eye(2, 4), "estimated must be finite"),
    ],
)
def test_matching_refuses(estimated, true, message):
    with pytest.raises(InputError, match=message):
        match_components(estimated, true)


@given(st.integers(2, 8), seeds)
def test_captured_energy_is_best_for_leading_eigenvectors(size, seed):
    Q, values = rotation(size, seed), np.arange(size, 0, -1.0)
    C, rank = Q @ np.diag(values) @ Q.T, size // 2
    assert captured_energy(Q[:, :rank], C) == pytest.approx(values[:rank].sum())
    assert captured_energy(Q[:, :rank], C, relative=True) == pytest.approx(1)
    assert captured_energy(Q[:, size - rank :], C, relative=True) < 0.999
    other = rotation(size, seed + 1)
    assert captured_energy(other[:, :rank], C, relative=True) <= 1 + 1e-12
    assert captured_energy(other, C) == pytest.approx(values.sum())


@pytest.mark.parametrize(
    ("V", "C", "message"),
    [
        (2 * np.eye(3, 2), np.eye(3), "orthonormal"),
        (np.eye(3, 2), np.triu(np.ones((3, 3))), "symmetric"),
        (np.eye(3, 2), np.eye(4), r"got \(3, 2\) and \(4, 4\)"),
        (np.eye(2, 3), np.eye(2), r"R <= D"),
        (np.eye(3, 2), np.diag([1, np.nan, 1]), "C must be finite"),
    ],
)
def test_captured_energy_refuses(V, C, message):
    with pytest.raises(InputError, match=message):
        captured_energy(V, C)


def test_relative_energy_of_nothing_is_refused():
    with pytest.raises(InputError, match="energy to capture"):
        captured_energy(np.eye(3, 2), np.zeros((3, 3)), relative=True)


@given(st.floats(0, np.pi / 2), seeds)
def test_subspace_angles_finds_a_known_angle(angle, seed):
    Q = rotation(5, seed)
    tilted = np.column_stack([Q[:, 0], np.cos(angle) * Q[:, 1] + np.sin(angle) * Q[:, 2]])
    assert_allclose(subspace_angles(3 * Q[:, :2], tilted @ [[1, 2], [0, 1]]), [angle, 0], atol=1e-6)


def test_subspace_angles_refuses():
    with pytest.raises(InputError, match="same number of rows"):
        subspace_angles(np.eye(3), np.eye(4))
    with pytest.raises(InputError, match="B must be finite"):
        subspace_angles(np.eye(2), np.full((2, 2), np.nan))
