"""Images that are wrong in every way that is known: all of it is listed, and left out at enrolment."""

import gzip
import shutil

import nibabel
import numpy as np
import pytest

from capedjica.one_machine.local_run import find_sites
from capedjica.site.check import site_report
from capedjica.site.participants.cohort import enrol, open_people
from capedjica.study.study_file import Study
from tests.support.small_scans import make_scans


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_scans(tmp_path_factory.mktemp("bad") / "trial", subjects=(11, 2, 2))


def bold(person):
    return sorted(person.rglob("*_desc-preproc_bold.nii.gz"))[0]


def changed(path, change):
    image = nibabel.load(path)
    volumes, affine = change(np.asarray(image.dataobj, dtype=np.float32), image.affine.copy())
    fresh = nibabel.Nifti1Image(volumes, affine)
    fresh.header.set_xyzt_units("mm", "sec")
    nibabel.save(fresh, path)


def nan_volume(volumes, affine):
    volumes[..., 7] = np.nan
    return volumes, affine


def far_away(volumes, affine):
    affine[:3, 3] += 500
    return volumes, affine


# What is done to a person's files, and what must be said about it.
SPOILT = {
    0: (lambda path: path.write_bytes(path.read_bytes()[:5000]), "truncated or damaged"),
    1: (lambda path: path.write_bytes(gzip.compress(b"nothing")), "not a NIfTI image"),
    2: (lambda path: changed(path, lambda v, a: (v[..., 0], a)), "a single volume"),
    3: (lambda path: changed(path, nan_volume), "volumes with NaN or infinite values (1), the first is 8 of"),
    4: (lambda path: changed(path, lambda v, a: (0 * v, a)), "constant values in every feature"),
    5: (lambda path: changed(path, far_away), "a field of view with 0% of the study's voxels"),
    6: (
        lambda path: next(path.parent.glob("*_desc-confounds_timeseries.tsv")).unlink(),
        "no table of confounds next to it",
    ),
    7: (lambda path: changed(path, lambda v, a: (v[..., :2], a)), "rows"),
    8: (lambda path: path.write_bytes(b""), "an empty file"),
}


def test_everything_is_listed_with_file_names_and_left_out(study):
    home = find_sites(study, study.folder / "sites")[0]
    people = sorted(home.data_path.glob("sub-*"))
    for number, (spoil, _) in SPOILT.items():
        spoil(bold(people[number]))
    # One person twice: the same scan under another name.
    shutil.copytree(people[9], home.data_path / "sub-9999")
    for file in sorted((home.data_path / "sub-9999").rglob(f"{people[9].name}_*")):
        file.rename(file.with_name(file.name.replace(people[9].name, "sub-9999")))
    facts = site_report(home, study)
    fatal = {}
    for found in facts["problems"]:
        if found["fatal"]:
            fatal.setdefault(found["person"], []).append(found["what"])
    for number, (_, words) in SPOILT.items():
        name = people[number].name
        assert any(words in what and name in what for what in fatal[name]), (words, fatal.get(name))
    assert any("the same content as" in what for what in fatal["sub-9999"])
    assert people[9].name not in fatal
    enrolment = enrol(home, home.settings.data, study)
    assert enrolment.enrolled == (people[9].name, people[10].name)
    assert {one.name for one in enrolment.left_out} == {*(people[n].name for n in SPOILT), "sub-9999"}
    assert all(len(scan) for scan in open_people(home, study))
    assert Study.load(study.folder).hash == study.hash


def test_another_grid_is_told_and_brought_to_that_of_the_study(study):
    home = find_sites(study, study.folder / "sites")[1]
    path = bold(sorted(home.data_path.glob("sub-*"))[0])
    changed(path, lambda volumes, affine: (volumes[1:], affine @ _shift(1)))
    facts = site_report(home, study)
    assert facts["obstacles"] == []
    assert len(facts["data"]["grids"]) == 2
    assert any("a grid of" in found["what"] and not found["fatal"] for found in facts["problems"])


def _shift(voxels):
    shift = np.eye(4)
    shift[0, 3] = voxels
    return shift


def test_another_space_is_said_in_words(study):
    home = find_sites(study, study.folder / "sites")[2]
    for path in home.data_path.rglob("*space-MNI152NLin2009cAsym*"):
        path.rename(path.with_name(path.name.replace("MNI152NLin2009cAsym", "T1w")))
    facts = site_report(home, study)
    (obstacle,) = facts["obstacles"]
    assert "contains no image of space 'MNI152NLin2009cAsym'; available: T1w" in obstacle
    assert facts["data"] is None
