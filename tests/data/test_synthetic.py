"""The synthetic study: the model's claims, its truth, and the input that it refuses.

Every statistical test draws from fixed seeds, so it gives the same answer on every run; bounds leave at
least five standard errors, odds below 1e-6 had the seed been drawn at random.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.fft import dctn
from scipy.stats import chisquare

from capedjica.data import make_synthetic
from capedjica.data.simulated import synthetic
from capedjica.errors import InputError
from capedjica.metrics import normalized_gain_index

SMALL = {"n_sites": 3, "n_subjects": 12, "n_components": 5, "n_timepoints": 60, "image_side": 12}


@pytest.fixture(scope="module")
def sources():
    series = synthetic._sources(np.full(300, 250), 6, np.random.default_rng(0))
    return np.array(series, dtype=np.float64)


def kappa(s):
    return np.mean(1 - np.tanh(s) ** 2) - np.mean(s * np.tanh(s))


def fastica(x, n_iterations=200):
    """Symmetric FastICA with tanh on whitened samples; returns the unmixing matrix of x."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    rank = int(np.sum(values > 1e-6 * values[-1]))
    whiten = vectors[:, -rank:].T / np.sqrt(values[-rank:, None])
    white, W = x @ whiten.T, np.eye(rank)
    for _ in range(n_iterations):
        y = np.tanh(white @ W.T)
        U, _, Vt = np.linalg.svd(y.T @ white / len(x) - np.mean(1 - y**2, axis=0)[:, None] * W)
        W = U @ Vt
    return W @ whiten


def test_shapes_and_types():
    study = make_synthetic(**SMALL, random_state=0)
    assert [len(site) for site in study.sites] == [4, 4, 4]
    assert {subject.shape for site in study.sites for subject in site} == {(60, 144)}
    assert {subject.dtype for site in study.sites for subject in site} == {np.dtype(np.float32)}
    assert study.mixing.shape == (144, 5)
    assert study.maps.shape == (5, 12, 12)
    assert study.image_shape == (12, 12)
    assert study.sources.shape == (12, 60, 5)
    assert_array_equal(study.mixing, study.maps.reshape(5, -1).T)
    assert repr(study) == "SyntheticStudy(site_sizes=[4, 4, 4], n_components=5, image_shape=(12, 12))"


def test_observations_are_the_mixed_sources():
    study = make_synthetic(**SMALL, random_state=1)
    subjects = np.array([subject for site in study.sites for subject in site])
    assert_allclose(subjects, study.sources @ study.mixing.T, atol=1e-5)


def test_the_seed_decides_everything():
    first, again = make_synthetic(**SMALL, random_state=3), make_synthetic(**SMALL, random_state=3)
    other = make_synthetic(**SMALL, random_state=np.random.default_rng(4))
    assert_array_equal(first.sites, again.sites)
    assert_array_equal(first.mixing, again.mixing)
    assert not np.allclose(first.mixing, other.mixing)
    assert not np.allclose(first.sources, other.sources)


def test_batches_have_seeds_of_their_own_and_end_with_the_last_subject():
    n_subjects = 2 * synthetic.BATCH + 1
    study = make_synthetic(1, n_subjects, 2, 50, 8, random_state=0)
    assert len({series.tobytes() for series in study.sources.transpose(0, 2, 1).reshape(-1, 50)}) == (
        2 * n_subjects
    )
    again = make_synthetic(1, n_subjects, 2, 50, 8, random_state=0)
    assert_array_equal(study.sources, again.sources)


@pytest.mark.parametrize("n_timepoints", [60, (40, 60)])
def test_a_model_makes_one_subject_at_a_time_as_the_study_in_memory_has_them(n_timepoints):
    n_subjects = synthetic.BATCH + 3
    study = make_synthetic(1, n_subjects, 4, n_timepoints, 10, random_state=5, noise=0.3)
    model = synthetic.SyntheticModel.draw(n_subjects, 4, n_timepoints, 10, random_state=5, noise=0.3)
    assert_array_equal(model.mixing, study.mixing)
    for _ in range(2):
        made = list(model.subjects())
        assert len(made) == n_subjects
        for subject, expected in zip(made, study.sites[0], strict=True):
            assert_array_equal(subject, expected)


def test_noise_leaves_the_sources_alone():
    clean, noisy = (make_synthetic(**SMALL, random_state=2, noise=noise) for noise in (0.0, 0.5))
    assert_array_equal(clean.sources, noisy.sources)


def test_scans_of_different_lengths():
    study = make_synthetic(2, 600, 2, (30, 34), 8, random_state=0)
    subjects = [subject for site in study.sites for subject in site]
    lengths = np.array([len(subject) for subject in subjects])
    # Uniform on five lengths: false alarm 1e-6.
    assert chisquare(np.bincount(lengths, minlength=35)[30:]).pvalue > 1e-6
    assert lengths.max() == 34
    assert study.sources.shape == (600, 34, 2)
    for subject, sources, length in zip(subjects, study.sources, lengths, strict=True):
        assert np.isnan(sources[length:]).all()
        own = sources[:length].astype(np.float64)
        assert_allclose(own.mean(axis=0), 0, atol=1e-5)
        assert_allclose(own.std(axis=0), 1, rtol=1e-5)
        assert_allclose(subject, own @ study.mixing.T, atol=1e-5)


