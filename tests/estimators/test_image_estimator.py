"""``CapeDJICA`` on images, in the manner of nilearn: paths or images in, maps as an image out."""

import pickle

import nibabel
import numpy as np
import pytest
from joblib import Memory
from nilearn.maskers import NiftiLabelsMasker, NiftiMapsMasker, NiftiMasker
from numpy.testing import assert_allclose, assert_array_equal

from capedjica import CapeDJICA
from capedjica.errors import InputError
from capedjica.metrics import matched_map_correlation
from tests.support.scanner import AFFINE, INSIDE, SHAPE, image, save

R, T, SITES, PEOPLE = 3, 80, 3, 4
CENTRES = np.array([[2.5, 3, 3], [5.5, 6, 4], [2.5, 7, 4]])
MASK = INSIDE.astype(np.uint8)
# Small blocks of voxels as regions.
_block = np.indices(SHAPE) // 2
ATLAS = ((1 + _block[0] + 5 * _block[1] + 25 * _block[2]) * INSIDE).astype(np.int16)
TRUTH = np.array([np.exp(-((np.indices(SHAPE).T - c) ** 2).sum(-1).T / 4.0) for c in CENTRES]) * INSIDE

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def person(rng, n_volumes=T):
    sources = rng.laplace(size=(n_volumes, R))
    signal = np.tensordot(TRUTH.transpose(1, 2, 3, 0), sources.T, axes=1)
    return (1000 + 30 * signal + 3 * rng.standard_normal(signal.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    return {
        f"h{s}": [save(folder / f"h{s}" / f"sub-{m}.nii", person(rng)) for m in range(PEOPLE)]
        for s in range(SITES)
    }


def fit(X, **options):
    return CapeDJICA(R, **{"mechanism": "none", **options}).fit(X)


def truth_in(masker):
    return masker.fit().transform(image(np.moveaxis(TRUTH, 0, -1).astype(np.float32)))


def test_voxels_of_a_mask_in_and_an_image_out(study):
    estimator = fit(study, mask_img=image(MASK))
    assert matched_map_correlation(estimator.components_, truth_in(NiftiMasker(image(MASK)))) > 0.95
    maps = estimator.components_img_
    assert maps.shape == (*SHAPE, R)
    assert_array_equal(maps.affine, AFFINE)
    assert_allclose(maps.get_fdata()[INSIDE].T, estimator.components_, atol=1e-6)
    assert not maps.get_fdata()[~INSIDE].any()
    # smooth maps on the grid of the mask are the public basis by themselves
    assert_allclose(estimator.components_, fit(study, masker=NiftiMasker(image(MASK))).components_, atol=1e-4)


def test_regions_of_an_atlas(study):
    estimator = fit(study, atlas=image(ATLAS))
    masker = NiftiLabelsMasker(image(ATLAS), standardize=None)
    assert matched_map_correlation(estimator.components_, truth_in(masker)) > 0.95
    assert_allclose(masker.fit().transform(estimator.components_img_), estimator.components_, rtol=1e-5)
    maps = np.moveaxis(TRUTH, 0, -1).astype(np.float32)
    assert fit(study, atlas=image(maps)).components_img_.shape == (*SHAPE, R)


def test_maps_are_plotted_as_slices_of_a_brain(study):
    figure = fit(study, atlas=image(ATLAS)).plot_components("Mine")
    assert len(figure.axes) == R
    assert "neurological convention: L is left" in figure.axes[-1].get_xlabel()
    assert "mm" in figure.axes[-1].get_xlabel()


def test_images_and_paths_and_arrays_are_the_same_people(study):
    by_path = fit(study, atlas=image(ATLAS))
    in_memory = {name: [nibabel.load(path) for path in site] for name, site in study.items()}
    by_name = {name: [str(path) for path in site] for name, site in study.items()}
    masker = NiftiLabelsMasker(image(ATLAS), standardize=None).fit()
    arrays = {name: [masker.transform(str(path)) for path in site] for name, site in study.items()}
    for X, options in ((in_memory, {}), (by_name, {}), (arrays, {})):
        assert_allclose(fit(X, atlas=image(ATLAS), **options).components_, by_path.components_, atol=1e-4)


def test_a_fitted_masker_is_used_as_it_is(study):
    masker = NiftiLabelsMasker(image(ATLAS), standardize="zscore_sample", smoothing_fwhm=6.0).fit()
    expected = fit(study, atlas=image(ATLAS), standardize=True, smoothing_fwhm=6.0)
    estimator = fit(study, masker=masker)
    assert estimator.masker is masker
    assert_allclose(estimator.components_, expected.components_, atol=1e-4)
    assert_allclose(estimator.components_img_.get_fdata(), expected.components_img_.get_fdata(), atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_number_of_features_is_that_of_the_masker_and_not_of_the_first_image(study):
    """An image without some regions, of which nilearn then says nothing, is its own subject's trouble."""
    masker = NiftiLabelsMasker(image(ATLAS), standardize=None, resampling_target="data").fit()
    cut = image(person(np.random.default_rng(3))[:5])
    X = study | {"h0": [cut, *study["h0"][1:]]}
    with pytest.raises(InputError, match=r"site h0, subject 0: \d+ features; expected the \d+ of the public"):
        fit(X, masker=masker)
    estimator = fit(X, masker=masker, on_bad="zero")
    assert estimator.components_.shape[1] == fit(study, masker=masker).components_.shape[1]


def test_an_unfitted_masker_with_a_public_image_is_fitted_on_it_alone(study):
    masker = NiftiMapsMasker(image(np.moveaxis(TRUTH, 0, -1).astype(np.float32)), standardize=None)
    estimator = fit(study, masker=masker)
    assert estimator.components_.shape == (R, R)
    assert not hasattr(masker, "maps_img_")  # the user's masker stays as it was


def test_a_mask_from_people_is_refused_with_the_reason(study):
    for masker in (NiftiMasker(), NiftiMasker(mask_strategy="epi"), NiftiMasker(mask_strategy="gm-template")):
        with pytest.raises(InputError, match="a mask computed from participants' images is a statistic"):
            fit(study, masker=masker)
    with pytest.raises(InputError, match="none of mask_img, atlas and masker is given; a mask computed"):
        fit(study)
    fitted = NiftiMasker(mask_strategy="background", standardize=None).fit(image(np.moveaxis(TRUTH, 0, -1)))
    with pytest.warns(UserWarning, match="the mask of the masker was computed from images"):
        private = fit(study, masker=fitted, mechanism="cape", epsilon=50.0)
    assert "NOT COVERED: the mask of the masker was computed from images" in str(private.privacy_)
    assert "NOT COVERED" not in str(fit(study, mask_img=image(MASK), mechanism="cape", epsilon=50.0).privacy_)


def test_runs_of_one_person(study):
    """Two runs are one subject: the enrolled number is that of people."""
    rng = np.random.default_rng(1)
    halves = {
        name: [[image(person(rng, T // 2)), image(person(rng, T // 2))] for _ in site]
        for name, site in study.items()
    }
    estimator = fit(halves, mask_img=image(MASK))
    assert matched_map_correlation(estimator.components_, truth_in(NiftiMasker(image(MASK)))) > 0.95
    (first, second), _ = estimator.transform(halves["h0"][:2])
    assert first.shape == second.shape == (T // 2, R)


def test_private_fit_and_transform_of_images(study):
    estimator = fit(study, mask_img=image(MASK), mechanism="cape", epsilon=50.0, max_iter=3)
    assert estimator.privacy_.spent_epsilon <= 50
    path = study["h0"][0]
    time_courses = estimator.transform(path)
    assert time_courses.shape == (T, R)
    assert_allclose(estimator.transform([nibabel.load(path)])[0], time_courses)
    series = NiftiMasker(image(MASK), standardize=None).fit().transform(str(path))
    assert_allclose(estimator.transform(series), time_courses, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.full)])  # two load nilearn anew
def test_memory_and_jobs(study, tmp_path, n_jobs):
    once = fit(study, atlas=image(ATLAS), memory=tmp_path / "cache", n_jobs=n_jobs)
    entries = list((tmp_path / "cache").glob("*.npy"))
    assert len(entries) == SITES * PEOPLE
    again = fit(study, atlas=image(ATLAS), memory=Memory(tmp_path / "cache", verbose=0))
    assert_array_equal(once.components_, again.components_)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == len(entries)


def test_an_estimator_of_images_can_be_pickled_and_cloned(study):
    from sklearn.base import clone

    estimator = fit(study, atlas=image(ATLAS))
    restored = pickle.loads(pickle.dumps(estimator))
    assert_array_equal(restored.components_img_.get_fdata(), estimator.components_img_.get_fdata())
    assert_array_equal(restored.transform(study["h0"][0]), estimator.transform(study["h0"][0]))
    assert not hasattr(clone(estimator), "components_")
    assert "atlas=<Nifti1Image of shape (9, 10, 8)>" in repr(estimator)


def spoiled(study, content):
    return {**study, "h1": [content, *study["h1"][1:]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing.nii", r"site h1, subject 0: cannot be read \(No such file or directory\)"),
        (image(TRUTH[0]), r"site h1, subject 0: a single volume, shape \(9, 10, 8\); expected"),
        (image(np.full((*SHAPE, 5), np.nan, np.float32)), "site h1, subject 0: only NaN or infinite values"),
    ],
)
def test_bad_images_are_named_or_count_as_zero(study, content, message):
    X = spoiled(study, content)
    with pytest.raises(InputError, match=message):
        fit(X, atlas=image(ATLAS))
    assert np.isfinite(fit(X, atlas=image(ATLAS), on_bad="zero").components_).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mask": "unifrom"},
            "mask must be 'uniform', 'paper' or the image of a brain mask; file .* does not exist",
        ),
        ({"mask_img": 7}, "mask_img must be an image or a path, got int"),
        ({"atlas": "missing.nii"}, r"atlas missing.nii cannot be read: No such file"),
        ({"atlas": image(MASK)}, "atlas must have at least 2 regions, got 1"),
        (
            {"masker": NiftiMasker(image(MASK)), "atlas": image(ATLAS)},
            "atlas must not be given with masker",
        ),
        ({"masker": NiftiMasker(image(MASK)), "standardize": True}, "standardize must not be given with"),
        ({"masker": "mask.nii"}, "masker must be a nilearn masker, got str"),
        (
            {"mask_img": image(MASK), "standardize": "psc"},
            "standardize must be True, False or 'zscore_sample'",
        ),
        ({"mask_img": image(MASK), "smoothing_fwhm": -1.0}, "smoothing_fwhm must be a finite number above 0"),
    ],
)
def test_bad_options(study, options, message):
    with pytest.raises(InputError, match=message):
        fit(study, **options)


def test_a_list_of_images_is_no_list_of_sites(study):
    with pytest.raises(
        InputError, match="X must be a list of sites, each a list of subjects; got a list of images"
    ):
        fit(study["h0"], mask_img=image(MASK))


def test_without_a_grid_there_is_no_image():
    estimator = fit([[np.random.default_rng(s).laplace(size=(60, 5)) for _ in range(3)] for s in range(3)])
    assert not hasattr(estimator, "components_img_")


def test_a_single_volume_in_a_masker_is_refused_or_counts_as_zero(study, tmp_path):
    """The masker makes one row without a time axis of it."""
    single = save(tmp_path / "single.nii", person(np.random.default_rng(7))[..., 0])
    sites = study | {"h0": [single, *study["h0"][1:]]}
    options = {"masker": NiftiMasker(image(MASK)), "epsilon": 1000.0, "mechanism": "cape"}
    with pytest.raises(InputError, match="site h0, subject 0: the image is a single volume; expected"):
        fit(sites, **options)
    assert fit(sites, on_bad="zero", **options).components_.shape == (R, MASK.sum())


def test_a_table_of_centres_locates_columns_and_never_averages_scans(study, tmp_path):
    table = tmp_path / "centres.csv"
    places = [f"{x},{y},{z}" for x in (-30, 30) for y in (-60, -20, 20) for z in (10, 40)]
    table.write_text("\n".join(["x,y,z", *places]) + "\n")
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((R, len(places)))
    X = [[rng.laplace(size=(T, R)) @ mixing for _ in range(PEOPLE)] for _ in range(SITES)]
    estimator = fit(X, atlas=table)
    assert len(np.unique(estimator.components_img_.get_fdata()[..., 0])) == len(places) + 1
    assert "borders of regions are approximate" in estimator.generate_report().html
    for on_bad in ("raise", "zero"):
        with pytest.raises(InputError, match="atlas is a table of centres, which only locates the columns"):
            fit(study, atlas=table, on_bad=on_bad)
