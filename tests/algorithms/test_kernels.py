"""The fused kernels against plain NumPy, and what they do with subjects that cannot be used."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.algorithms import kernels, parallel
from capedjica.algorithms.kernels import (
    PackedSubjects,
    infomax_statistics,
    second_moments,
    skew_statistics,
)
from capedjica.errors import InputError

LENGTHS = [1, 31, 32, 33, 250, 256, 257, 700]


def subjects_of(n_features, lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.laplace(size=(length, n_features)) for length in lengths]


def model(n_features, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_features, n_features)) / np.sqrt(n_features), 0.3 * rng.normal(size=n_features)


def plain_gradients(x, W, b):
    """Every time point's y and its R x R gradient, before clipping."""
    z = x @ W.T + b
    y = -np.tanh(z / 2)
    return y, (np.eye(len(W)) + y[:, :, None] * z[:, None, :]) @ W


def plain_infomax(x, W, b, clip_g, clip_h):
    """Algorithm 4 as written: one R x R gradient per time point, float64."""
    y, gradients = plain_gradients(x, W, b)
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    g = (gradients / np.maximum(1, norms / clip_g)).mean(axis=0)
    h = (y / np.maximum(1, np.linalg.norm(y, axis=1, keepdims=True) / clip_h)).mean(axis=0)
    return np.concatenate([g.ravel(), h])


def clips_at(subjects, W, b, share):
    """Bounds that leave this share of the time points whole, beyond the extremes for 0 and 1."""
    y, gradients = plain_gradients(np.concatenate(subjects), W, b)
    margin = {0.0: 0.9, 0.5: 1.0, 1.0: 1.1}[share]
    norms = np.linalg.norm(gradients, axis=(1, 2)), np.linalg.norm(y, axis=1)
    return [margin * np.quantile(norm, share) for norm in norms]


def plain_skew(x, W, half=7, floor=0.3):
    z = x @ W.T
    windows = [slice(max(t - half, 0), t + half + 1) for t in range(len(z))]
    variance = np.array([np.mean(z[window] ** 2, axis=0) for window in windows])
    moments = (z / (floor + (1 - floor) * variance)).T @ z / len(z)
    return (moments - moments.T)[np.triu_indices(len(W), 1)]


def plain_second_moments(x, clip):
    clipped = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True) / clip)
    return clipped.T @ clipped / len(x)


def assert_rows_close(rows, expected, tolerance=1e-5):
    scale = np.linalg.norm(expected, axis=1)
    assert (np.linalg.norm(rows - expected, axis=1) <= tolerance * scale).all()


@pytest.mark.parametrize("n_features", [2, 3, 5, 20, 31])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["all clipped", "half clipped", "none clipped"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 1000.0])
def test_infomax_agrees_with_the_algorithm_as_written(n_features, share, scale):
    subjects, (W, b) = subjects_of(n_features), model(n_features)
    clips = clips_at(subjects, scale * W, b, share)
    rows = infomax_statistics(PackedSubjects.from_list(subjects), scale * W, b, *clips)
    assert_rows_close(rows, np.array([plain_infomax(x, scale * W, b, *clips) for x in subjects]))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_single_component_may_lose_digits_where_its_gradient_vanishes(share):
    # R = 1 only: 1 + y z can be 0, and then equation (2) is a difference of equal numbers.
    subjects, (W, b) = subjects_of(1), model(1)
    clips = clips_at(subjects, W, b, share)
    rows = infomax_statistics(PackedSubjects.from_list(subjects), W, b, *clips)
    expected = np.array([plain_infomax(x, W, b, *clips) for x in subjects])
    assert_rows_close(rows, expected, tolerance=1e-3)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_infomax_reference_notices_another_clip(factor):
    subjects, (W, b) = subjects_of(5), model(5)
    rows = infomax_statistics(PackedSubjects.from_list(subjects), W, b, factor * 3.0, 1.0)
    expected = np.array([plain_infomax(x, W, b, 3.0, 1.0) for x in subjects])
    with pytest.raises(AssertionError):
        assert_rows_close(rows, expected, tolerance=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    magnitude=st.floats(-30, 30),
    weight=st.floats(-6, 6),
    clips=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
)
def test_infomax_rows_never_exceed_their_bounds(seed, magnitude, weight, clips):
    subjects = [x * 10.0**magnitude for x in subjects_of(3, [1, 40], seed)]
    W, b = model(3, seed)
    rows = infomax_statistics(PackedSubjects.from_list(subjects), W * 10.0**weight, b, *clips)
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows[:, :9], axis=1) <= clips[0] * (1 + 1e-12)).all()
    assert (np.linalg.norm(rows[:, 9:], axis=1) <= clips[1] * (1 + 1e-12)).all()


