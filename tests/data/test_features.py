"""The public part of a study: settings that go together, files that are the ones meant."""

import hashlib

import msgspec
import numpy as np
import pytest

from capedjica.data.features import FeatureTable, count_features, feature_problems, open_features
from capedjica.errors import InputError
from tests.support.scanner import AFFINE, INSIDE, LABELS, MAPS, SHAPE, public_files, save


@pytest.fixture
def public(tmp_path):
    return public_files(tmp_path)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "atlas", "atlas": "labels.nii.gz"}, 4),
        ({"kind": "atlas", "atlas": "maps.nii.gz"}, 3),
        ({"kind": "voxels", "mask": "mask.nii.gz"}, int(INSIDE.sum())),
        ({"kind": "voxels", "mask": "mask.nii.gz", "voxel_size": 8.0}, 36),
        ({"kind": "atlas", "atlas": "labels.nii.gz", "mask": "half.nii.gz"}, 2),
    ],
)
def test_features_are_counted_by_public_files(public, options, expected):
    save(public / "half.nii.gz", (np.indices(SHAPE)[0] < 6).astype(np.uint8))
    assert count_features(FeatureTable(**options), public) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atlas": "a.nii", "image_shape": (2, 3)}, "features.atlas is only for columns that are regions"),
        ({"smoothing_fwhm": 6.0}, "features.smoothing_fwhm is only for images"),
        ({"low_pass": 0.1}, "features.low_pass is only for images"),
        ({"confounds": ("motion",)}, "features.confounds is only for images"),
        ({"kind": "atlas"}, "features.atlas must name the image of the regions"),
        (
            {"kind": "atlas", "atlas": "a.nii", "voxel_size": 3.0},
            "features.voxel_size is only for kind 'voxels'",
        ),
        ({"kind": "voxels", "atlas": "a.nii", "mask": "m.nii"}, "features.atlas is only for kind 'atlas'"),
        (
            {"kind": "voxels", "mask": "epi"},
            "must be a file name, got 'epi'; a mask computed from participants' images is",
        ),
        ({"kind": "voxels"}, "features.voxel_size must be given, in mm, if features.mask is not"),
        (
            {"kind": "voxels", "mask": "m.nii", "low_pass": 0.1, "high_pass": 0.1},
            r"features.high_pass \(0.1\) must be below features.low_pass \(0.1\)",
        ),
        (
            {"kind": "voxels", "mask": "m.nii", "confounds": ("magic",)},
            "must be among motion, .*; got 'magic'",
        ),
        (
            {"kind": "voxels", "mask": "m.nii", "confounds": ("compcor",)},
            "'compcor' also requires",
        ),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, options, message):
    table = FeatureTable(**options)
    assert len(feature_problems(table)) == 1
    with pytest.raises(InputError, match=message):
        open_features(table, tmp_path, 5)


def test_the_file_must_be_the_one_that_the_study_means(public):
    right = digest(public / "labels.nii.gz")
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz", atlas_sha256=right)
    assert open_features(table, public, 4).n_features == 4
    save(public / "labels.nii.gz", 2 * LABELS)
    with pytest.raises(InputError, match=f"labels.nii.gz is not the file of the study: .*{right}"):
        open_features(table, public, 4)
    with pytest.raises(InputError, match=r"atlas .*nothing.nii cannot be read: No such file or directory"):
        open_features(FeatureTable(kind="atlas", atlas="nothing.nii"), public, None)


def test_the_number_of_features_must_be_the_study_s(public):
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz")
    with pytest.raises(InputError, match=r"features.n_features is 200, but the atlas has 4 regions"):
        open_features(table, public, 200)
    table = FeatureTable(kind="voxels", mask="mask.nii.gz")
    with pytest.raises(InputError, match=r"features.n_features is 200, but the mask has 336 voxels"):
        open_features(table, public, 200)


def shifted():
    affine = AFFINE.copy()
    affine[0, 3] += 2
    return affine


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((LABELS == 3).astype(np.uint8), "atlas must have at least 2 regions, got 1"),
        (np.zeros(SHAPE, np.uint8), "atlas must have at least 2 regions, got 0"),
        (LABELS + 0.25 * (LABELS > 0), "atlas must contain non-negative integers"),
        (-LABELS, "atlas must contain non-negative integers"),
        (np.where(INSIDE, np.nan, 1.0), "atlas must contain only finite numbers"),
        (MAPS[..., :1], "atlas must have at least 2 maps, got 1"),
        (MAPS * (np.arange(3) != 1), "atlas: map 2 is zero everywhere"),
        (MAPS[..., None], "atlas must be 3-D"),
    ],
)
def test_bad_atlases(tmp_path, values, message):
    save(tmp_path / "atlas.nii.gz", values)
    with pytest.raises(InputError, match=message):
        open_features(FeatureTable(kind="atlas", atlas="atlas.nii.gz"), tmp_path, None)


def test_atlas_and_mask_must_be_on_one_grid(public):
    table = FeatureTable(kind="atlas", atlas="labels.nii.gz", mask="other.nii.gz")
    save(public / "other.nii.gz", INSIDE.astype(np.uint8), affine=shifted())
    with pytest.raises(InputError, match=r"shapes \(9, 10, 8\) and \(9, 10, 8\), affines different"):
        open_features(table, public, None)
    save(public / "other.nii.gz", INSIDE[:5].astype(np.uint8))
    with pytest.raises(InputError, match=r"shapes \(5, 10, 8\) and \(9, 10, 8\), affines equal"):
        open_features(table, public, None)
    save(public / "other.nii.gz", (LABELS == 3).astype(np.uint8))
    with pytest.raises(InputError, match="at least 2 regions, got 1"):
        open_features(table, public, None)


def test_voxels_that_no_memory_would_hold(tmp_path):
    with pytest.raises(InputError, match="between 2 and 100,000 voxels, got 235,375; adjust voxel_size"):
        open_features(FeatureTable(kind="voxels", voxel_size=2.0), tmp_path, None)
    for name, value in {"voxel_size": 0.01, "smoothing_fwhm": float("inf"), "low_pass": 0.0}.items():
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"kind": "voxels", name: value}, FeatureTable)


def test_bad_masks(public):
    table = FeatureTable(kind="voxels", mask="other.nii.gz")
    save(public / "other.nii.gz", MAPS)
    with pytest.raises(InputError, match=r"mask must be 3-D, got shape \(9, 10, 8, 3\)"):
        open_features(table, public, None)
    save(public / "other.nii.gz", np.zeros(SHAPE, np.uint8))
    with pytest.raises(InputError, match="mask must have between 2 and 100,000 voxels, got 0"):
        open_features(table, public, None)
    (public / "other.nii.gz").write_bytes(b"junk" * 99)
    with pytest.raises(InputError, match=r"other.nii.gz is not a readable image"):
        open_features(table, public, None)
