"""One pass over an image: the series of nilearn's maskers for every option and way of storing an image."""

import gzip
import threading

import nibabel
import numpy as np
import pytest
from nilearn.maskers import NiftiLabelsMasker, NiftiMapsMasker, NiftiMasker
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.data import FeatureTable, People, open_features
from capedjica.data.extraction import reduction, volumes
from capedjica.data.extraction.cleaning import Cleaning
from capedjica.data.images import ImageFeatures
from capedjica.data.scans import Person, Recording
from tests.support.scanner import (
    AFFINE,
    INSIDE,
    LABELS,
    MAPS,
    TR,
    T,
    fmriprep,
    image,
    public_files,
    save,
    write_confounds,
)
from tests.support.scanner import volumes as simulated

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

KINDS = {
    "labels": {"kind": "atlas", "atlas": "labels.nii.gz"},
    "maps": {"kind": "atlas", "atlas": "maps.nii.gz"},
    "voxels": {"kind": "voxels", "mask": "mask.nii.gz"},
}
MASKERS = {
    "labels": (NiftiLabelsMasker, LABELS),
    "maps": (NiftiMapsMasker, MAPS),
    "voxels": (NiftiMasker, INSIDE.astype(np.uint8)),
}
CLEANING = {
    "plain": {},
    "smooth": {"smoothing_fwhm": 8.0},
    "wide": {"smoothing_fwhm": 60.0},
    "detrended": {"detrend": True},
    "standardized": {"standardize": True},
    "both": {"detrend": True, "standardize": True},
    "low": {"low_pass": 0.1},
    "high": {"high_pass": 0.02, "standardize": True},
    "all": {
        "smoothing_fwhm": 6.0,
        "detrend": True,
        "low_pass": 0.1,
        "high_pass": 0.02,
        "standardize": True,
    },
}


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return public_files(tmp_path_factory.mktemp("public"))


@pytest.fixture
def one_pass(monkeypatch):
    """No masker may be used."""

    def fail(self, *arguments):
        raise AssertionError("a masker was used")

    monkeypatch.setattr(ImageFeatures, "_by_masker", fail)


def features_of(public, kind, **changes):
    return open_features(FeatureTable(**{**KINDS[kind], **changes}), public, None)


def of_nilearn(kind, path, confounds=None, kept=None, **options):
    """Return the series by nilearn's masker, from the same values in double precision."""
    masker, values = MASKERS[kind]
    options["standardize"] = "zscore_sample" if options.get("standardize") else None
    t_r = TR if {"low_pass", "high_pass"} & options.keys() else None
    stored = nibabel.load(path)
    exact = nibabel.Nifti1Image(stored.get_fdata(), stored.affine)
    made = masker(image(values), t_r=t_r, **options).fit()
    return made.transform(exact, confounds=confounds, sample_mask=kept)


def assert_single_precision(series, expected):
    assert series.dtype == np.float32
    assert_allclose(series, expected, rtol=2e-6, atol=4e-6 * max(1.0, np.abs(expected - expected[0]).max()))


# How an image is stored -------------------------------------------------------------------------------------


