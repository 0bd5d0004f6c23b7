"""One person in terms of the group's maps, against other implementations and known truth."""

import numpy as np
import pytest
from scipy import signal
from sklearn.linear_model import LinearRegression

from capedjica.algorithms.ica.individual import (
    SEGMENT,
    analyse_subject,
    connectivity,
    power_spectra,
    standardise,
)


@pytest.fixture
def person():
    """Three sources, forty features, two runs of different length, each feature with a mean of its own."""
    rng = np.random.default_rng(5)
    mixing = rng.standard_normal((40, 3))
    sources = [rng.laplace(size=(length, 3)) for length in (120, 75)]
    runs = [
        own @ mixing.T + 100 * rng.standard_normal(40) + 0.1 * rng.standard_normal((len(own), 40))
        for own in sources
    ]
    return mixing, sources, runs


def test_dual_regression_is_two_linear_regressions(person):
    mixing, _, runs = person
    result = analyse_subject(runs, np.linalg.pinv(mixing))
    for run, courses in zip(runs, result.courses, strict=True):
        spatial = LinearRegression(fit_intercept=False).fit(mixing, (run - run.mean(axis=0)).T)
        np.testing.assert_allclose(courses, spatial.coef_, atol=1e-10)
    centred = np.vstack([run - run.mean(axis=0) for run in runs])
    standard = np.vstack([own / own.std(axis=0) for own in result.courses])
    temporal = LinearRegression(fit_intercept=False).fit(standard, centred)
    np.testing.assert_allclose(result.maps, temporal.coef_.T, atol=1e-10)


def test_the_truth_comes_back(person):
    mixing, sources, runs = person
    result = analyse_subject(runs, np.linalg.pinv(mixing))
    for own, courses in zip(sources, result.courses, strict=True):
        for r in range(3):
            assert np.corrcoef(own[:, r], courses[:, r])[0, 1] > 0.999
    for r in range(3):
        assert np.corrcoef(mixing[:, r], result.maps[r])[0, 1] > 0.99


def test_connectivity_is_fishers_z_of_numpys_correlations(person):
    mixing, _, runs = person
    result = analyse_subject(runs[:1], np.linalg.pinv(mixing))
    expected = np.corrcoef(result.courses[0].T)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(result.connectivity, np.arctanh(expected), atol=1e-12)
    assert (np.diag(result.connectivity) == 0).all()


def test_a_mean_that_differs_between_runs_does_not_look_like_connectivity():
    """Joined as they are, two runs with different means would correlate; each is standardised by itself."""
    rng = np.random.default_rng(0)
    runs = [rng.standard_normal((400, 4)) + offset for offset in (0.0, 50.0)]
    z = analyse_subject(runs, np.eye(4)).connectivity
    assert np.abs(z).max() < 0.25  # beyond 7 standard deviations of 1/sqrt(800)
    joined = np.vstack(runs)
    assert np.corrcoef(joined.T)[0, 1] > 0.99


def test_odd_time_courses_give_finite_numbers():
    rng = np.random.default_rng(1)
    course = rng.standard_normal((50, 1))
    same_and_constant = np.hstack([course, course, np.ones((50, 1))])
    z = connectivity(standardise(same_and_constant))
    assert np.isfinite(z).all()
    assert z[0, 1] > 10
    assert (z[2] == 0).all()
    short = analyse_subject([rng.standard_normal((2, 10))], rng.standard_normal((4, 10)))
    assert np.isfinite(short.maps).all()


@pytest.mark.parametrize("repetition_time", [0.8, 2.0, None])
def test_the_spectrum_of_a_sine_peaks_where_it_should(repetition_time):
    n, cycles = 400, 0.1
    course = np.sin(2 * np.pi * cycles * np.arange(n))[:, np.newaxis]
    frequencies, power = power_spectra(course, repetition_time)
    rate = 1 / (repetition_time or 1)
    assert frequencies[power[:, 0].argmax()] == pytest.approx(cycles * rate, abs=rate / SEGMENT)
    expected = signal.welch(course[:, 0], fs=rate, nperseg=SEGMENT)
    np.testing.assert_allclose(power[:, 0], expected[1], rtol=1e-9)
    # Parseval: the density integrates to the variance.
    assert np.trapezoid(power[:, 0], frequencies) == pytest.approx(course.var(), rel=0.05)


def test_a_run_shorter_than_a_segment_has_a_spectrum():
    frequencies, power = power_spectra(np.random.default_rng(0).standard_normal((30, 2)), 2.0)
    assert power.shape == (len(frequencies), 2) == (16, 2)
