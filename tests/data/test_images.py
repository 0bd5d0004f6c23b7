"""Images to series: those of nilearn's maskers, the same features everywhere, and why one is unusable."""

import gzip
import json
import shutil

import nibabel
import numpy as np
import pytest
from nilearn.interfaces.fmriprep import load_confounds
from nilearn.maskers import NiftiLabelsMasker, NiftiMapsMasker, NiftiMasker
from numpy.testing import assert_allclose, assert_array_equal

from capedjica.data import FeatureTable, People, open_features
from capedjica.data.extraction.volumes import NotStreamedError
from capedjica.data.images import repetition_time
from capedjica.data.scans import Person, Recording
from tests.support.scanner import (
    AFFINE,
    INSIDE,
    LABELS,
    MAPS,
    SHAPE,
    SPACE,
    TR,
    T,
    fmriprep,
    image,
    public_files,
    save,
    volumes,
    write_confounds,
)

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
    "smoothed": {"smoothing_fwhm": 8.0},
    "cleaned": {"detrend": True, "standardize": True},
    "band": {"low_pass": 0.1, "high_pass": 0.01},
}


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return public_files(tmp_path_factory.mktemp("public"))


def features_of(public, kind="labels", **changes):
    return open_features(FeatureTable(**{**KINDS[kind], **changes}), public, None)


def masker_of(kind, t_r=None, **options):
    masker, values = MASKERS[kind]
    options["standardize"] = "zscore_sample" if options.get("standardize") else None
    return masker(image(values), t_r=t_r if "low_pass" in options else None, **options)


def in_double(path):
    """Return an image in double precision: nilearn rounds to that of the file before it removes the mean."""
    stored = nibabel.load(path)
    return nibabel.Nifti1Image(stored.get_fdata(), stored.affine)


@pytest.mark.parametrize("cleaning", CLEANING)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_series_are_those_of_nilearn(tmp_path, public, kind, cleaning, dtype):
    path = save(tmp_path / "sub-1.nii.gz", volumes(dtype=dtype))
    series = features_of(public, kind, **CLEANING[cleaning]).series(Recording(path))
    expected = masker_of(kind, TR, **CLEANING[cleaning]).fit().transform(in_double(path))
    assert series.dtype == np.float32
    assert_allclose(series, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_series_on_another_grid_are_those_of_nilearn(tmp_path, public, kind):
    """Voxels of 3 mm, and another origin: the features stay the same ones."""
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    affine[:3, 3] = AFFINE[:3, 3] + 1.0
    path = save(tmp_path / "sub-1.nii.gz", volumes(shape=(11, 13, 10)), affine=affine)
    series = features_of(public, kind).series(Recording(path))
    expected = masker_of(kind).fit().transform(str(path))
    assert_allclose(series, expected, rtol=1e-5, atol=1e-5)


def test_a_region_without_voxels_is_a_constant_column_not_a_missing_one(tmp_path, public):
    features = features_of(public)
    coarse = np.diag([8.0, 8.0, 8.0, 1.0])
    coarse[:3, 3] = AFFINE[:3, 3]
    path = save(tmp_path / "sub-1.nii.gz", volumes(shape=(5, 5, 4)), affine=coarse)
    series = features.series(Recording(path))
    assert masker_of("labels").fit().transform(str(path)).shape[1] == 3
    assert series.shape == (T, features.n_features)
    assert [bool(column.any()) for column in series.T] == [True, True, False, True]  # labels 3, 7, 11, 20
    (note,) = People([Person("a", (Recording(path),))], features).check(3)
    assert "constant features (1), the first is feature 3 of 4" in str(note)
    assert not note.fatal


def test_the_masker_never_sees_an_image_when_it_is_fitted(tmp_path, public, monkeypatch):
    def refuse(*_):
        raise NotStreamedError

    monkeypatch.setattr("capedjica.data.images.stored_volumes", refuse)
    seen = []
    for masker, _ in MASKERS.values():
        fit = masker.fit
        monkeypatch.setattr(
            masker, "fit", lambda self, imgs=None, y=None, fit=fit: seen.append(imgs) or fit(self)
        )
    for kind in KINDS:
        features_of(public, kind).series(Recording(save(tmp_path / "sub-1.nii.gz", volumes())))
    assert seen == [None] * len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_become_images_in_the_space_of_the_features(public, kind):
    features = features_of(public, kind)
    maps = np.random.default_rng(0).standard_normal((2, features.n_features))
    made = features.image(maps)
    assert made.shape == (*SHAPE, 2)
    assert_array_equal(made.affine, AFFINE)
    if kind == "maps":
        expected = masker_of(kind).fit().inverse_transform(maps.astype(np.float32)).get_fdata()
        assert_allclose(made.get_fdata(), expected, rtol=1e-5, atol=1e-6)
    else:
        assert_allclose(masker_of(kind).fit().transform(made), maps, rtol=1e-6)


def test_voxels_of_the_template(public):
    features = open_features(FeatureTable(kind="voxels", voxel_size=12.0), public, None)
    assert 900 < features.n_features < 1300  # 1.88 litres of brain
    assert features.basis.shape == (300, features.n_features)
    assert_allclose(np.abs(features.image(np.ones((1, features.n_features))).affine[0, 0]), 12.0)


def test_voxels_have_a_basis_and_regions_do_not(public):
    voxels = features_of(public, "voxels")
    assert_allclose(voxels.basis @ voxels.basis.T, np.eye(len(voxels.basis)), atol=1e-9)
    assert features_of(public, "labels").basis is None
    assert features_of(public, "maps").basis is None


# Repetition time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tr", "unit", "sidecar", "expected"),
    [
        (2.0, "sec", None, 2.0),
        (720.0, "msec", None, 0.72),
        (2.5, "unknown", None, 2.5),
        (2000.0, "unknown", None, None),
        (0.0, "sec", None, None),
        (2.0, "hz", None, None),
        (1.0, "sec", '{"RepetitionTime": 3.0}', 3.0),
        (1.0, "sec", '{"EchoTime": 3.0}', 1.0),
        (1.0, "sec", "no JSON", 1.0),
        (1.0, "sec", '{"RepetitionTime": "3 s"}', 1.0),
    ],
)
def test_the_repetition_time_is_that_of_the_sidecar_or_else_of_the_header(
    tmp_path, tr, unit, sidecar, expected
):
    path = save(tmp_path / "a_bold.nii.gz", volumes(n_volumes=3), tr=tr, unit=unit)
    if sidecar:
        (tmp_path / "a_bold.json").write_text(sidecar)
    assert repetition_time(Recording(path), nibabel.load(path)) == pytest.approx(expected)


