"""Who is in a folder: every recording belongs to its person, and what is odd is told."""

import numpy as np
import pytest

from capedjica.data import find_people
from capedjica.errors import InputError
from tests.support.scanner import fmriprep, save, volumes

PHENOTYPES = "Phenotypic_V1_0b_preprocessed1.csv"


def touch(folder, *names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name} {number}".encode())
    return folder


def found_in(kind, folder, **options):
    """Names of files by person."""
    found = find_people(kind, folder, **options)
    return {person.name: [recording.path.name for recording in person.recordings] for person in found.people}


# Plain folders ----------------------------------------------------------------------------------------------


def test_an_image_belongs_to_the_subject_in_its_name_or_to_its_folder_or_to_itself(tmp_path):
    touch(
        tmp_path,
        "sub-01_task-rest_run-1_bold.nii.gz",
        "sub-01_task-rest_run-2_bold.nii.gz",
        "sub-02.nii",
        "sub-07-run1.nii",
        "sub-07 run 2.nii",
        "S003/rest1.nii.gz",
        "S003/session 2/rest2.nii.gz",
        "controls/sub-04_bold.nii.gz",
        "person5.nii.gz",
        "subject6.nii.gz",
        "notes.txt",
        ".hidden.nii.gz",
        ".git/sub-09.nii.gz",
    )
    expected = {
        "S003": ["rest1.nii.gz", "rest2.nii.gz"],
        "person5": ["person5.nii.gz"],
        "sub-01": ["sub-01_task-rest_run-1_bold.nii.gz", "sub-01_task-rest_run-2_bold.nii.gz"],
        "sub-02": ["sub-02.nii"],
        "sub-04": ["sub-04_bold.nii.gz"],
        "sub-07": ["sub-07 run 2.nii", "sub-07-run1.nii"],
        "subject6": ["subject6.nii.gz"],
    }
    assert found_in("nifti", tmp_path) == expected
    assert found_in("auto", tmp_path) == expected
    assert find_people("auto", tmp_path).kind == "nifti"
    assert find_people("nifti", tmp_path).problems == ()
    assert list(found_in("nifti", tmp_path, pattern="*bold.nii.gz")) == ["sub-01", "sub-04"]
    assert list(found_in("nifti", tmp_path, pattern="S003/*")) == ["S003"]


def test_runs_of_tables_are_one_person(tmp_path):
    touch(
        tmp_path,
        "sub-01_run-1.tsv",
        "sub-01_run-2.tsv",
        "sub-02.tsv",
        "participants.tsv",
        "x_desc-confounds_timeseries.tsv",
    )
    assert found_in("files", tmp_path) == {
        "sub-01": ["sub-01_run-1.tsv", "sub-01_run-2.tsv"],
        "sub-02": ["sub-02.tsv"],
    }
    assert find_people("auto", tmp_path).kind == "files"


def test_the_same_run_twice_and_copies_under_other_names_are_told(tmp_path):
    touch(tmp_path, "sub-01_bold.nii", "sub-01_bold.nii.gz", "sub-02.nii", "sub-03.nii", "sub-04.nii")
    for name in ("sub-02.nii", "sub-04.nii"):
        (tmp_path / name).write_bytes(b"somebody's scan")
    (tmp_path / "sub-03.nii").write_bytes(b"another's  scan")
    again, copy = find_people("nifti", tmp_path).problems
    assert str(again) == (
        f"{tmp_path / 'sub-01_bold.nii.gz'}: the same subject and run as {tmp_path / 'sub-01_bold.nii'}; "
        "expected one file per run"
    )
    assert str(copy) == (
        f"{tmp_path / 'sub-04.nii'}: the same content as {tmp_path / 'sub-02.nii'}; "
        "expected every recording once"
    )
    assert (again.name, copy.name) == ("sub-01", "sub-04")
    assert again.fatal
    assert copy.fatal


