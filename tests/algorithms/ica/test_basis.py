"""Waves within a mask: orthonormal, smooth, bounded, and the same at every site."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from capedjica.algorithms.ica.basis import MOST_WAVES, coefficients, low_pass, low_pass_within
from capedjica.errors import InputError

PLACES = np.indices((16, 18, 14)).reshape(3, -1).T - (7.5, 8.5, 6.5)
BALL = (np.sum((PLACES / (7.0, 8.0, 6.0)) ** 2, axis=1) < 1).reshape(16, 18, 14)


def kept_energy(basis, mask, width, centre=(8, 8, 7)):
    places = np.argwhere(mask)
    blob = np.exp(-np.sum((places - centre) ** 2, axis=1) / (2 * width**2))
    return np.sum((basis @ blob) ** 2) / np.sum(blob**2)


@pytest.mark.parametrize("mask", [BALL, BALL[8], BALL[8, 8], np.ones((5, 7, 6), bool)])
def test_rows_are_orthonormal_in_any_number_of_dimensions(mask):
    basis = low_pass_within(mask)
    assert basis.shape[1] == mask.sum()
    assert len(basis) <= min(MOST_WAVES, mask.sum())
    assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-7)


def test_smooth_maps_are_kept_and_rough_ones_are_not():
    basis = low_pass_within(BALL)
    assert kept_energy(basis, BALL, 3.0) > 0.99
    assert kept_energy(basis, BALL, 2.0, (4, 6, 6)) > 0.95
    assert kept_energy(basis, BALL, 0.3) < 0.5
    assert kept_energy(low_pass_within(BALL, 50), BALL, 3.0) < kept_energy(basis, BALL, 3.0)


def test_lower_waves_come_first_and_do_not_depend_on_how_many_are_kept():
    assert_allclose(low_pass_within(BALL)[:60], low_pass_within(BALL, 60), atol=1e-9)
    assert_allclose(low_pass_within(BALL)[0], BALL.sum() ** -0.5)  # the first is constant


def test_rounding_does_not_change_the_rows():
    """Another order of summation is another rounding, as on another machine."""
    flipped = low_pass_within(BALL[::-1])
    order = np.arange(BALL.size).reshape(BALL.shape)[::-1][BALL[::-1]]
    places = np.argsort(np.argsort(order))
    assert_allclose(np.abs(flipped), np.abs(low_pass_within(BALL))[:, places], atol=1e-8)


def test_what_nearly_depends_on_other_waves_is_left_out():
    """Two far corners of a box: few voxels, on which many waves are the same."""
    mask = np.zeros((20, 20, 20), bool)
    mask[:2, :2, :2] = mask[-2:, -2:, -2:] = True
    basis = low_pass_within(mask)
    assert len(basis) < mask.sum()
    assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-9)


def test_an_empty_mask_is_refused():
    with pytest.raises(InputError, match="mask must contain at least one voxel"):
        low_pass_within(np.zeros((3, 3), bool))


@pytest.mark.parametrize(
    "basis",
    [
        low_pass((30, 30)),
        low_pass((12, 20)),
        low_pass((20, 12)),
        low_pass((1, 7)),
        low_pass((9, 9))[::-1],
        low_pass_within(BALL),
    ],
)
@pytest.mark.parametrize("n_times", [40, 1, 0])
def test_coefficients_are_the_product_with_the_basis(basis, n_times):
    """Whether the sides of an image are found in a basis or not, and whatever their order."""
    scan = np.random.default_rng(0).standard_normal((n_times, basis.shape[1])).astype(np.float32)
    found = coefficients(basis)(scan)
    assert found.dtype == np.float32
    assert_allclose(found, scan.astype(np.float64) @ basis.T, atol=1e-5)


def test_only_the_cosines_of_an_image_are_multiplied_along_its_sides():
    basis = low_pass((12, 20))
    names = [
        coefficients(one).func.__name__ for one in (basis, basis[::-1], 2 * basis, low_pass_within(BALL))
    ]
    assert names == ["_along_sides", "_product", "_product", "_product"]
    assert coefficients(None)(basis) is basis


@pytest.mark.parametrize("basis", [low_pass((12, 20)), low_pass_within(BALL)])
def test_a_scan_with_another_number_of_features_is_refused(basis):
    """Two scans of half the size have the right number of values in total."""
    with pytest.raises(ValueError, match="size"):
        coefficients(basis)(np.ones((2, basis.shape[1] // 2), np.float32))