def test_filters_use_each_recordings_own_repetition_time(tmp_path, public):
    features = features_of(public, low_pass=0.1)
    paths = [save(tmp_path / f"sub-{tr}.nii.gz", volumes(), tr=tr) for tr in (1.0, 3.0)]
    for path, tr in zip(paths, (1.0, 3.0), strict=True):
        expected = masker_of("labels", tr, low_pass=0.1).fit().transform(str(path))
        assert_allclose(features.series(Recording(path)), expected, rtol=1e-5)


# Confounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategies", [("motion",), ("motion", "high_pass", "wm_csf", "global_signal"), ("motion", "scrub")]
)
def test_confounds_are_those_that_nilearn_loads(tmp_path, public, strategies):
    path = fmriprep(tmp_path, "01")
    table = path.with_name("sub-01_task-rest_desc-confounds_timeseries.tsv")
    write_confounds(table, spikes=(12, 13))
    series = features_of(public, confounds=strategies, standardize=True).series(Recording(path, table))
    confounds, kept = load_confounds(str(path), strategy=strategies)
    masker = masker_of("labels", standardize=True).fit()
    expected = masker.transform(in_double(path), confounds=confounds, sample_mask=kept)
    assert_allclose(series, expected, atol=1e-5)
    assert len(series) == (T if "scrub" not in strategies else T - 2)


# Every kind of unusable image: how it is made, what check() says. -------------------------------------------


def broken(path, values=None, **options):
    return save(path, volumes() if values is None else values, **options)


def with_nan(places):
    values = volumes()
    values[places] = np.nan
    return values


def truncated(path, kept):
    save(path, volumes())
    content = path.read_bytes()
    path.write_bytes(content[: kept if kept > 1 else int(kept * len(content))])


def flat(path):
    made = image(volumes())
    made.header["srow_x"] = 0
    made.header["sform_code"], made.header["qform_code"] = 1, 0
    nibabel.save(nibabel.Nifti1Image(made.dataobj, None, made.header), path)


def elsewhere():
    affine = AFFINE.copy()
    affine[:3, 3] += 60
    return affine


