"""Denoised maps: nearer to the truth where maps are smooth, the raw ones where nothing is known."""

import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.algorithms.ica.basis import low_pass
from capedjica.algorithms.ica.maps.denoising import averaged, denoised, denoised_words
from capedjica.data import make_synthetic
from capedjica.metrics import matched_map_correlation


def noisy(truth, spread, rng):
    maps = truth + spread * rng.standard_normal(truth.shape)
    return maps, [maps + spread * rng.standard_normal(truth.shape) for _ in range(20)]


def correlation(maps, truth):
    return np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(maps.T, truth.T, strict=True)])


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.5])
def test_smooth_maps_come_nearer_to_the_truth(spread):
    rng = np.random.default_rng(0)
    basis = low_pass((16, 16))
    power = np.exp(-np.arange(len(basis)) / 5)[:, np.newaxis]
    truth = basis.T @ (power * rng.standard_normal((len(basis), 6)))
    maps, draws = noisy(truth, spread * truth.std(), rng)
    better = correlation(denoised(maps, [basis @ draw for draw in draws], basis), truth)
    raw = correlation(basis.T @ (basis @ maps), truth)
    assert better >= raw - 1e-3
    assert better > raw + 0.005 or spread < 0.5


def test_a_template_draws_what_is_noise_towards_it():
    rng = np.random.default_rng(0)
    template = rng.standard_normal((300, 3))
    maps, draws = noisy(template, 0.3, rng)
    near = correlation(denoised(maps, draws, None, template), template)
    assert near > 0.99 > correlation(maps, template)
    away = template + 2 * rng.standard_normal(template.shape)
    maps, draws = noisy(away, 0.1, rng)
    np.testing.assert_allclose(denoised(maps, draws, None, template), maps, atol=0.1)


def test_without_noise_nothing_changes():
    basis = low_pass((10, 10))
    maps = basis.T @ np.random.default_rng(0).standard_normal((len(basis), 3))
    np.testing.assert_allclose(denoised(maps, [basis @ maps], basis), maps, atol=1e-12)


def test_the_estimator_has_both():
    data = make_synthetic(4, 200, 4, 100, 14, 0)
    options = {"scan_length": 100, "insecure_noise_seed": 3}
    fitted = CapeDJICA(4, 3.0, image_shape=(14, 14), **options).fit(data.sites)
    smooth = fitted.components_denoised_
    assert smooth.shape == fitted.components_.shape
    assert np.abs(smooth).max(axis=1) == pytest.approx(np.ones(4))
    assert (np.sum(smooth * fitted.components_, axis=1) > 0).all()
    truth = data.mixing.T
    raw = matched_map_correlation(fitted.components_, truth)
    assert matched_map_correlation(smooth, truth) > raw - 0.005
    assert "Raw maps are for inference." in fitted.generate_report().html
    assert CapeDJICA(4, 30.0, **options).fit(data.sites).components_denoised_ is None


def test_a_template_as_prior_is_named():
    assert "not evidence" in denoised_words("template.npy")
    assert "template" not in denoised_words("")


@pytest.mark.parametrize("n_neighbours", [0, 1, 4])
@pytest.mark.parametrize("shape", [(9,), (9, 3)])
def test_means_over_neighbours_are_those_of_scipy(shape, n_neighbours):
    from scipy.ndimage import uniform_filter1d

    values = np.random.default_rng(0).standard_normal(shape)
    expected = uniform_filter1d(values, 2 * n_neighbours + 1, axis=0, mode="nearest")
    np.testing.assert_allclose(averaged(values, n_neighbours), expected, atol=1e-14)
