"""k-means: the sensitivity of its statistic, and what the aggregator makes of the means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.kmeans import Lloyd, cluster_query, distances, person_clusters
from capedjica.errors import ProtocolError

K, D, RADIUS = 4, 3, 2.0
QUERY = cluster_query(K, D, RADIUS)
POINTS = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=D, max_size=D)
CENTERS = st.lists(POINTS, min_size=K, max_size=K)


def vectors(points, centers, radius=RADIUS):
    points, centers = np.asarray(points, dtype=float), np.asarray(centers, dtype=float)
    return np.concatenate(list(person_clusters(points, len(centers), radius, pack(centers=centers))))


def contribution(row):
    """What a release makes of a row: zero unless finite."""
    return row if np.isfinite(row).all() else np.zeros_like(row)


@given(POINTS, POINTS, CENTERS)
def test_any_two_people_are_within_the_spread_at_any_centers(one, other, centers):
    first, second = map(contribution, vectors([one, other], centers))
    assert np.linalg.norm(first) <= QUERY.clip * (1 + 1e-12)
    assert np.linalg.norm(first - second) <= QUERY.spread * QUERY.clip


def test_the_spread_is_reached():
    """Both by two people in one cluster and by two in different ones: a smaller spread would be false."""
    x = np.array([RADIUS, 0, 0])
    centers = np.array([x, -x, x, -x])
    together = vectors([x, -x], np.zeros((K, D)))
    apart = vectors([x, -x], centers)
    for rows in (together, apart):
        distance = np.linalg.norm(rows[0] - rows[1])
        assert distance == pytest.approx(2 * RADIUS)
        assert distance == pytest.approx(QUERY.spread * QUERY.clip, rel=1e-5)


def test_the_mean_holds_shares_and_sums():
    rng = np.random.default_rng(0)
    points, centers = rng.standard_normal((500, 2)), rng.standard_normal((3, 2))
    nearest = np.argmin([[np.sum((x - c) ** 2) for c in centers] for x in points], axis=1)
    mean = vectors(points, centers, radius=10.0).mean(axis=0).reshape(3, 3)
    for cluster in range(3):
        members = points[nearest == cluster]
        assert mean[cluster, 0] == pytest.approx(10.0 * len(members) / 500)
        assert mean[cluster, 1:] == pytest.approx(members.sum(axis=0) / 500)


@pytest.mark.parametrize(
    "state", [b"", pack(centers=np.zeros((K, D + 1))), pack(centers=np.zeros((K + 1, D))), pack(c=0)]
)
def test_a_wrong_state_is_refused_before_any_data_is_touched(state):
    with pytest.raises(ProtocolError, match="public state"):
        person_clusters(np.zeros((5, D)), K, RADIUS, state)


def lloyd(n_iterations=4, n_clusters=2, seed=0):
    return Lloyd(n_clusters, 2, RADIUS, n_iterations, np.random.default_rng(seed))


def block(share, center):
    return [share * RADIUS, share * center[0], share * center[1]]


def test_starts_are_apart_inside_the_ball_and_repeat():
    first, again, other = lloyd(n_clusters=5), lloyd(n_clusters=5), lloyd(n_clusters=5, seed=1)
    assert (first.centers == again.centers).all()
    assert (first.centers != other.centers).any()
    assert (np.linalg.norm(first.centers, axis=1) <= RADIUS / 2).all()
    apart = distances(first.centers, first.centers) + 10 * np.eye(5)
    assert apart.min() > 0.3 * RADIUS


def test_centers_go_to_their_means_and_stay_inside_the_ball():
    algorithm = lloyd()
    algorithm.update(np.array([*block(0.5, (0.3, -0.4)), *block(0.5, (30.0, 40.0))]))
    assert algorithm.centers == pytest.approx(np.array([[0.3, -0.4], [1.2, 1.6]]))
    assert algorithm.shares == pytest.approx([0.5, 0.5])


def test_a_starved_center_splits_the_largest_cluster_while_exploring_then_stays():
    algorithm = lloyd(n_iterations=4)
    starving = np.array([*block(0.97, (0.3, 0.4)), *block(0.03, (1.0, 1.0))])
    algorithm.update(starving)
    assert algorithm.centers[0] == pytest.approx([0.3, 0.4])
    assert 0 < math.dist(algorithm.centers[1], algorithm.centers[0]) <= 0.2 * RADIUS
    algorithm.update(starving)
    before = algorithm.centers[1].copy()
    for _ in range(2):
        algorithm.update(starving)
        assert (algorithm.centers[1] == before).all()


def test_two_starved_centers_split_two_clusters():
    algorithm = lloyd(n_clusters=4)
    mean = [*block(0.55, (1.0, 0.0)), *block(0.45, (-1.0, 0.0)), 0, 0, 0, -0.01, 0, 0]
    algorithm.update(np.array(mean))
    assert np.sort(algorithm.centers[2:, 0]) == pytest.approx([-1, 1], abs=0.2 * RADIUS)


def test_means_are_averaged_while_settling():
    algorithm = lloyd(n_iterations=4)
    for x in (9.0, 9.0, 0.2, 0.6):
        algorithm.update(np.array([*block(0.5, (x, 0.0)), *block(0.5, (0.0, 0.0))]))
    assert algorithm.centers[0] == pytest.approx([0.4, 0.0])