UNUSABLE = {
    "one volume": (
        lambda path: broken(path, volumes()[..., 0]),
        "a single volume, shape (9, 10, 8); expected",
    ),
    "five dimensions": (
        lambda path: broken(path, volumes()[..., None]),
        "an image of shape (9, 10, 8, 40, 1)",
    ),
    "no volumes": (
        lambda path: broken(path, volumes()[..., :0]),
        "an image of shape (9, 10, 8, 0); expected",
    ),
    "empty": (lambda path: path.write_bytes(b""), "an empty file; expected a 4-D image"),
    "no image": (lambda path: path.write_bytes(b"hello" * 100), "not a NIfTI image"),
    "no image in gzip": (lambda path: path.write_bytes(gzip.compress(b"hello" * 100)), "not a NIfTI image"),
    "truncated gzip": (
        lambda path: truncated(path, 0.6),
        "truncated or damaged; expected the 40 volumes stated in its header",
    ),
    "truncated header": (lambda path: truncated(path, 60), "not a NIfTI image"),
    "NaN volumes": (
        lambda path: broken(path, with_nan((..., [4, 5]))),
        "volumes with NaN or infinite values (2), the first is 5 of 40; expected finite numbers",
    ),
    "a NaN": (
        lambda path: broken(path, with_nan((4, 4, 4, 39))),
        "infinite values (1), the first is 40 of 40",
    ),
    "NaN alone": (lambda path: broken(path, with_nan(...)), "only NaN or infinite values"),
    "complex": (lambda path: broken(path, volumes().astype(np.complex64)), "values of type complex64"),
    "all zero": (
        lambda path: broken(path, np.zeros((*SHAPE, T), np.int16)),
        "constant values in every feature",
    ),
    "too short": (lambda path: broken(path, volumes(n_volumes=2)), "2 time points; expected at least 3"),
    "elsewhere": (
        lambda path: broken(path, affine=elsewhere()),
        "a field of view with 0% of the study's voxels; expected at least 50%; the image may be in",
    ),
    "a flat affine": (flat, "a singular or non-finite affine"),
}


def problems_of(path, features, confounds=None):
    people = People([Person("sub-1", (Recording(path, confounds),))], features)
    return people, people.check(3)


@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("ending", ["nii.gz", "nii"])
def test_check_says_why_an_image_cannot_be_used_and_a_run_goes_on(tmp_path, public, kind, ending):
    make, expected = UNUSABLE[kind]
    path = tmp_path / f"sub-1.{ending}"
    make(path)
    people, (problem,) = problems_of(path, features_of(public))
    assert expected in str(problem)
    assert str(problem).startswith(f"{path}: ")
    assert problem.fatal
    assert problem.name == "sub-1"
    readable = kind in ("all zero", "too short")
    assert people[0].shape[1] == 4
    assert bool(len(people[0])) == readable
    assert people.n_unreadable == (not readable)


def test_what_was_never_recorded_counts_as_zero(tmp_path, public):
    """NaN outside the brain, in every volume, as SPM writes it."""
    outside = with_nan((~INSIDE, slice(None)))
    path = save(tmp_path / "sub-1.nii.gz", outside)
    sound = save(tmp_path / "sub-2.nii.gz", np.nan_to_num(outside))
    people, found = problems_of(path, features_of(public, "voxels"))
    assert found == []
    assert_array_equal(people[0], features_of(public, "voxels").series(Recording(sound)))


def test_a_missing_repetition_time_matters_only_for_filters(tmp_path, public):
    path = save(tmp_path / "sub-1.nii.gz", volumes(), tr=0.0)
    assert problems_of(path, features_of(public))[1] == []
    (problem,) = problems_of(path, features_of(public, high_pass=0.01))[1]
    assert "no repetition time; expected RepetitionTime in sub-1.json, or seconds in" in str(problem)


def test_confounds_that_are_missing_or_do_not_fit(tmp_path, public):
    path = fmriprep(tmp_path, "01")
    table = path.with_name("sub-01_task-rest_desc-confounds_timeseries.tsv")
    cleaned = features_of(public, confounds=["motion", "scrub"])
    assert problems_of(path, features_of(public))[1] == []
    (problem,) = problems_of(path, cleaned)[1]
    assert "no table of confounds next to it; expected *_desc-confounds_timeseries.tsv" in str(problem)
    write_confounds(table, n_rows=T - 1)
    (problem,) = problems_of(path, cleaned, table)[1]
    assert f"{table}: 39 rows; expected 40, the volumes of {path.name}" in str(problem)
    write_confounds(table, spikes=range(T))
    (problem,) = problems_of(path, cleaned, table)[1]
    assert "no volume left after scrubbing" in str(problem)
    table.write_text("trans_x\n" + "1\n" * T)
    (problem,) = problems_of(path, cleaned, table)[1]
    assert "confounds that cannot be used" in str(problem)
    assert "expected the confounds required by the study: motion, scrub" in str(problem)


