"""capePCA without noise against NumPy, and the bound that its privacy rests on."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.algorithms.kernels import second_moments
from capedjica.algorithms.pca import (
    LONGEST_BATCH,
    PSD_SPREAD,
    leading_subspace,
    pca_query,
    sample_moments,
    subject_moments,
)
from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import Stage
from capedjica.metrics import subspace_angles
from tests.algorithms.ica.reference import clipped_moments

R, D = 3, 12


def make_sites(lengths=(40, 25, 60), n_sites=3, seed=0):
    """Sites of subjects with a few strong directions, samples of norm on both sides of 1."""
    rng = np.random.default_rng(seed)
    scales = 0.6 * 0.6 ** np.arange(D)
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0]
    return [[rng.normal(size=(T, D)) * scales @ turn for T in lengths] for _ in range(n_sites)]


def exact_mean(sites, units, statistics, clip):
    """The mean of all units' vectors over the real engine, with the mechanism that adds no noise."""
    names = [f"site-{s}" for s in range(len(sites))]
    study = EmbeddedStudy(
        "PCA",
        dict(zip(names, units, strict=True)),
        {
            name: lambda stage, published, state, site=site: statistics(site, clip)
            for name, site in zip(names, sites, strict=True)
        },
        [Stage(pca_query(D, clip))],
        in_process(mechanism="none"),
    )
    return study.mean(0)


@pytest.mark.parametrize("clip", [0.5, 1.0, 4.0], ids=["most clipped", "some clipped", "none clipped"])
def test_subjects_without_noise_give_the_pooled_subspace(clip):
    sites = make_sites()
    mean = exact_mean(sites, map(len, sites), subject_moments, clip)
    expected = np.mean([clipped_moments(subject, clip) for site in sites for subject in site], axis=0)
    assert_allclose(unsvec(mean), expected, rtol=0, atol=1e-6 * np.linalg.norm(expected))
    pooled = np.linalg.eigh(expected)[1][:, -R:]
    assert subspace_angles(leading_subspace(mean, R), pooled).max() < 1e-6


@pytest.mark.parametrize("clip", [0.5, 1.0])
def test_samples_without_noise_give_the_pooled_subspace(clip):
    sites = make_sites()
    units = [sum(map(len, site)) for site in sites]
    mean = exact_mean(sites, units, sample_moments, clip)
    expected = clipped_moments(np.concatenate([np.concatenate(site) for site in sites]), clip)
    pooled = np.linalg.eigh(expected)[1][:, -R:]
    assert subspace_angles(leading_subspace(mean, R), pooled).max() < 1e-6


def test_the_pooled_subspace_notices_a_missing_subject():
    sites = make_sites()
    moments = [clipped_moments(subject, 1.0) for site in sites for subject in site]
    first, second = (np.linalg.eigh(np.mean(m, axis=0))[1][:, -R:] for m in (moments, moments[1:]))
    assert subspace_angles(first, second).max() > 1e-3


def test_leading_subspace_is_orthonormal_and_strongest_first():
    moments = np.diag([1.0, 5.0, 3.0])
    V = leading_subspace(svec(moments), 2)
    assert_allclose(np.abs(V), [[0, 0], [1, 0], [0, 1]], atol=1e-12)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("length", [30, LONGEST_BATCH + 1])
def test_a_broken_subject_touches_nobody_else(broken, length):
    good, bad = make_sites((30, length), 1)[0]
    bad[7, 2] = broken
    rows = np.concatenate(list(subject_moments([good, bad, good])))
    assert rows.shape == (3, svec_size(D))
    assert_array_equal(rows[0], rows[2])
    assert not rows[1].any() or not np.isfinite(rows[1]).all()


def rows_that_work(batches):
    """Take step after step as a site does, whatever fails on the way."""
    rows = []
    while True:
        try:
            rows.append(next(batches))
        except StopIteration:
            return np.concatenate(rows)
        except ValueError:
            continue


@pytest.mark.parametrize("statistics", [subject_moments, sample_moments])
@pytest.mark.parametrize("unreadable", [np.zeros(30), np.array([["a", "b"]])], ids=["a vector", "text"])
def test_a_subject_that_fails_ends_nothing(statistics, unreadable):
    good, other = make_sites((30, 20), 1)[0]
    rows = rows_that_work(statistics([good, unreadable, other], 1.0))
    assert_array_equal(rows, rows_that_work(statistics([good, other], 1.0)))


def test_a_broken_sample_touches_no_other():
    (subject,) = make_sites((100,), 1)[0]
    rows = np.concatenate(list(sample_moments([subject])))
    subject[70, 3] = np.nan
    damaged = np.concatenate(list(sample_moments([subject])))
    kept = np.arange(100) != 70
    assert_array_equal(damaged[kept], rows[kept])
    assert not np.isfinite(damaged[70]).all()