def test_site_sizes():
    sizes = [len(site) for site in make_synthetic(**{**SMALL, "n_subjects": 11}).sites]
    assert sorted(sizes) == [3, 4, 4]
    given = make_synthetic(**SMALL, random_state=0, site_sizes=[1, 8, 3])
    assert [len(site) for site in given.sites] == [1, 8, 3]
    assert_array_equal(
        np.concatenate(given.sites), np.concatenate(make_synthetic(**SMALL, random_state=0).sites)
    )


def has_noise_scale(noise, added):
    """Whether the added noise has the stated scale: 100k values, one standard error is 0.2%."""
    study = make_synthetic(**SMALL, random_state=0, noise=added)
    clean = study.sources.astype(np.float64) @ study.mixing.T
    residual = np.concatenate(study.sites) - clean
    signal = np.sqrt(np.mean(np.sum(study.mixing**2, axis=1)))
    return abs(np.std(residual) / (noise * signal) - 1) < 0.02


def test_noise_has_the_stated_scale_and_no_other():
    assert has_noise_scale(0.5, 0.5)
    assert not has_noise_scale(0.5, 0.7 * 0.5)
    assert not has_noise_scale(0.5, 1.3 * 0.5)


def test_sources_are_standardised_for_every_subject(sources):
    assert_allclose(sources.mean(axis=1), 0, atol=1e-5)
    assert_allclose(sources.var(axis=1), 1, rtol=1e-5)


def test_sources_are_super_gaussian(sources):
    # Over seeds the kurtosis is 1.32 +- 0.05 and kappa 0.0643 +- 0.0018.
    kurtosis = np.mean(sources**4) - 3
    assert 1.0 < kurtosis < 1.8
    assert 0.055 < kappa(sources) < 0.075
    gaussian = np.random.default_rng(0).normal(size=sources.shape)
    assert abs(np.mean(gaussian**4) - 3) < 0.05
    assert abs(kappa(gaussian)) < 0.005


def test_sources_are_autocorrelated_and_their_squares_cluster(sources):
    def lag_one(x):
        return np.mean(x[:, 1:] * x[:, :-1])

    # Over seeds 0.636 +- 0.003 and 1.61 +- 0.03; the squares of a Gaussian process would give about 0.9.
    assert lag_one(sources) > 0.6
    assert lag_one(sources**2 - 1) > 1.4


def test_subjects_and_components_are_independent(sources):
    series = sources.transpose(0, 2, 1).reshape(-1, sources.shape[1])
    correlations = (series @ series.T / series.shape[1])[np.triu_indices(len(series), 1)]
    # Over seeds the mean of 1.6 million pairs is 0 +- 0.0001, the largest 0.69 +- 0.03; a common seed: 1.
    assert abs(correlations.mean()) < 0.001
    assert np.abs(correlations).max() < 0.95


def test_stationarity_is_that_of_the_characteristic_roots():
    rng = np.random.default_rng(0)
    coefficients = rng.uniform(-0.35, 0.35, size=(400, 10)) * (np.arange(10) < rng.integers(1, 11, (400, 1)))
    coefficients[:, 0] = rng.uniform(0.55, 1.0, 400)
    radii = np.array([np.abs(np.roots([1, *-row])).max() for row in coefficients])
    for radius in (0.8, 0.95, 1.0):
        expected = radii < radius
        assert 0.02 < expected.mean() < 0.98
        assert_array_equal(synthetic._is_stationary(coefficients, radius), expected)


def test_ar_coefficients_follow_the_paper():
    coefficients = synthetic._ar_coefficients(4000, np.random.default_rng(0))
    orders = 10 - np.argmax(coefficients[:, ::-1] != 0, axis=1)
    assert chisquare(np.bincount(orders, minlength=11)[1:]).pvalue > 1e-6
    assert coefficients[:, 0].min() >= 0.55
    assert coefficients[:, 0].max() <= 0.8
    assert np.abs(coefficients[:, 1:]).max() <= 0.35
    assert synthetic._is_stationary(coefficients, synthetic.MAX_ROOT).all()


@pytest.mark.parametrize(("n_components", "side"), [(2, 8), (5, 12), (20, 30), (50, 30)])
def test_maps_are_well_conditioned_and_overlap(n_components, side):
    for seed in range(10):
        maps = synthetic._spatial_maps(n_components, side, np.random.default_rng(seed))
        flat = maps.reshape(n_components, -1)
        assert np.linalg.cond(flat) < 15
        unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
        assert (unit @ unit.T - np.eye(n_components)).max() < 0.95
        if n_components >= 20:
            assert np.sort(unit @ unit.T, axis=1)[:, -2].min() > 0.1


