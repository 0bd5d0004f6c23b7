"""Parameters by the names they had before: accepted, with a warning that says what to write."""

import warnings

import nibabel
import numpy as np
import pytest
from sklearn.base import clone

from capedjica import CapeDJICA, CapePCA, PaperOptions, private_mean
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression
from capedjica.errors import InputError

RNG = np.random.default_rng(0)
ROWS = [RNG.standard_normal((20, 2)) for _ in range(3)]
LABELS = [(rows[:, 0] > 0).astype(float) for rows in ROWS]
SCANS = [list(RNG.laplace(size=(4, 30, 8))) for _ in range(3)]
MASK = nibabel.Nifti1Image(np.ones((2, 2, 2), np.uint8), np.eye(4))
IMAGES = [
    [nibabel.Nifti1Image(scan.T.reshape(2, 2, 2, 30).astype(np.float32), np.eye(4)) for scan in site]
    for site in SCANS
]
SEEDED = {"epsilon": 4.0, "insecure_noise_seed": 3}
FITS = {
    "private_mean": lambda **options: private_mean(ROWS, 1.0, **SEEDED, **options).value,
    "CapePCA": lambda **options: CapePCA(2, **SEEDED, **options).fit(SCANS).components_,
    "CapeDJICA": lambda **options: ica(**options).fit(SCANS).components_,
    "PrivateHistogram": lambda **o: PrivateHistogram([[-1, 0, 1]] * 2, **SEEDED, **o).fit(ROWS).counts_,
    "PrivateKMeans": lambda **o: (
        PrivateKMeans(2, 1.0, max_iter=2, random_state=0, **SEEDED, **o).fit(ROWS).cluster_centers_
    ),
    "PrivateLogisticRegression": lambda **o: (
        PrivateLogisticRegression(1.0, max_iter=2, **SEEDED, **o).fit(ROWS, LABELS).coef_
    ),
}
PAPER = {"learning_rate": 0.5, "pca_share": 0.4, "clip_g": 20.0, "clip_h": 4.0, "tol": 1e-8}


def ica(**options):
    return CapeDJICA(2, scan_length=30, max_iter=3, **SEEDED, **options)


@pytest.mark.parametrize("name", FITS)
def test_mask_is_masking(name):
    fit = FITS[name]
    with pytest.warns(FutureWarning, match="^mask= is deprecated and will be removed: use masking="):
        old = fit(mask="paper")
    np.testing.assert_array_equal(old, fit(masking="paper"))
    assert (old != fit()).any()


@pytest.mark.parametrize("name", FITS)
def test_mask_beside_masking_is_refused(name):
    with pytest.raises(InputError, match="mask is the deprecated name of masking: give only masking"):
        FITS[name](mask="uniform", masking="paper")


@pytest.mark.parametrize("masking", ["wide", 3, None])
@pytest.mark.parametrize("name", FITS)
def test_an_unknown_kind_of_masks_is_named(name, masking):
    with pytest.raises(InputError, match="masking must be 'uniform' or 'paper', got"):
        FITS[name](masking=masking)


def test_mask_is_the_image_of_a_brain_mask(tmp_path):
    path = tmp_path / "mask.nii"
    nibabel.save(MASK, path)
    new = ica(mask_img=MASK).fit(IMAGES)
    for mask in (MASK, path, str(path)):
        with pytest.warns(FutureWarning, match="^mask= is deprecated and will be removed: use mask_img="):
            old = ica(mask=mask).fit(IMAGES)
        np.testing.assert_array_equal(old.components_, new.components_)
        assert old.components_img_.shape == (2, 2, 2, 2)


def test_a_brain_mask_and_paper_masks():
    assert np.isfinite(ica(mask_img=MASK, masking="paper").fit(IMAGES).components_).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": MASK, "mask_img": MASK}, "mask is the deprecated name of mask_img: give only mask_img"),
        ({"masking": MASK}, "pass a brain mask as mask_img"),
        ({"tol": 1.0, "paper_options": PaperOptions()}, "tol is part of paper_options: give it only there"),
        ({"paper_options": {"tol": 1.0}}, "paper_options must be a PaperOptions, got dict"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        ica(**options).fit(IMAGES)


@pytest.mark.parametrize("method", ["paper", "dp-djica"])
def test_options_of_the_paper(method):
    new = ica(method=method, paper_options=PaperOptions(**PAPER)).fit(SCANS)
    with pytest.warns(FutureWarning) as warned:
        old = ica(method=method, **PAPER).fit(SCANS)
    assert [str(one.message) for one in warned] == [
        f"{name}= is deprecated and will be removed: use paper_options=PaperOptions({name}=...)"
        for name in PAPER
    ]
    np.testing.assert_array_equal(old.unmixing_, new.unmixing_)
    assert str(old.privacy_) == str(new.privacy_)
    assert (new.unmixing_ != ica(method=method).fit(SCANS).unmixing_).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pca_share": 1.0}, "pca_share must be between 0 and 1, got 1.0"),
        ({"clip_g": 0.0}, "clip_g must be a finite number above 0"),
        ({"clip_h": -1.0}, "clip_h must be a finite number above 0"),
        ({"tol": 0.0}, "tol must be a finite number above 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
    ],
)
def test_options_of_the_paper_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        PaperOptions(**options)
    with pytest.warns(FutureWarning), pytest.raises(InputError, match=message):
        ica(**options).fit(SCANS)


ESTIMATORS = [
    CapeDJICA(2, masking="paper", mask_img="brain.nii", paper_options=PaperOptions(tol=1e-3)),
    CapeDJICA(2, mask="paper", tol=1e-3),
    CapePCA(2, mask="paper"),
    PrivateHistogram([0, 1], mask="paper"),
    PrivateKMeans(2, 1.0, masking="paper"),
    PrivateLogisticRegression(1.0, mask="paper"),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_scikit_learn_sees_parameters_like_any_other(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clone(estimator).get_params() == estimator.get_params()
        changed = clone(estimator).set_params(masking="uniform", mask="deprecated")
    assert "mask" in estimator.get_params()
    assert "paper" in repr(estimator)
    assert "deprecated" not in repr(changed)