# How far two units can be apart ------------------------------------------------------------


def on_the_clip(row):
    """What the site does with a row longer than the clip of 1 before it adds it up."""
    return row / max(1.0, np.linalg.norm(row))


def subject_families(rng):
    """Subjects that rounding could push apart: constant, alternating, sparse, tiny, huge and random ones."""
    for length, width in itertools.product([1, 2, 3, 777, 4096], [1, 2, 5]):
        directions = np.linalg.qr(rng.normal(size=(width, width)))[0]
        signs = rng.choice([-1.0, 1.0], size=(length, 1))
        yield from (np.tile(direction, (length, 1)) for direction in directions)
        yield from (signs * direction for direction in directions)
        yield from (np.tile(axis, (length, 1)) * rng.uniform(0.999, 1, (length, 1)) for axis in np.eye(width))
        noise = rng.normal(size=(length, width))
        yield from (magnitude * noise for magnitude in (1e-38, 1e-19, 1.0, 1e19, 1e38))
        yield from (magnitude * signs * directions[0] for magnitude in (1e-30, 1e30, 3e38))
        yield np.where(rng.random((length, width)) < 0.05, noise, 0.0)


def largest_distance(rows):
    gram = rows @ rows.T
    squares = np.diag(gram)[:, np.newaxis] + np.diag(gram) - 2 * gram
    i, j = np.unravel_index(np.argmax(squares), squares.shape)
    return np.linalg.norm(rows[i] - rows[j])


def test_no_two_subjects_are_further_apart_than_stated():
    rng = np.random.default_rng(0)
    by_width = {}
    for subject in subject_families(rng):
        (row,) = next(iter(subject_moments([subject])))
        by_width.setdefault(subject.shape[1], []).append(on_the_clip(row))
    distances = {width: largest_distance(np.array(rows)) for width, rows in by_width.items()}
    assert max(distances.values()) <= PSD_SPREAD
    assert distances[5] > math.sqrt(2) - 1e-6, "orthogonal subjects attain the bound"
    assert distances[1] <= 1 + 1e-6


def test_a_search_for_distant_subjects_stays_within_the_bound():
    """Climb from random pairs: change both subjects a little, keep what is further apart."""
    rng = np.random.default_rng(1)
    best = 0.0
    for length, width in [(1, 2), (3, 3), (50, 4), (600, 2)]:
        pair = rng.normal(size=(2, length, width))
        reached = 0.0
        for _ in range(400):
            trial = pair + rng.normal(size=pair.shape) * 10.0 ** rng.uniform(-4, 0)
            rows = np.concatenate(list(subject_moments(list(trial))))
            distance = np.linalg.norm(on_the_clip(rows[0]) - on_the_clip(rows[1]))
            if distance > reached:
                pair, reached = trial, distance
        best = max(best, reached)
        assert reached <= PSD_SPREAD
    assert best > 1.40, "the search climbs"


@pytest.mark.parametrize("kind", ["constant", "random", "growing"])
def test_rounding_of_the_longest_scan_is_within_what_the_spread_allows(kind):
    rng = np.random.default_rng(2)
    direction = np.array([0.6, 0.8])
    samples = {
        "constant": np.tile(direction, (LONGEST_BATCH, 1)),
        "random": rng.normal(size=(LONGEST_BATCH, 2)),
        "growing": np.linspace(1e-6, 1, LONGEST_BATCH)[:, np.newaxis] * direction,
    }[kind].astype(np.float32)
    doubles = samples.astype(np.float64)
    clipped = doubles / np.maximum(1, np.linalg.norm(doubles, axis=1, keepdims=True))
    error = np.linalg.norm(second_moments(samples, 1.0) - clipped.T @ clipped / LONGEST_BATCH)
    assert error <= LONGEST_BATCH * 2.0**-24
    assert math.sqrt(2) + 2 * LONGEST_BATCH * 2.0**-24 < PSD_SPREAD


def test_longer_scans_are_exact():
    samples = np.tile([0.6, 0.8], (LONGEST_BATCH + 1, 1))
    (row,) = next(iter(subject_moments([samples])))
    assert_allclose(unsvec(row), [[0.36, 0.48], [0.48, 0.64]], rtol=1e-12)


def test_samples_are_at_most_the_root_of_two_apart():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(300, 3)) * 10.0 ** rng.uniform(-3, 3, size=(300, 1))
    rows = np.concatenate(list(sample_moments([np.concatenate([samples, 1e100 * np.eye(3)])])))
    assert math.sqrt(2) - 1e-9 < largest_distance(rows) <= PSD_SPREAD


def test_the_query_states_clip_squared_and_spread():
    query = pca_query(10, clip=0.5)
    assert (query.size, query.clip, query.spread) == (55, 0.25, PSD_SPREAD)