def test_maps_are_smooth():
    maps = synthetic._spatial_maps(20, 30, np.random.default_rng(0))
    spectrum = dctn(maps, axes=(1, 2), norm="ortho") ** 2
    assert spectrum[:, :12, :12].sum() > 0.999 * spectrum.sum()


def test_some_maps_are_bilateral_and_some_are_not():
    maps = synthetic._spatial_maps(20, 30, np.random.default_rng(0))
    mirrored = maps[:, :, ::-1]
    symmetry = np.sum(maps * mirrored, axis=(1, 2)) / np.sum(maps**2, axis=(1, 2))
    assert np.sum(symmetry > 0.99) >= 2
    assert np.sum(symmetry < 0.5) >= 5


def test_ica_separates_the_sources():
    study = make_synthetic(n_subjects=32, n_components=5, image_side=12, random_state=0)
    unmixing = fastica(np.concatenate([x for site in study.sites for x in site]).astype(np.float64))
    assert unmixing.shape == (5, 144)
    assert normalized_gain_index(unmixing @ study.mixing) < 0.05
    gaussian = np.random.default_rng(0).normal(size=(8000, 5)) @ study.mixing.T
    assert normalized_gain_index(fastica(gaussian) @ study.mixing) > 0.1


@pytest.mark.full
def test_the_size_of_the_paper():
    study = make_synthetic(random_state=0)
    assert [len(site) for site in study.sites] == [256] * 4
    assert study.sites[3][255].shape == (250, 900)
    assert np.linalg.cond(study.mixing) < 15
    unmixing = fastica(study.sources.reshape(-1, 20).astype(np.float64), n_iterations=50)
    assert normalized_gain_index(unmixing) < 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_sites": 0}, "n_sites must be a whole number of at least 1, got 0"),
        ({"n_subjects": 2}, "n_subjects must be a whole number of at least 3, got 2"),
        ({"n_components": 1.5}, "n_components must be a whole number"),
        ({"n_timepoints": 1}, "n_timepoints must be a whole number of at least 2"),
        ({"n_timepoints": (40, 1)}, "n_timepoints must be a whole number of at least 2"),
        ({"n_timepoints": (60, 50)}, r"n_timepoints must be \(shortest, longest\), got \(60, 50\)"),
        ({"n_timepoints": (60,)}, "n_timepoints must be an integer or a pair of integers"),
        ({"n_timepoints": "60"}, "n_timepoints must be an integer or a pair of integers"),
        ({"image_side": 5}, "image_side must be at least 6 for n_components = 5, got 5"),
        ({"image_side": "big"}, "image_side must be a number"),
        ({"noise": -0.1}, "noise must be at least 0"),
        ({"noise": np.nan}, "noise must be a number"),
        ({"noise": np.inf}, "noise must be finite"),
        ({"random_state": -1}, "random_state must be"),
        ({"random_state": "seed"}, "random_state must be"),
        ({"site_sizes": [6, 6]}, "site_sizes must contain n_sites = 3 numbers"),
        ({"site_sizes": [6, 6, 6]}, "that add up to n_subjects = 12; got 3 that add up to 18"),
        ({"site_sizes": [12, 0, 0]}, r"site_sizes\[1\] must be a whole number"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        make_synthetic(**{**SMALL, **change})


def test_a_mixing_matrix_of_any_condition_number():
    model = synthetic.SyntheticModel.draw(3, 6, 40, 16, 0)
    other = model.conditioned(1000)
    assert np.linalg.cond(other.mixing) == pytest.approx(1000)
    assert np.linalg.norm(other.mixing, 2) == pytest.approx(np.linalg.norm(model.mixing, 2))
    assert other.maps.shape == model.maps.shape
    sources, _ = model.sources(0)
    np.testing.assert_allclose(next(other.subjects()), sources[0] @ other.mixing.T, atol=1e-5)
    for wrong in (0.5, float("inf"), float("nan")):
        with pytest.raises(InputError, match="condition number"):
            model.conditioned(wrong)


def test_scattered_maps_have_blobs_of_either_sign_and_stay_independent():
    compact, scattered = (make_synthetic(1, 1, 20, 20, 30, 0, maps=kind) for kind in ("compact", "scattered"))
    assert_array_equal(compact.mixing, make_synthetic(1, 1, 20, 20, 30, 0).mixing)
    assert compact.maps.min() >= 0
    assert np.mean(scattered.maps.min(axis=(1, 2)) < -0.3) > 0.5
    assert np.linalg.cond(scattered.mixing) < 30
    # The energy is spread over twice the pixels.
    area = [
        np.mean(np.sum(m.mixing**2, axis=0) ** 2 / np.sum(m.mixing**4, axis=0)) for m in (compact, scattered)
    ]
    assert area[1] > 1.5 * area[0]
    with pytest.raises(InputError, match="maps must be one of compact, scattered, got 'round'"):
        make_synthetic(1, 1, 4, 20, 12, 0, maps="round")