@pytest.mark.parametrize("n_features", [1, 2, 5, 20, 31])
def test_skew_agrees_with_numpy(n_features):
    subjects, (W, _) = subjects_of(n_features), model(n_features)
    rows = skew_statistics(PackedSubjects.from_list(subjects), W)
    assert rows.shape == (len(LENGTHS), n_features * (n_features - 1) // 2)
    assert_allclose(rows, [plain_skew(x, W) for x in subjects], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("floor", [0.05, 0.5, 0.9])
def test_skew_truncates_the_window_at_the_ends_of_a_scan(floor):
    subjects, (W, _) = subjects_of(5, range(1, 40)), model(5)
    rows = skew_statistics(PackedSubjects.from_list(subjects), W, floor)
    assert_allclose(rows, [plain_skew(x, W, floor=floor) for x in subjects], rtol=1e-4, atol=5e-6)


def test_a_spike_leaves_no_trace_beyond_its_window():
    """A running sum would keep the rounding error of the spike for the rest of the scan."""
    (subject,) = subjects_of(4, [200])
    subject[100] = 1e8
    rows = skew_statistics(PackedSubjects.from_list([subject]), np.eye(4))
    assert_allclose(rows[0], plain_skew(subject, np.eye(4)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("clip", [0.1, 12.0, 1e3])
def test_second_moments_agree_with_numpy(clip):
    subjects = subjects_of(50)
    expected = [plain_second_moments(x, clip) for x in subjects]
    for subject, moments in zip(subjects, expected, strict=True):
        result = second_moments(subject, clip)
        assert_array_equal(result, result.T)
        assert_allclose(result, moments, rtol=1e-4, atol=1e-6 * np.linalg.norm(moments))


@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e3])
def test_second_moments_stay_within_the_clip(clip):
    for magnitude in (1e-30, 1.0, 1e30):
        result = second_moments(magnitude * subjects_of(7, [1000])[0], clip).astype(np.float64)
        assert np.linalg.norm(result) <= clip**2 * (1 + 1000 / 2**24)


def unusable(kind):
    subject = subjects_of(6, [300], seed=5)[0]
    if kind == "empty":
        return subject[:0]
    subject[280, 3] = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "beyond float32": 1e300}[kind]
    return subject


@pytest.mark.parametrize("kind", ["nan", "inf", "-inf", "beyond float32", "empty"])
def test_an_unusable_subject_is_zero_and_touches_nobody_else(kind):
    good, (W, b) = subjects_of(6, [100, 80]), model(6)
    packed = PackedSubjects.from_list([good[0], unusable(kind), good[1]])
    alone = PackedSubjects.from_list(good)
    for kernel in (lambda p: infomax_statistics(p, W, b, 2.0, 1.0), lambda p: skew_statistics(p, W)):
        rows = kernel(packed)
        assert_array_equal(rows[1], 0)
        assert_array_equal(rows[[0, 2]], kernel(alone))
    assert_array_equal(second_moments(unusable(kind), 1.0), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_an_unusable_state_gives_zero_rows(value):
    packed, (W, b) = PackedSubjects.from_list(subjects_of(4)), model(4)
    W[1, 2] = value
    assert_array_equal(infomax_statistics(packed, W, b, 2.0, 1.0), 0)
    assert_array_equal(skew_statistics(packed, W), 0)


def test_tanh_is_within_its_stated_error():
    x = np.concatenate([np.linspace(-30, 30, 2_000_001), np.geomspace(1e-30, 1, 10_001)]).astype(np.float32)
    exact = np.tanh(x.astype(np.float64))
    error = np.abs(np.array([kernels._tanh(value) for value in x[::100]]) - exact[::100])
    assert (error <= kernels.TANH_ERROR * np.abs(exact[::100])).all()
    assert np.isnan(kernels._tanh(np.float32(np.nan)))


def test_rows_do_not_depend_on_threads(monkeypatch):
    packed, (W, b) = PackedSubjects.from_list(subjects_of(8)), model(8)
    gradients, skew = infomax_statistics(packed, W, b, 2.0, 1.0), skew_statistics(packed, W)
    for threads in (1, 2, 5, 100):
        monkeypatch.setattr(parallel.numba.config, "NUMBA_NUM_THREADS", threads)
        assert_array_equal(infomax_statistics(packed, W, b, 2.0, 1.0), gradients)
        assert_array_equal(skew_statistics(packed, W), skew)


def test_many_threads_may_call_a_kernel_at_once():
    packed, (W, _) = PackedSubjects.from_list(subjects_of(8)), model(8)
    expected = skew_statistics(packed, W)
    with ThreadPoolExecutor(8) as pool:
        for rows in pool.map(lambda _: skew_statistics(packed, W), range(50)):
            assert_array_equal(rows, expected)


FORKED = """
import multiprocessing, numpy as np
from capedjica.algorithms.kernels import PackedSubjects, skew_statistics
packed = PackedSubjects.from_list([np.random.default_rng(0).normal(size=(50, 4))] * 9)
def total(_): return float(skew_statistics(packed, np.eye(4)).sum())
expected = total(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(total, range(4)) == [expected] * 4
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_kernel_works_after_a_fork():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_packing_keeps_order_and_lengths():
    subjects = subjects_of(3)
    packed = PackedSubjects.from_list(subjects)
    assert packed.n_subjects == len(subjects)
    for m, subject in enumerate(subjects):
        part = packed.samples[packed.offsets[m] : packed.offsets[m + 1]]
        assert_array_equal(part, subject.astype(np.float32))
    assert repr(packed) == "PackedSubjects(n_subjects=8, n_features=3)"


@pytest.mark.parametrize(
    ("subjects", "message"),
    [
        ([], "at least one subject"),
        ([np.zeros((5, 3)), np.zeros((5, 4))], "subject 1 must have 3 features like subject 0, got 4"),
        ([np.zeros(5)], r"subject 0 must be an array \(time, features\), got shape \(5,\)"),
        ([np.zeros((5, 0))], "subject 0 must be"),
        ([[["a"]]], "subject 0 must be an array of numbers"),
    ],
)
def test_packing_refuses(subjects, message):
    with pytest.raises(InputError, match=message):
        PackedSubjects.from_list(subjects)


@pytest.mark.parametrize("offsets", [[0, 6], [1, 5], [0, 3, 2, 5], [0], [-1, 5]])
def test_offsets_may_not_point_outside(offsets):
    with pytest.raises(InputError, match="offsets"):
        PackedSubjects(np.zeros((5, 2), np.float32), np.array(offsets, dtype=np.int64), 5)
    with pytest.raises(InputError, match="samples"):
        PackedSubjects(np.zeros((5, 2)), np.array([0, 5]), 5)
    with pytest.raises(InputError, match="at most longest = 4 time points"):
        PackedSubjects(np.zeros((5, 2), np.float32), np.array([0, 5]), 4)


def test_wrong_shapes_and_bounds_are_refused():
    packed, (W, b) = PackedSubjects.from_list(subjects_of(4)), model(4)
    with pytest.raises(InputError, match=r"W must be a \(4, 4\) matrix"):
        skew_statistics(packed, W[:3])
    with pytest.raises(InputError, match="b must contain 4 numbers"):
        infomax_statistics(packed, W, b[:3], 1.0, 1.0)
    with pytest.raises(InputError, match="clip_g must be a finite number above 0"):
        infomax_statistics(packed, W, b, 0.0, 1.0)
    with pytest.raises(InputError, match="clip must be"):
        second_moments(np.zeros((5, 2)), np.nan)
