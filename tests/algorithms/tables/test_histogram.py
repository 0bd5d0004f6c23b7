"""Histograms: cells as NumPy has them, unit vectors, and the nearest distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capedjica.algorithms.tables.histogram import cell_query, density, nearest_distribution, person_cells

EDGES = (np.array([-1.0, 0.0, 0.5, 2.0]), np.array([0.0, 1.0, 3.0]))
RNG = np.random.default_rng(0)


def vectors(values, edges=EDGES):
    return np.concatenate(list(person_cells(np.asarray(values, dtype=float), edges)))


@pytest.mark.parametrize("edges", [EDGES[:1], EDGES], ids=["one", "joint"])
def test_cells_are_those_of_numpy(edges):
    on_edges = np.stack(np.meshgrid(*edges), axis=-1).reshape(-1, len(edges))
    values = np.vstack([2 * RNG.standard_normal((2000, len(edges))), on_edges])
    counts, _ = np.histogramdd(values, edges)
    total = vectors(values, edges).sum(axis=0)
    assert (total[:-1] == counts.reshape(-1)).all()
    assert total[-1] == len(values) - counts.sum()


@given(arrays(np.float64, (2, 2), elements=st.floats(-1e308, 1e308)))
def test_people_have_unit_vectors_and_are_within_the_spread(pair):
    rows, query = vectors(pair), cell_query(EDGES)
    assert (np.sort(rows, axis=1)[:, -2:] == [0.0, 1.0]).all()
    assert np.linalg.norm(rows[0] - rows[1]) <= query.spread * query.clip
    assert query.spread**2 >= 2 > (query.spread * (1 - 1e-15)) ** 2


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_person_counts_as_zero(broken):
    rows = vectors([[0.2, 0.2], [broken, 0.2], [0.2, 0.2]])
    assert np.isnan(rows[1]).all()
    assert (rows[[0, 2]].sum(axis=1) == 1).all()


@given(arrays(np.float64, st.integers(1, 12), elements=st.floats(-3, 3)))
def test_the_nearest_distribution_is_the_nearest(shares):
    nearest = nearest_distribution(shares)
    assert nearest.sum() == pytest.approx(1)
    assert (nearest >= 0).all()
    # Optimality over the simplex: no corner lies in a direction along which the distance falls.
    slopes = (np.eye(len(shares)) - nearest) @ (nearest - shares)
    assert (slopes >= -1e-9).all()


def test_a_distribution_is_its_own_nearest():
    shares = RNG.dirichlet(np.ones(20))
    assert nearest_distribution(shares) == pytest.approx(shares)


def test_the_density_integrates_to_one_inside_the_edges():
    shares = RNG.dirichlet(np.ones(7))
    volumes = np.multiply.outer(np.diff(EDGES[0]), np.diff(EDGES[1]))
    assert np.sum(density(shares, EDGES) * volumes) == pytest.approx(1)
    nobody_inside = np.append(np.zeros(6), 1.0)
    assert (density(nobody_inside, EDGES) == np.zeros((3, 2))).all()
