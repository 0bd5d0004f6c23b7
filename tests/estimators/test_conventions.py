"""Estimators as scikit-learn's users expect them: kept, scored, drawn, and strict about what they get."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from capedjica import CapeDJICA, CapePCA, PrivacyBudget, private_mean
from capedjica.applications import PrivateKMeans
from capedjica.data import make_synthetic
from capedjica.errors import InputError
from capedjica.report.pictures.slices import square

STUDY = make_synthetic(3, 24, 3, 60, 6, random_state=0)


def ica(**options):
    options = {"n_components": 3, "mechanism": "none", "scan_length": 60, "on_bad": "zero"} | options
    return CapeDJICA(**options)


@pytest.fixture(scope="module")
def fitted():
    return ica(epsilon=5.0, mechanism="cape", insecure_noise_seed=1).fit(STUDY.sites)


@pytest.fixture(scope="module")
def pca():
    return CapePCA(3, mechanism="none", clip=50.0).fit(STUDY.sites)


def test_a_fitted_estimator_is_kept_and_read_again(fitted, tmp_path):
    joblib.dump(fitted, tmp_path / "ica.joblib")
    for restored in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "ica.joblib")):
        np.testing.assert_array_equal(restored.components_, fitted.components_)
        assert restored.privacy_ == fitted.privacy_
        scan = STUDY.sites[0][0]
        np.testing.assert_array_equal(restored.transform(scan), fitted.transform(scan))
        assert restored.generate_report().html == fitted.generate_report().html


def test_an_estimator_with_a_budget_is_kept_without_it(tmp_path):
    """Two processes with one budget would spend it twice: a fit after loading asks for another."""
    budget = PrivacyBudget(epsilon=10.0, delta=1e-5)
    paid = ica(epsilon=5.0, mechanism="cape", budget=budget).fit(STUDY.sites)
    joblib.dump(paid, tmp_path / "ica.joblib")
    for restored in (pickle.loads(pickle.dumps(paid)), joblib.load(tmp_path / "ica.joblib")):
        np.testing.assert_array_equal(restored.components_, paid.components_)
        spent = budget.spent_epsilon
        with pytest.raises(InputError, match="budget"):
            restored.fit(STUDY.sites)
        assert budget.spent_epsilon == spent


def test_other_processes_use_it(fitted):
    scans = STUDY.sites[0][:2]
    courses = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted.transform)(scan) for scan in scans)
    np.testing.assert_allclose(courses[1], fitted.transform(scans[1]))


def test_features_are_counted_and_named(fitted, pca):
    assert fitted.n_features_in_ == pca.n_features_in_ == 36
    assert not hasattr(fitted, "feature_names_in_")
    assert list(fitted.get_feature_names_out()) == ["capedjica0", "capedjica1", "capedjica2"]
    assert list(pca.get_feature_names_out()) == ["capepca0", "capepca1", "capepca2"]
    check_is_fitted(fitted)
    for estimator in (CapeDJICA(2), CapePCA(2)):
        unfitted = (estimator.get_feature_names_out, estimator.plot_components)
        for call in (*unfitted, lambda one=estimator: one.score([])):
            with pytest.raises(NotFittedError):
                call()


def test_notebooks_show_parameters(fitted):
    for estimator in (fitted, CapePCA(2), PrivateKMeans(2, 1.0)):
        shown = estimator._repr_html_()
        assert type(estimator).__name__ in shown
        assert "<div" in shown
    assert "scan_length" in fitted._repr_html_()


def test_what_is_transformed_and_back_is_the_part_that_components_explain(fitted, pca):
    scan = STUDY.sites[0][0]
    rebuilt = fitted.inverse_transform(fitted.transform(scan))
    centred = scan - scan.mean(axis=0)
    # A projection: done twice it changes nothing, and what is left is orthogonal to every map.
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(rebuilt)), rebuilt, atol=1e-8)
    np.testing.assert_allclose((centred - rebuilt) @ fitted.mixing_, 0, atol=1e-6 * np.abs(scan).max() * 36)
    nested = fitted.inverse_transform(fitted.transform({"a": [scan]}))
    np.testing.assert_array_equal(nested["a"][0], rebuilt)
    assert pca.inverse_transform(pca.transform(scan)).shape == scan.shape
    with pytest.raises(InputError, match=r"time courses \(time, 3\), got shape \(60, 36\)"):
        fitted.inverse_transform(scan)


def test_the_score_is_the_part_of_variance_explained(fitted, pca):
    site = STUDY.sites[0]
    centred = np.concatenate([scan - scan.mean(axis=0) for scan in site])
    basis = np.linalg.qr(fitted.mixing_)[0]
    expected = np.sum((centred @ basis) ** 2) / np.sum(centred**2)
    assert fitted.score(site) == pytest.approx(expected)
    assert fitted.score({"a": site[:4], "b": site[4:]}) == pytest.approx(expected)
    plain = np.concatenate(site)
    assert pca.score(site) == pytest.approx(np.sum((plain @ pca.components_.T) ** 2) / np.sum(plain**2))
    assert fitted.score(site) < ica().fit(STUDY.sites).score(site) < 1
    with pytest.raises(InputError, match="no variance to explain"):
        fitted.score(np.zeros((10, 36)))


def test_scikit_learn_leaves_out_whole_sites():
    scores = cross_val_score(ica(), STUDY.sites, cv=LeaveOneOut())
    by_hand = [
        ica().fit(STUDY.sites[:left] + STUDY.sites[left + 1 :]).score([STUDY.sites[left]])
        for left in range(3)
    ]
    np.testing.assert_allclose(scores, by_hand)


def test_it_is_a_step_of_a_pipeline():
    pipeline = Pipeline([("ica", ica())])
    pipeline.set_params(ica__n_components=2).fit(STUDY.sites)
    assert clone(pipeline).get_params()["ica__n_components"] == 2
    assert pipeline.transform(STUDY.sites[0][0]).shape == (60, 2)
    assert pipeline.score([STUDY.sites[0]]) == pipeline["ica"].score(STUDY.sites[0])


# Data frames


def frames(names=None):
    columns = names or [f"region {number}" for number in range(36)]
    return [[pd.DataFrame(scan, columns=columns) for scan in site] for site in STUDY.sites]


def test_data_frames_are_arrays_with_names():
    plain, named = ica().fit(STUDY.sites), ica().fit(frames())
    np.testing.assert_array_equal(plain.components_, named.components_)
    assert list(named.feature_names_in_[:2]) == ["region 0", "region 1"]
    scan = frames()[0][0]
    np.testing.assert_allclose(named.transform(scan), plain.transform(STUDY.sites[0][0]), atol=1e-12)
    with pytest.raises(InputError, match="must match those seen during fit, in the same order"):
        named.transform(scan[scan.columns[::-1]])
    assert not hasattr(named.fit(STUDY.sites), "feature_names_in_")


def test_columns_in_another_order_are_refused():
    mixed = frames()
    mixed[1][0] = mixed[1][0][mixed[1][0].columns[::-1]]
    with pytest.raises(InputError, match="all subjects must have the same columns in the same order"):
        ica().fit(mixed)


def test_tables_of_people_are_data_frames_too():
    tables = {name: pd.DataFrame(np.full((9, 2), 0.5), columns=["age", "score"]) for name in "ab"}
    assert private_mean(tables, clip=1.0, mechanism="none").value == pytest.approx([0.5, 0.5])
    assert PrivateKMeans(2, 1.0, mechanism="none").fit(tables).cluster_centers_.shape == (2, 2)


# Drawn


def test_maps_are_drawn_and_unreliable_ones_said_first(tmp_path):
    image = ica(epsilon=0.5, mechanism="cape", insecure_noise_seed=1, image_shape=(6, 6)).fit(STUDY.sites)
    assert (image.stability_ < 0.7).any()
    for estimator in (image, ica().fit(STUDY.sites)):
        figure = estimator.plot_components()
        figure.savefig(tmp_path / "maps.png")
        assert len(figure.axes) == 3
    same = image.plot_maps("Mine")
    assert same.get_suptitle().startswith("Not reliable: ")
    assert same.get_suptitle().endswith("\nMine")
    for axis, values in zip(same.axes, image.components_, strict=True):
        np.testing.assert_array_equal(
            axis.images[0].get_array()[..., :3], square(values.reshape(6, 6))[..., :3]
        )
    assert "Not reliable" not in figure.get_suptitle()
    assert len(CapePCA(2, mechanism="none").fit(STUDY.sites).plot_components().axes) == 2


# Said


def test_a_report_of_one_process_does_not_say_that_data_stayed_apart(fitted):
    page = fitted.generate_report().html
    for claim in ("left their site", "leaving their site", "only ever read at their own site", "own ledger"):
        assert claim not in page
    assert "in one process" in page
    assert "Sites were parts of the data" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanism": "cpae"}, "mechanism must be one of cape, .*; got 'cpae'; did you mean 'cape'?"),
        ({"method": "subjct"}, "method must be one of subject, .*; did you mean 'subject'?"),
        ({"mechanism": None}, "mechanism must be one of cape, .*; got None"),
        ({"n_components": 3.0}, "n_components must be a whole number of at least 2, got 3.0"),
        ({"n_components": "3"}, "n_components must be a number, got '3'"),
        ({"n_components": True}, "n_components must be a whole number of at least 2, got True"),
        ({"mechanism": "cape", "epsilon": "5"}, "epsilon must be a number, got '5'"),
        ({"image_shape": 36}, r"image_shape must be a pair \(height, width\), got 36"),
        ({"image_shape": (6.0, 6)}, "a side of image_shape must be a whole number of at least 1, got 6.0"),
        ({"n_jobs": "all"}, "n_jobs must be an integer other than 0, got 'all'"),
        ({"random_state": "now"}, "random_state must be a number, got 'now'"),
        ({"on_bad": "ignore"}, "on_bad must be 'raise' or 'zero', got 'ignore'"),
    ],
)
def test_bad_parameters_are_named(options, message):
    with pytest.raises(InputError, match=message):
        ica(**options).fit(STUDY.sites)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({"a": {"one": STUDY.sites[0][0]}, "b": {}}, "X: site a is a dict; expected a list of its subjects"),
        (STUDY.sites[0], r"X: site site-1 is one array of shape \(60, 36\); expected a list of subjects"),
        ([["one", "two"], ["three"]], "site site-1, subject 0 is the path 'one'"),
        (["one", "two"], "X must be a list of sites, each a list of subjects; got a list of images"),
        ("one", "X must be a list of sites or a dict from name to site, got str"),
        (frames()[0][0], "X must be a list of sites or a dict from name to site, got DataFrame"),
        ([frames()[0][0]] * 2, r"X: site site-1 is one array of shape \(60, 36\); expected a list"),
        (None, "X must be a list of sites or a dict from name to site, got NoneType"),
    ],
    ids=["dict of dicts", "flat list", "strings", "list of strings", "string", "frame", "frames", "nothing"],
)
@pytest.mark.parametrize("estimator", [ica(), CapePCA(2, mechanism="none")], ids=["ica", "pca"])
def test_bad_data_are_named(estimator, X, message):
    if isinstance(estimator, CapePCA) and "path" in message:
        message = "site site-1, subject 0 is not an array of numbers"
    if isinstance(estimator, CapePCA) and "images" in message:
        message = "X: site site-1 is a str; expected a list of its subjects"
    with pytest.raises(InputError, match=message):
        clone(estimator).fit(X)