def test_another_space_is_told_by_the_name(tmp_path, public):
    right, wrong = (fmriprep(tmp_path, "01", space=space) for space in (SPACE, "T1w"))
    features = features_of(public, space=SPACE)
    assert problems_of(right, features)[1] == []
    (problem,) = problems_of(wrong, features)[1]
    assert f"space T1w; expected {SPACE}, as in the study" in str(problem)


def test_everything_about_a_header_is_told_at_once(tmp_path, public):
    path = fmriprep(tmp_path, "01", space="T1w", affine=elsewhere(), tr=0.0)
    path.with_name(path.name.replace(".nii.gz", ".json")).unlink()
    features = features_of(public, space=SPACE, confounds=["motion"], low_pass=0.1)
    found = problems_of(path, features)[1]
    assert [problem.found.split()[0] for problem in found] == ["space", "a", "no", "no"]


def test_another_grid_than_that_of_most_is_noted(tmp_path, public):
    people = []
    for number in range(4):
        affine = AFFINE.copy()
        affine[0, 3] -= 4.0 * (number == 2)
        path = save(tmp_path / f"sub-{number}.nii.gz", volumes(number), affine=affine)
        people.append(Person(f"sub-{number}", (Recording(path),)))
    (note,) = People(people, features_of(public)).check(3)
    assert note.name == "sub-2"
    assert not note.fatal
    assert "a grid of 9 x 10 x 8 voxels of 4 x 4 x 4 mm from (-20, -20, -16); expected a grid" in str(note)
    assert "as in 3 runs; it is resampled to the study's grid nevertheless" in str(note)


def test_no_content_makes_a_run_fail(tmp_path, public):
    """Bytes changed at random places, in the header too."""
    rng = np.random.default_rng(0)
    save(tmp_path / "sound.nii", volumes())
    sound = np.frombuffer((tmp_path / "sound.nii").read_bytes(), np.uint8)
    features = features_of(public)
    for trial in range(60):
        changed = sound.copy()
        places = rng.integers(len(changed) if trial % 3 == 0 else 352, size=5)
        changed[places] = rng.integers(256, size=5)
        path = tmp_path / f"sub-{trial}.nii"
        path.write_bytes(changed.tobytes())
        people, found = problems_of(path, features)
        assert people[0].shape[1] == features.n_features
        assert not people.n_unreadable or any(problem.fatal for problem in found)
        assert all(str(problem).isprintable() for problem in found)


def test_the_sidecar_of_another_image_does_not_count(tmp_path, public):
    path = fmriprep(tmp_path, "01", tr=0.0)
    other = path.with_name(path.name.replace("sub-01", "sub-02"))
    shutil.copy(path, other)
    assert repetition_time(Recording(path), nibabel.load(path)) == TR
    assert repetition_time(Recording(other), nibabel.load(other)) is None
    assert json.loads(Recording(path).sidecar.read_text()) == {"RepetitionTime": TR}


@pytest.mark.parametrize("confounds", [(), ("motion", "scrub")])
def test_of_an_image_that_is_too_long_the_first_volumes_are_read(tmp_path, public, monkeypatch, confounds):
    long, short = (fmriprep(tmp_path / name, "1") for name in ("long", "short"))
    cut = 30
    nibabel.save(nibabel.load(long).slicer[..., :cut], short)
    for table in (tmp_path / "short").rglob("*.tsv"):
        table.write_text("\n".join(table.read_text().splitlines()[: cut + 1]) + "\n")
    features = features_of(public, confounds=confounds)
    found = []
    for limit, path in ((cut, long), (10**6, short)):
        monkeypatch.setattr("capedjica.data.images.LONGEST_SCAN", limit)
        table = next(path.parent.glob("*.tsv")) if confounds else None
        found.append(features.series(Recording(path, table)))
    assert len(found[0]) == cut
    assert_allclose(*found, rtol=1e-5, atol=1e-4)