def scaled(path, values, dtype, slope, intercept):
    """Store integers with a scale factor and an intercept."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(dtype)
    raw = np.rint((values - intercept) / slope).astype(dtype)
    made = nibabel.Nifti1Image(raw, AFFINE, header)
    made.header.set_zooms((4.0, 4.0, 4.0, TR))
    made.header.set_xyzt_units("mm", "sec")
    made.header.set_slope_inter(slope, intercept)
    nibabel.save(made, path)
    content = bytearray(path.read_bytes() if path.suffix == ".nii" else gzip.decompress(path.read_bytes()))
    content[112:120] = np.array([slope, intercept], "<f4").tobytes()
    content[352:] = raw.tobytes(order="F")
    path.write_bytes(bytes(content) if path.suffix == ".nii" else gzip.compress(bytes(content)))


def big_endian(path, values):
    made = nibabel.Nifti1Image(values, AFFINE, nibabel.Nifti1Header(endianness=">"))
    made.header.set_data_dtype(values.dtype)
    made.header.set_zooms((4.0, 4.0, 4.0, TR))
    made.header.set_xyzt_units("mm", "sec")
    nibabel.save(made, path)


def with_nan_outside(path):
    values = simulated(3)
    values[~INSIDE] = np.nan
    values[0, 0, 0] = np.inf
    save(path, values)


STORAGE = {
    "int16": lambda path: save(path, simulated(dtype=np.int16)),
    "uint8": lambda path: save(path, (simulated() / 5).astype(np.uint8)),
    "uint16": lambda path: save(path, (simulated() * 40).astype(np.uint16)),
    "int32": lambda path: save(path, (simulated() * 1e5).astype(np.int32)),
    "float32": lambda path: save(path, simulated()),
    "float64": lambda path: save(path, simulated(dtype=np.float64)),
    "int16 scaled": lambda path: scaled(path, simulated(), np.int16, 0.0375, 900.0),
    "float32 scaled": lambda path: scaled(path, simulated(), np.float32, 0.25, -7.0),
    "big endian int16": lambda path: big_endian(path, simulated(dtype=np.int16)),
    "big endian float32": lambda path: big_endian(path, simulated()),
    "NaN outside": with_nan_outside,
}


@pytest.mark.parametrize("cleaning", CLEANING)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("one_pass")
def test_every_option_gives_the_series_of_nilearn(tmp_path, public, kind, cleaning):
    path = save(tmp_path / "sub-1.nii", simulated(dtype=np.int16))
    series = features_of(public, kind, **CLEANING[cleaning]).series(Recording(path))
    assert_single_precision(series, of_nilearn(kind, path, **CLEANING[cleaning]))


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("one_pass")
def test_every_storage_gives_the_series_of_nilearn(tmp_path, public, kind, storage, ending, monkeypatch):
    monkeypatch.setattr(volumes, "_PIECE", 30_000)  # several pieces
    path = tmp_path / f"sub-1.{ending}"
    STORAGE[storage](path)
    if storage.startswith("big"):
        assert nibabel.load(path).header.endianness == ">"
    if storage.endswith("scaled"):
        assert nibabel.load(path).dataobj.slope in (np.float32(0.0375), 0.25)
    for options in ({}, {"detrend": True, "standardize": True}, {"smoothing_fwhm": 7.0}):
        series = features_of(public, kind, **options).series(Recording(path))
        assert_single_precision(series, of_nilearn(kind, path, **options))


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("kind", ["labels", "maps"])
@pytest.mark.usefixtures("one_pass")
def test_smoothed_weights_equal_smoothed_volumes(tmp_path, public, kind, folded, monkeypatch):
    monkeypatch.setattr(reduction, "_MOST_WEIGHTS", 10**6 if folded else 0)
    path = save(tmp_path / "sub-1.nii", simulated())
    for width in (5.0, 60.0):  # 60 mm reach beyond the opposite border of the grid
        series = features_of(public, kind, smoothing_fwhm=width).series(Recording(path))
        assert_single_precision(series, of_nilearn(kind, path, smoothing_fwhm=width))


@pytest.mark.parametrize("options", [{}, {"detrend": True}, {"high_pass": 0.02, "standardize": True}])
@pytest.mark.parametrize("strategies", [("motion",), ("motion", "high_pass", "wm_csf"), ("motion", "scrub")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("one_pass")
def test_confounds_are_removed_as_by_nilearn(tmp_path, public, kind, strategies, options):
    from nilearn.interfaces.fmriprep import load_confounds

    path = fmriprep(tmp_path, "01")
    table = path.with_name("sub-01_task-rest_desc-confounds_timeseries.tsv")
    write_confounds(table, spikes=(12, 13))
    confounds, kept = load_confounds(str(path), strategy=strategies)
    series = features_of(public, kind, confounds=strategies, **options).series(Recording(path, table))
    assert_single_precision(series, of_nilearn(kind, path, confounds, kept, **options))


@pytest.mark.parametrize("kind", ["labels", "maps"])
@pytest.mark.usefixtures("one_pass")
def test_regions_follow_the_grid_of_a_recording(tmp_path, public, kind):
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    affine[:3, 3] = AFFINE[:3, 3] + 1.0
    path = save(tmp_path / "sub-1.nii.gz", simulated(shape=(11, 13, 10)), affine=affine)
    for options in ({}, {"smoothing_fwhm": 6.0, "detrend": True}):
        series = features_of(public, kind, **options).series(Recording(path))
        assert_single_precision(series, of_nilearn(kind, path, **options))


def test_features_of_few_grids_are_kept(tmp_path, public):
    features = features_of(public, "labels")
    for number in range(7):
        affine = AFFINE.copy()
        affine[0, 3] += number
        series = features.series(
            Recording(save(tmp_path / f"{number}.nii", simulated(number), affine=affine))
        )
        assert series.shape == (T, 4)
    assert len(features._reductions) == 4


# What is left to nilearn ------------------------------------------------------------------------------------


@pytest.fixture
def by_masker(monkeypatch):
    """Return the paths that a masker read."""
    seen = []
    read = ImageFeatures._by_masker
    monkeypatch.setattr(
        ImageFeatures, "_by_masker", lambda self, path, *more: seen.append(path) or read(self, path, *more)
    )
    return seen


def test_a_recording_that_must_be_interpolated_is_left_to_nilearn(tmp_path, public, by_masker):
    affine = AFFINE.copy()
    affine[:3, 3] += 1.0
    path = save(tmp_path / "sub-1.nii.gz", simulated(), affine=affine)
    features = features_of(public, "voxels")
    assert features.needs_masker(path)
    assert_allclose(features.series(Recording(path)), of_nilearn("voxels", path), rtol=1e-5)
    assert by_masker == [path]


def test_maps_that_are_nearly_dependent_are_left_to_nilearn(tmp_path, by_masker):
    twins = np.concatenate([MAPS, MAPS[..., :1] * (1 + 1e-6)], axis=-1)
    save(tmp_path / "maps.nii.gz", twins)
    path = save(tmp_path / "sub-1.nii", simulated())
    features = open_features(FeatureTable(kind="atlas", atlas="maps.nii.gz"), tmp_path, None)
    assert features.series(Recording(path)).shape == (T, 4)
    assert by_masker == [path]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_single_precision_are_left_to_nilearn(tmp_path, public, kind, by_masker):
    """Differences of values of 1e103 are infinite in single precision, but standardised values are not."""
    path = save(tmp_path / "sub-1.nii", simulated(dtype=np.float64) * 1e100)
    series = features_of(public, kind, standardize=True).series(Recording(path))
    assert by_masker == [path]
    assert np.isfinite(series).all()


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_a_damaged_file_is_left_to_nilearn_and_unusable(tmp_path, public, ending, by_masker):
    path = save(tmp_path / f"sub-1.{ending}", simulated())
    path.write_bytes(path.read_bytes()[:-20_000])
    people = People([Person("1", (Recording(path),))], features_of(public, "labels"))
    assert people[0].shape == (0, 4)
    assert by_masker == [path]


def test_needs_masker_is_not_asked_of_unreadable_files(tmp_path, public):
    (tmp_path / "sub-1.nii").write_bytes(b"nothing")
    features = features_of(public, "voxels")
    assert not features.needs_masker(tmp_path / "sub-1.nii")
    assert not features.needs_masker(tmp_path / "missing.nii")
    assert not features.needs_masker(image(simulated()))


# Images in memory, and several at a time --------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.usefixtures("one_pass")
def test_an_image_in_memory_is_not_changed(public, order):
    values = np.array(simulated(), order=order)
    values[0, 0, 0] = np.nan
    before = values.copy()
    features = features_of(public, "voxels")
    series = features.series_of(image(values))
    assert_array_equal(series, values[INSIDE].T)
    assert_array_equal(values, before)


@pytest.mark.usefixtures("one_pass")
def test_a_constant_voxel_is_zero_after_standardisation(tmp_path, public):
    values = simulated()
    values[4, 4, 4] = 100.3
    path = save(tmp_path / "sub-1.nii", values)
    series = features_of(public, "voxels", detrend=True, standardize=True).series(Recording(path))

    columns = np.flatnonzero((np.argwhere(INSIDE) == 4).all(axis=1))
    assert len(columns) == 1
    assert_array_equal(series[:, columns], 0)


def test_several_images_are_read_at_the_same_time(tmp_path, public, monkeypatch):
    """Two readers meet inside the pass; with a lock around it, the barrier would break."""
    meeting = threading.Barrier(2, timeout=20)
    reduce = reduction.RegionReduction.reduce

    def meet(self, stored):
        meeting.wait()
        return reduce(self, stored)

    monkeypatch.setattr(reduction.RegionReduction, "reduce", meet)
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 2)
    people = [Person(str(m), (Recording(save(tmp_path / f"{m}.nii", simulated(m))),)) for m in range(4)]
    ticks = []
    found = People(people, features_of(public, "labels")).check(3, progress=lambda: ticks.append(1))
    assert found == []
    assert len(ticks) == 4


@pytest.mark.parametrize("n_volumes", [40, 150])
@pytest.mark.parametrize("cut", [{"low_pass": 0.1}, {"low_pass": 0.1, "high_pass": 0.01}])
def test_a_low_pass_and_confounds_are_one_matrix(n_volumes, cut):
    """Also where filtered confounds nearly exhaust what the filter leaves."""
    from nilearn.signal import clean

    rng = np.random.default_rng(0)
    series = 900 + 20 * rng.standard_normal((n_volumes, 30)).cumsum(axis=0)
    options = {
        "detrend": True,
        "t_r": 2.0,
        "confounds": rng.standard_normal((n_volumes, 12)).cumsum(axis=0),
        **cut,
    }
    matrix = Cleaning(standardize=False, **options).operator(n_volumes)
    assert_allclose(matrix @ series, clean(series, standardize=None, **options), atol=1e-8 * np.ptp(series))
