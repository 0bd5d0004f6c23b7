"""An atlas or a mask of a study: beside it, known by its hash, handed on with it."""

import hashlib
import os

import msgspec
import nibabel
import numpy as np
import pytest

from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.data.features import FeatureTable
from capedjica.errors import InputError
from capedjica.study.public_files import copy_file, copy_files, file_problems, with_hashes
from capedjica.study.study_file import Study, write_study
from tests.support.drafts import draft, with_ica

REGIONS = 6


@pytest.fixture
def folder(tmp_path):
    """A folder with an atlas of six regions."""
    labels = np.zeros((7, 8, 6), dtype=np.int16)
    labels[1:, 1:7, 1:] = 1 + np.arange(6)[np.newaxis, :, np.newaxis]
    nibabel.save(nibabel.Nifti1Image(labels, np.diag([12.0, 12, 12, 1])), tmp_path / "atlas.nii.gz")
    return tmp_path


def with_atlas(**features):
    analysis = {"n_features": REGIONS, "n_components": 3}
    return draft(analysis=analysis, features={"kind": "atlas", "atlas": "atlas.nii.gz"} | features)


def test_a_hash_that_is_missing_is_filled_in_when_a_study_is_written(folder):
    write_study(folder / "study.toml", with_atlas(standardize=True, confounds=("motion", "wm_csf")))
    study = Study.load(folder)
    table = study.content.features
    assert table.atlas_sha256 == hashlib.sha256((folder / "atlas.nii.gz").read_bytes()).hexdigest()
    assert table.standardize
    assert table.confounds == ("motion", "wm_csf")
    assert study.features.n_features == REGIONS
    assert study.features.image(np.eye(REGIONS)).shape == (7, 8, 6, REGIONS)


def test_a_study_that_does_not_say_which_file_it_means_is_refused(folder):
    write_study(folder / "study.toml", with_atlas())
    text = (folder / "study.toml").read_text()
    (folder / "open.toml").write_text("".join(line for line in text.splitlines(True) if "sha256" not in line))
    with pytest.raises(InputError, match=r"features.atlas_sha256 must be the SHA-256 .* got nothing"):
        Study.load(folder / "open.toml")


def test_another_file_of_the_same_name_is_refused(folder):
    write_study(folder / "study.toml", with_atlas())
    image = nibabel.load(folder / "atlas.nii.gz")
    changed = np.asarray(image.dataobj).copy()
    changed[0, 0, 0] = 3
    nibabel.save(nibabel.Nifti1Image(changed, image.affine), folder / "atlas.nii.gz")
    with pytest.raises(InputError, match="is not the file of the study"):
        Study.load(folder)
    (folder / "atlas.nii.gz").unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Study.load(folder)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"atlas": "/etc/atlas.nii.gz"},
            "features.atlas must be a relative path inside the folder of study.toml",
        ),
        (
            {"atlas": "../atlas.nii.gz"},
            "features.atlas must be a relative path inside the folder of study.toml",
        ),
        ({"atlas": "a\nb.nii.gz"}, "features.atlas must be a relative path inside the folder of study.toml"),
        ({"atlas_sha256": "abc"}, "features.atlas_sha256 must be the SHA-256 of 'atlas.nii.gz', 64 hex"),
        ({"mask_sha256": "a" * 64}, "features.mask_sha256 is given, but features.mask is missing"),
    ],
)
def test_names_and_hashes_that_cannot_be_used(features, message):
    table = FeatureTable(**{"kind": "atlas", "atlas": "atlas.nii.gz", "atlas_sha256": "a" * 64} | features)
    (found,) = file_problems(table)
    assert message in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: with_atlas(voxel_size=3.0), "features.voxel_size is only for kind 'voxels'"),
        (
            lambda: with_ica(with_atlas(), n_features=7),
            "features.n_features is 7, but the atlas has 6 regions",
        ),
        (
            lambda: with_ica(with_atlas(), n_features=6, image_shape=(2, 3)),
            "features.image_shape is only allowed for kind 'columns'",
        ),
        (lambda: with_atlas(atlas="none.nii.gz"), "none.nii.gz cannot be read: No such file"),
    ],
)
def test_features_that_do_not_fit_are_refused_and_nothing_is_written(folder, content, message):
    with pytest.raises(InputError, match=message):
        write_study(folder / "study.toml", content())
    assert os.listdir(folder) == ["atlas.nii.gz"]


def test_the_hash_of_a_study_covers_its_files_and_not_where_they_are(folder, tmp_path_factory):
    write_study(folder / "study.toml", with_atlas())
    study, elsewhere = Study.load(folder), tmp_path_factory.mktemp("elsewhere")
    copy_files(study.content.with_files, folder, elsewhere)
    write_study(elsewhere / "study.toml", study.content)
    assert Study.load(elsewhere).hash == study.hash
    assert Study.load(elsewhere).contract.hash == study.contract.hash
    other = msgspec.structs.replace(study.content.features, atlas_sha256="0" * 64)
    assert Study(msgspec.structs.replace(study.content, features=other)).hash != study.hash


def test_a_run_folder_has_the_study_with_its_files(folder):
    write_study(folder / "study.toml", with_atlas())
    study, run = Study.load(folder), RunFolder(folder / "run")
    with run.claim(study):
        pass
    assert Study.load(run.path).hash == study.hash


def test_a_copy_never_goes_over_another_file(folder):
    (folder / "other.nii.gz").write_bytes(b"other")
    with pytest.raises(InputError, match="already exists and differs from"):
        copy_file(folder / "atlas.nii.gz", folder / "other.nii.gz")
    assert (folder / "other.nii.gz").read_bytes() == b"other"
    copy_file(folder / "atlas.nii.gz", folder / "deep" / "atlas.nii.gz")
    copy_file(folder / "atlas.nii.gz", folder / "deep" / "atlas.nii.gz")
    assert (folder / "deep" / "atlas.nii.gz").read_bytes() == (folder / "atlas.nii.gz").read_bytes()
    with pytest.raises(InputError, match="cannot be copied"):
        copy_file(folder / "none", folder / "copy")
    assert sorted(os.listdir(folder)) == ["atlas.nii.gz", "deep", "other.nii.gz"]


def test_hashes_that_are_given_stay(folder):
    table = FeatureTable(kind="atlas", atlas="atlas.nii.gz", atlas_sha256="0" * 64)
    assert with_hashes(table, folder) == table
    assert with_hashes(FeatureTable(), folder) == FeatureTable()
