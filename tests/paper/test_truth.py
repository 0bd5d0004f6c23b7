"""The pooled ICA of real data: it finds what is there, and thinning leaves the optimum alone."""

import numpy as np
import pytest

from benchmarks.utility.shared.runs import gain
from paper.shared.truth import best_rotation, contrast, pooled_ica, principal_directions

R, D, PEOPLE, LENGTH = 4, 9, 30, 400


@pytest.fixture(scope="module")
def mixing():
    return np.random.default_rng(1).normal(size=(D, R))


@pytest.fixture(scope="module")
def scans(mixing):
    """Laplacian sources, smooth over three time points, and a little noise."""
    rng = np.random.default_rng(2)
    sources = rng.laplace(size=(PEOPLE, LENGTH + 2, R))
    smooth = sources[:, :-2] + sources[:, 1:-1] + sources[:, 2:]
    noise = 0.01 * rng.normal(size=(PEOPLE, LENGTH, D))
    return [scan.astype(np.float32) for scan in smooth @ mixing.T + noise]


def test_maps_that_are_there_are_found(scans, mixing):
    unmixing, V = pooled_ica(scans, R)
    assert gain(unmixing, mixing) < 0.05
    np.testing.assert_allclose(V.T @ V, np.eye(R), atol=1e-10)
    np.testing.assert_allclose(unmixing @ V @ V.T, unmixing, atol=1e-6)


def test_rotation_is_an_optimum_of_all_time_points(scans):
    """W is orthogonal, and E[psi(y) y'] symmetric: no rotation of two components lowers the contrast."""
    V, variances = principal_directions(scans, R)
    white = (np.concatenate(scans) @ (V / np.sqrt(variances))).T
    W = best_rotation(white)
    np.testing.assert_allclose(W @ W.T, np.eye(R), atol=1e-8)
    y = W @ white
    moments = np.tanh(y) @ y.T / y.shape[1]
    assert np.abs(moments - moments.T).max() < 1e-4
    other = np.linalg.qr(np.random.default_rng(3).normal(size=(R, R)))[0]
    assert contrast(W, white) < contrast(other @ W, white)
