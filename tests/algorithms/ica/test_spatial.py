"""Spatial ICA: maps are found without noise, one release with the noise that was planned, bad scans alone."""

import math

import numpy as np
import pytest

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.algorithms.ica import spatial
from capedjica.algorithms.ica.basis import low_pass_within
from capedjica.algorithms.ica.maps.networks import Networks
from capedjica.algorithms.ica.spatial import SpatialMethod
from capedjica.algorithms.ica.subject_level import SubjectSite
from capedjica.algorithms.pca import PSD_SPREAD
from capedjica.algorithms.svec import svec, svec_size
from capedjica.data.simulated.brain import BrainModel
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError
from capedjica.metrics import match_components

R, T = 4, 80
FREE = in_process(epsilon=None, mechanism="none")


@pytest.fixture(scope="module")
def study():
    """Four sites of brains in voxels of 12 mm, with their maps and a basis."""
    model = BrainModel.draw([6] * 4, R, (T, T), 12.0, 0, noise=1.0)
    sites = {f"s{number}": [] for number in range(4)}
    for run, scan in zip(model.runs, model.signal.subjects(), strict=True):
        sites[f"s{run.site}"].append(scan)
    return sites, model.signal.maps, low_pass_within(model.brain.mask, 250)


def fit(sites, basis, terms=FREE, seed=None):
    features = next(iter(sites.values()))[0].shape[1]
    noise = terms.mean_noise([len(site) for site in sites.values()])
    method = SpatialMethod(features, R, T, noise, basis)
    run = EmbeddedStudy.of("t", method, sites, terms, insecure_noise_seed=seed)
    return method.estimate(run), run


def test_maps_are_found_without_noise_with_and_without_a_basis(study):
    sites, maps, basis = study
    found, _ = fit(sites, basis)
    assert isinstance(found, Networks)
    assert match_components(found.maps, maps).correlations.min() > 0.9
    assert found.stability == pytest.approx(np.ones(R), abs=1e-6)
    without, _ = fit({name: site[:2] for name, site in sites.items()}, None)
    assert match_components(without.maps, maps).correlations.min() > 0.95


def test_maps_are_found_with_noise_by_sites_that_trust_nobody(study):
    sites, maps, basis = study
    found, run = fit(sites, basis, in_process(epsilon=60.0), seed=1)
    assert match_components(found.maps, maps).correlations.min() > 0.8
    assert found.stability.min() > 0.8
    assert run.privacy.nominal_epsilon <= 60.0
    swamped, _ = fit(sites, basis, in_process(epsilon=0.5), seed=1)
    assert match_components(swamped.maps, maps).correlations.mean() < 0.6
    assert swamped.stability.mean() < 0.6


def test_one_release_takes_the_whole_budget_and_its_noise_is_as_planned(study):
    sites, _, basis = study
    terms = in_process(epsilon=3.0)
    _, run = fit(sites, basis, terms, seed=1)
    (stage,) = run.contract.stages
    assert (stage.count, stage.share) == (1, 1.0)
    assert stage.query.size == svec_size(len(basis))
    assert stage.query.clip == math.sqrt(R)
    (released,) = run.released
    noise = terms.mean_noise([len(site) for site in sites.values()])
    assert released.noise == pytest.approx(noise * math.sqrt(R) * PSD_SPREAD / 2, rel=1e-3)
    (exact,) = fit(sites, basis)[1].released
    assert np.std(released.value - exact.value) == pytest.approx(released.noise, rel=0.03)


def test_sites_answer_as_in_the_first_stage_of_joint_ica(study):
    sites, _, basis = study
    method = SpatialMethod(basis.shape[1], R, T, 0.1, basis)
    ours = np.concatenate(list(method.site(sites["s0"])(0, b"", b"")))
    theirs = np.concatenate(list(SubjectSite(sites["s0"], R, basis)(0, b"", b"")))
    assert np.array_equal(ours, theirs)
    assert np.linalg.norm(ours, axis=1) == pytest.approx([math.sqrt(R)] * len(ours))


def test_broken_scans_count_as_nothing_and_touch_nobody_else(study):
    sites, _, basis = study
    scan = sites["s0"][0]
    broken = [np.full_like(scan, np.nan), np.zeros_like(scan), np.full_like(scan, np.inf), scan[:0], scan]
    rows = np.concatenate(list(SpatialMethod(basis.shape[1], R, T, 0.1, basis).site(broken)(0, b"", b"")))
    assert not rows[:4].any()
    alone = np.concatenate(list(SpatialMethod(basis.shape[1], R, T, 0.1, basis).site([scan])(0, b"", b"")))
    assert np.array_equal(rows[4:], alone)
    found, _ = fit(sites | {"s0": broken}, basis)
    assert np.isfinite(found.maps).all()


def test_the_same_means_give_the_same_maps(study):
    sites, _, basis = study
    first, second = (fit(sites, basis, in_process(epsilon=5.0), seed=2)[0] for _ in range(2))
    assert np.array_equal(first.estimate, second.estimate)
    assert np.array_equal(first.stability, second.stability)


def test_draws_replay_what_was_published_in_the_order_of_what_was_found(study):
    sites, _, basis = study
    found, run = fit(sites, basis)
    (released,) = run.released
    method = SpatialMethod(basis.shape[1], R, T, 0.0, basis)
    mixing = np.linalg.pinv(found.estimate)[:, ::-1]
    for draw in method.draws(mixing, ReleasedMean(0, released.value, 0.0)):
        np.testing.assert_allclose(np.abs(np.sum(draw * mixing, axis=0)), 1, rtol=1e-6)
    drawn = list(method.draws(mixing, ReleasedMean(0, released.value, 0.05)))
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3


def test_rotation_finds_independent_maps_as_scikit_learn_does():
    from sklearn.decomposition import FastICA

    rng = np.random.default_rng(3)
    sources = rng.laplace(size=(3000, R))
    maps = np.linalg.qr(sources @ rng.standard_normal((R, R)))[0]
    W = spatial.independent_rotation(maps)
    np.testing.assert_allclose(W @ W.T, np.eye(R), atol=1e-12)
    theirs = FastICA(whiten=False, fun="logcosh", tol=1e-8, max_iter=500, random_state=0)
    expected = theirs.fit_transform((maps - maps.mean(axis=0)) * math.sqrt(len(maps)))
    assert match_components((maps @ W.T).T, expected.T).correlations.min() > 0.999
    assert match_components((maps @ W.T).T, sources.T).correlations.min() > 0.99


def test_smooth_maps_are_found_better_by_who_knows_that_they_are_smooth():
    """The power of the maps falls with the number in the basis; of the noise it does not."""
    rng = np.random.default_rng(4)
    K, noise = 160, 0.06
    truth = np.linalg.qr(rng.standard_normal((K, R)) * np.exp(-np.arange(K) / 15)[:, np.newaxis])[0]
    mean = svec(truth @ truth.T) + noise * rng.standard_normal(svec_size(K))
    kept = [np.sum((truth.T @ spatial.smooth_subspace(mean, R, known)) ** 2) / R for known in (0.0, noise)]
    assert kept[0] < 0.75
    assert kept[1] > 0.85


def test_parameters_that_cannot_be():
    with pytest.raises(InputError, match="at most 3, the number of features; got 4"):
        SpatialMethod(3, 4, T)
    with pytest.raises(InputError, match="at most 2, the size of the basis"):
        SpatialMethod(9, 4, T, basis=np.eye(9)[:2])
    with pytest.raises(InputError):
        SpatialMethod(9, 4, 0)