def test_large_files_of_one_size_are_told_apart(tmp_path):
    """Headers and borders are alike in all images; the middle or the whole is not."""
    rng = np.random.default_rng(0)
    first = rng.integers(256, size=300_000, dtype=np.uint8)
    elsewhere = first.copy()
    elsewhere[10] ^= 1
    for name, content in {"a": first, "b": elsewhere, "c": rng.permutation(first)}.items():
        (tmp_path / f"{name}.nii").write_bytes(content.tobytes())
    assert find_people("nifti", tmp_path).problems == ()


def test_people_by_label(tmp_path):
    touch(tmp_path, "sub-01.nii", "sub-02.nii", "sub-03.nii")
    assert list(found_in("nifti", tmp_path, participants=["03", "sub-01"])) == ["sub-01", "sub-03"]
    with pytest.raises(InputError, match="contains no file of participant 'sub-9'"):
        find_people("nifti", tmp_path, participants=["01", "sub-9"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nifti", r"contains no .nii, .nii.gz file that matches '\*'"),
        ("files", r"contains no .npy, .csv, .tsv, .1D, .mat file that matches '\*'"),
        ("auto", r"contains no .npy, .csv, .tsv, .1D, .mat, .nii, .nii.gz file that matches '\*'"),
        ("bids", r"contains no sub-\*/\[ses-\*/\]func/\*_desc-preproc_bold.nii.gz"),
        ("abide", "is not a copy of ABIDE; expected the file Phenotypic_V1_0b_preprocessed1.csv"),
    ],
)
def test_an_empty_folder(tmp_path, kind, message):
    with pytest.raises(InputError, match=message):
        find_people(kind, tmp_path)


# BIDS derivatives -------------------------------------------------------------------------------------------


@pytest.fixture
def derivatives(tmp_path):
    fmriprep(tmp_path, "01", run=1, seed=1)
    fmriprep(tmp_path, "01", run=2, seed=2)
    fmriprep(tmp_path, "02", session="a", seed=3)
    fmriprep(tmp_path, "02", session="b", seed=4)
    fmriprep(tmp_path, "03", task="movie", seed=5)
    rows = ["participant_id\tage", "sub-01\t40", "sub-02\t50", "sub-03\t60"]
    (tmp_path / "participants.tsv").write_text("\n".join(rows) + "\n")
    touch(
        tmp_path, "sub-01.html", "sub-01/anat/sub-01_desc-preproc_T1w.nii.gz", "sub-01/figures/x_bold.nii.gz"
    )
    return tmp_path


def test_derivatives_of_fmriprep(derivatives):
    found = find_people("auto", derivatives)
    assert found.kind == "bids"
    assert found.problems == ()
    assert [(person.name, len(person.recordings)) for person in found.people] == [
        ("sub-01", 2),
        ("sub-02", 2),
        ("sub-03", 1),
    ]
    for person in found.people:
        for recording in person.recordings:
            prefix = recording.path.name.split("_space")[0]
            assert recording.confounds == recording.path.with_name(f"{prefix}_desc-confounds_timeseries.tsv")
            assert recording.sidecar.is_file()
    assert list(found_in("bids", derivatives, task="rest")) == ["sub-01", "sub-02"]
    assert list(found_in("bids", derivatives, participants=["02"])) == ["sub-02"]


def test_several_spaces_need_a_choice(derivatives):
    fmriprep(derivatives, "01", run=1, space="T1w", seed=6)
    with pytest.raises(InputError, match=r"several spaces \(MNI152NLin2009cAsym, T1w\); select one of them"):
        find_people("bids", derivatives)
    assert found_in("bids", derivatives, space="T1w") == {
        "sub-01": ["sub-01_task-rest_run-1_space-T1w_desc-preproc_bold.nii.gz"]
    }
    with pytest.raises(InputError, match="no image of space 'MNI152Lin'; available: MNI152NLin2009cAsym"):
        find_people("bids", derivatives, space="MNI152Lin")
    with pytest.raises(InputError, match="contains no image of task 'sleep'; available: movie, rest"):
        find_people("bids", derivatives, task="sleep")


def test_the_same_run_at_two_resolutions(derivatives):
    path = next(derivatives.glob("sub-01/func/*run-1*bold.nii.gz"))
    save(path.with_name(path.name.replace("_desc", "_res-2_desc")), volumes(9))
    (problem,) = find_people("bids", derivatives).problems
    assert "the same subject and run as" in str(problem)
    assert problem.name == "sub-01"


