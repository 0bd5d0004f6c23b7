"""``CapeDJICA`` with a template: networks that are known, in their order and by their names."""

import math

import nibabel
import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.data import make_synthetic
from capedjica.errors import InputError
from capedjica.privacy.budget import PrivacyBudget
from tests.support.scanner import AFFINE, INSIDE, MAPS, image

R, SIDE, T = 4, 12, 80
STUDY = make_synthetic(2, 40, R, T, SIDE, random_state=3)
TRUE = STUDY.mixing.T[[2, 0, 3, 1]] * np.array([[1], [-1], [1], [1]])
NAMES = ["visual", "motor", "default", "salience"]


def model(**options):
    return CapeDJICA(**{"method": "template", "template": TRUE, "scan_length": T} | options)


def test_without_epsilon_the_template_is_taken_and_nothing_is_spent():
    fitted = model(template_names=NAMES).fit(STUDY.sites)
    np.testing.assert_allclose(fitted.components_, TRUE / np.abs(TRUE).max(axis=1, keepdims=True), atol=1e-9)
    assert fitted.names_ == tuple(NAMES)
    assert fitted.privacy_.epsilon == 0
    assert fitted.privacy_.spent_epsilon == 0
    assert fitted.privacy_.releases == ()
    assert "0" in str(fitted.privacy_)
    assert "assumed to be public knowledge" in str(fitted.privacy_)
    assert fitted.transform(STUDY.sites[0][0]).shape == (T, R)
    with pytest.raises(InputError, match="nothing was released"):
        fitted.generate_report()


def test_without_release_no_budget_is_touched():
    budget = PrivacyBudget(1.0, 1e-5)
    model(budget=budget).fit(STUDY.sites)
    assert budget.spent_epsilon == 0


def test_with_epsilon_one_release_moves_it_and_the_order_and_sign_stay():
    fitted = model(epsilon=20.0, template_names=NAMES, image_shape=(SIDE, SIDE)).fit(STUDY.sites)
    assert [one.label for one in fitted.privacy_.releases] == ["difference from the template"]
    assert fitted.privacy_.spent_epsilon == pytest.approx(20, rel=1e-3)
    assert [one.name for one in fitted.movements_] == NAMES
    correlations = [np.corrcoef(one, true)[0, 1] for one, true in zip(fitted.components_, TRUE, strict=True)]
    assert min(correlations) > 0.9
    assert fitted.stability_.shape == (R,)
    page = fitted.generate_report().html
    for words in ("Map 3: default", "did not search for others", "About the networks"):
        assert words in page


def test_subject_maps_are_those_of_dual_regression():
    fitted = model().fit(STUDY.sites)
    own = fitted.subject_maps(STUDY.sites[0][:2])
    assert len(own) == 2
    for maps in own:
        for one, true in zip(maps, TRUE, strict=True):
            assert np.corrcoef(one, true)[0, 1] > 0.99
    assert fitted.subject_maps(STUDY.sites[0][0]).shape == TRUE.shape
    assert fitted.subject_maps({"a": [STUDY.sites[0][0]]})["a"][0].shape == TRUE.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": None}, "method 'template' needs a template"),
        ({"method": "subject", "n_components": R, "epsilon": 1.0}, "template is only for methods"),
        (
            {"template": None, "method": "subject", "n_components": R, "template_names": NAMES},
            "template_names requires a template",
        ),
        ({"n_components": 5}, "n_components must be 4, the number of networks of the template"),
        ({"template": TRUE[:, :-1]}, "template has 143 features, but the subjects of X have 144"),
        ({"template": np.vstack([TRUE, TRUE[:1]])}, "collinear"),
        ({"template": np.where(TRUE.max() == TRUE, np.nan, TRUE)}, "NaN"),
        ({"scan_length": 3}, "scan_length must be at least 4, the number of components"),
        ({"template_names": NAMES[:3]}, "4 networks, but 3 names"),
        ({"template_origin": "mine"}, "template_origin must be one of public"),
        ({"max_iter": 3}, "max_iter does not apply to method 'template'"),
        ({"template": image(MAPS)}, "the features are columns without spatial positions"),
        ({"template": None, "method": "subject"}, "n_components"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        model(**options).fit(STUDY.sites)


def test_what_is_said_of_the_origin_is_in_the_statement():
    fitted = model(template_origin="other-people").fit(STUDY.sites)
    assert "without privacy" in fitted.privacy_.not_covered[-1]


def test_images_of_maps_or_labels_are_made_into_the_voxels_of_the_mask():
    rng = np.random.default_rng(0)
    scans = [
        nibabel.Nifti1Image((MAPS @ rng.standard_normal((3, 30))).astype(np.float32), AFFINE)
        for _ in range(4)
    ]
    mask = image(INSIDE.astype(np.uint8))
    known = CapeDJICA(method="template", template=image(MAPS), mask_img=mask, scan_length=30, on_bad="zero")
    fitted = known.fit([scans[:2], scans[2:]])
    assert fitted.components_.shape == (3, INSIDE.sum())
    np.testing.assert_allclose(fitted.components_, (MAPS[INSIDE] / MAPS.max(axis=(0, 1, 2))).T, atol=1e-6)
    assert fitted.subject_maps(scans[0]).shape == fitted.components_.shape
    assert not math.isnan(fitted.privacy_.epsilon)
