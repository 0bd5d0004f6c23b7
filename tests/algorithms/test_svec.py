"""svec: an isometry between symmetric matrices and vectors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.algorithms.svec import svec, svec_size, unsvec
from capedjica.errors import InputError

SIZES = [1, 2, 3, 7, 40]


def symmetric(size, seed):
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix + matrix.T


@pytest.mark.parametrize("size", SIZES)
def test_norms_and_inner_products_are_kept(size):
    A, B = symmetric(size, 0), symmetric(size, 1)
    assert svec(A).shape == (svec_size(size),)
    assert_allclose(np.linalg.norm(svec(A)), np.linalg.norm(A), rtol=1e-14)
    assert_allclose(svec(A) @ svec(B), np.sum(A * B), rtol=1e-12, atol=1e-12 * np.linalg.norm(A))


@pytest.mark.parametrize("size", SIZES)
def test_unsvec_is_the_inverse(size):
    A = symmetric(size, 2)
    assert_allclose(unsvec(svec(A)), A, rtol=1e-15)
    vector = np.random.default_rng(3).normal(size=svec_size(size))
    assert_allclose(svec(unsvec(vector)), vector, rtol=1e-15)
    assert_array_equal(unsvec(vector), unsvec(vector).T)


def test_the_order_is_the_upper_triangle_row_by_row():
    vector = svec(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]]))
    root = np.sqrt(2)
    assert_allclose(vector, [1, 2 * root, 3 * root, 4, 5 * root, 6], rtol=1e-15)


def test_single_precision_becomes_double():
    assert svec(np.eye(3, dtype=np.float32)).dtype == np.float64


@pytest.mark.parametrize("length", [2, 4, 5, 7, 100])
def test_a_length_of_no_symmetric_matrix_is_refused(length):
    with pytest.raises(InputError, match=f"entries for some D, got {length}"):
        unsvec(np.zeros(length))