def test_participants_and_folders_that_disagree(derivatives):
    rows = ["participant_id", "sub-01", "sub-02", "sub-02", "sub-07"]
    (derivatives / "participants.tsv").write_text("\n".join(rows) + "\n")
    twice, without, no_row = find_people("bids", derivatives).problems
    assert (twice.name, twice.fatal, twice.found) == ("sub-02", True, "sub-02 more than once")
    assert (without.name, without.fatal, without.found) == ("sub-07", False, "sub-07 without a run")
    assert (no_row.name, no_row.fatal, no_row.found) == ("sub-03", False, "no row of sub-03")
    assert find_people("bids", derivatives, participants=["01"]).problems == ()
    (derivatives / "participants.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"participants.tsv cannot be read; expected a table of UTF-8 text"):
        find_people("bids", derivatives)


def test_raw_images_are_refused(tmp_path):
    touch(tmp_path, "dataset_description.json", "sub-01/func/sub-01_task-rest_bold.nii.gz")
    with pytest.raises(InputError, match="raw images, which are in no common space; give fMRI"):
        find_people("auto", tmp_path)


def test_the_older_name_of_confounds(tmp_path):
    path = fmriprep(tmp_path, "01")
    table = path.with_name("sub-01_task-rest_desc-confounds_timeseries.tsv")
    table.rename(path.with_name("sub-01_task-rest_desc-confounds_regressors.tsv"))
    (person,) = find_people("bids", tmp_path).people
    assert person.recordings[0].confounds.name == "sub-01_task-rest_desc-confounds_regressors.tsv"


# ABIDE ------------------------------------------------------------------------------------------------------

ABIDE = {"Pitt_0050003": "PITT", "Pitt_0050004": "PITT", "UM_1_0050272": "UM_1", "no_filename": "NYU"}


@pytest.fixture
def abide(tmp_path):
    """A folder as ``nilearn.datasets.fetch_abide_pcp`` leaves it."""
    rows = [f'{n},{name.split("_")[-1]},{site},{name},"a, b"' for n, (name, site) in enumerate(ABIDE.items())]
    files = [f"cpac/nofilt_noglobal/{name}_rois_cc200.1D" for name in ABIDE if name != "no_filename"]
    touch(tmp_path / "ABIDE_pcp", *files)
    header = ",SUB_ID,SITE_ID,FILE_ID,REMARK"
    (tmp_path / "ABIDE_pcp" / PHENOTYPES).write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


def test_abide_in_nilearns_layout(abide):
    assert find_people("auto", abide).kind == "abide"
    assert list(found_in("abide", abide)) == ["Pitt_0050003", "Pitt_0050004", "UM_1_0050272"]
    assert found_in("abide", abide, abide_site="um_1") == {"UM_1_0050272": ["UM_1_0050272_rois_cc200.1D"]}
    for place in (abide / "ABIDE_pcp", abide / "ABIDE_pcp/cpac/nofilt_noglobal"):
        assert list(found_in("abide", place, abide_site="PITT")) == ["Pitt_0050003", "Pitt_0050004"]


def test_abide_that_does_not_hold_what_is_asked_for(abide):
    with pytest.raises(
        InputError, match=r"abide_site must be a SITE_ID of .*csv \(NYU, PITT, UM_1\), got 'PIT'"
    ):
        find_people("abide", abide, abide_site="PIT")
    with pytest.raises(InputError, match=r"contains no file of ABIDE site 'NYU' that matches '\*'"):
        find_people("abide", abide, abide_site="NYU")
    touch(abide / "ABIDE_pcp", "cpac/nofilt_noglobal/Pitt_0050003_rois_aal.1D")
    with pytest.raises(InputError, match=r"derivatives of ABIDE \(.*aal.1D, .*cc200.1D\); select one"):
        find_people("abide", abide)
    assert len(find_people("abide", abide, pattern="*_rois_cc200.1D").people) == 3
