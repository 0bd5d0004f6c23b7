"""The BIDS app on scans as fMRIPrep leaves them, and what the validator of BIDS says of its results."""

import json
import os
import shutil
import sys

import nibabel
import numpy as np
import pytest

from capedjica.algorithms.ica.individual import analyse_subject
from capedjica.cli import bids
from capedjica.data.simulated.brain import SPACE
from capedjica.metrics import match_components
from capedjica.one_machine.bids import levels
from capedjica.report import derivatives
from capedjica.report.derivatives import read_table
from tests.support.programs import bids_errors
from tests.support.small_scans import make_scans

FEATURES = ["--voxel-size", "12"]
MAPS = f"group/task-rest_space-{SPACE}_desc-ICA_components.nii.gz"


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans") / "joint"
    make_scans(folder, (4, 2))
    return folder


@pytest.fixture
def data(scans):
    return scans / "sites" / "site-1" / "data"


def call(*arguments):
    bids.main(list(map(str, arguments)))


def refused(capsys, *arguments, code=2):
    with pytest.raises(SystemExit) as ended:
        call(*arguments)
    assert ended.value.code == code
    return capsys.readouterr().err


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def results(scans, tmp_path_factory):
    """Both levels, without noise."""
    out = tmp_path_factory.mktemp("app") / "derivatives" / "capedjica"
    data = scans / "sites" / "site-1" / "data"
    chosen = [*FEATURES, "--work-dir", str(out.parent / "work")]
    call(data, out, "group", "--mechanism", "none", "--n-components", 3, "--scan-length", 60, *chosen)
    call(data, out, "participant", *chosen)
    return out


def test_results_of_both_levels_are_valid_derivatives(results, tmp_path):
    assert bids_errors(results) == []
    # Not because everything is ignored: without the list, only names that BIDS does not have are left.
    shutil.copytree(results, tmp_path / "all", ignore=shutil.ignore_patterns(".bidsignore"))
    assert bids_errors(tmp_path / "all") == ["NOT_INCLUDED"]
    about = json.loads((results / "dataset_description.json").read_text())
    assert about["DatasetType"] == "derivative"
    assert about["GeneratedBy"][0]["Name"] == "capedjica"
    assert "Container" not in about["GeneratedBy"][0]


def test_a_file_that_breaks_the_standard_is_noticed(results, tmp_path):
    """The validator is not silent on everything."""
    shutil.copytree(results, tmp_path / "broken")
    (tmp_path / "broken" / "dataset_description.json").write_text('{"Name": "x"}')
    (tmp_path / "broken" / "sub-0001" / "func" / "sub-0001_notes.txt").write_text("x")
    assert "NOT_INCLUDED" in bids_errors(tmp_path / "broken")
    assert len(bids_errors(tmp_path / "broken")) > 1


def test_the_maps_are_those_of_all_people_together(results, data, scans):
    """They do not depend on how people are divided into sites, and they are the true ones."""
    image = nibabel.load(results / MAPS)
    found = np.asarray(image.dataobj)
    inside = np.abs(found).max(axis=-1) > 0
    truth = nibabel.load(scans / "truth" / "maps.nii.gz")
    from nilearn.image import resample_to_img

    true = np.asarray(resample_to_img(truth, image, copy_header=True, force_resample=True).dataobj)
    matched = match_components(found[inside], true[inside])
    assert np.mean(matched.correlations) > 0.5
    assert image.header.get_xyzt_units()[0] == "mm"
    about = json.loads((results / MAPS.replace(".nii.gz", ".json")).read_text())
    assert about["Privacy"]["Private"] is False
    assert about["Privacy"]["Epsilon"] is None
    assert "NOT PRIVATE" in about["Privacy"]["Statement"]
    assert about["Participants"] == 4


def test_results_of_single_people_are_dual_regression_and_for_their_owner(results, data):
    image = nibabel.load(results / MAPS)
    folder = results / "sub-0001"
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    own = f"sub-0001_task-rest_space-{SPACE}_desc-ICA_components"
    about = json.loads((folder / "func" / f"{own}.json").read_text())
    assert about["Privacy"]["Private"] is False
    assert all(
        source.startswith("bids:scans:sub-0001/func/sub-0001_task-rest") for source in about["Sources"]
    )
    app = levels.App(
        data, results, (), bids._table(bids.parser().parse_args(["a", "b", "group", *FEATURES]), SPACE)
    )
    features = app.features()
    group = features.of_maps(image)
    people, _ = levels_people(data)
    runs = [features.series(one) for one in people[0].recordings]
    expected = analyse_subject(runs, np.linalg.pinv(group.T))
    tables = sorted((folder / "func").glob("*_mixing.tsv"))
    assert len(tables) == len(runs)
    np.testing.assert_allclose(read_table(tables[0]), expected.courses[0], rtol=1e-3, atol=1e-3)
    mine = np.asarray(nibabel.load(folder / "func" / f"{own}.nii.gz").dataobj)
    theirs = np.asarray(features.image(expected.maps).dataobj)
    np.testing.assert_allclose(mine, theirs, atol=1e-3 * np.abs(theirs).max())


def levels_people(data):
    from capedjica.one_machine.bids.dataset import Selection, select_people

    return select_people(data, Selection())


def test_a_private_group_states_its_guarantee(data, tmp_path, capsys):
    out = tmp_path / "out"
    call(data, out, "group", "--epsilon", 20, "--n-components", 3, "--scan-length", 60, *FEATURES)
    said = capsys.readouterr().out
    assert "protected with epsilon 20 at delta 1e-5" in said
    for path in out.glob("group/*.json"):
        privacy = json.loads(path.read_text())["Privacy"]
        assert (privacy["Private"], privacy["Epsilon"], privacy["Mechanism"]) == (True, 20.0, "pooled")
        assert privacy["Against"] == "anyone who sees only the results"
    assert str(tmp_path) not in "".join(path.read_text() for path in out.glob("group/*.json"))
    assert bids_errors(out) == []
    before = everything(out)
    assert "costs as much again" in refused(capsys, data, out, "group", "--epsilon", 20, *FEATURES)
    assert everything(out) == before


def test_noise_is_the_same_however_people_are_divided(data, tmp_path, monkeypatch, capsys):
    """The guarantee of the docstring: the mean and its noise are those of all people, not of two halves."""
    kept = []
    fit = levels.CapeDJICA.fit

    def watched(self, X, y=None):
        fitted = fit(self, X, y)
        kept.append([release.noise for release in fitted.privacy_.releases])
        whole = [*X[0], *X[1]]
        other = levels.CapeDJICA(**self.get_params())
        fit(other, [whole[:1], whole[1:]])
        kept.append([release.noise for release in other.privacy_.releases])
        return fitted

    monkeypatch.setattr(levels.CapeDJICA, "fit", watched)
    call(
        data, tmp_path / "out", "group", "--epsilon", 20, "--n-components", 3, "--scan-length", 60, *FEATURES
    )
    np.testing.assert_allclose(kept[0], kept[1], rtol=1e-12)


def test_a_dataset_is_searched_for_its_derivatives(data, tmp_path, capsys):
    """Also by task, session and filter; what is not there is said."""
    dataset = tmp_path / "dataset"
    (dataset / "derivatives").mkdir(parents=True)
    (dataset / "sub-0001").mkdir()
    assert "contains no preprocessed scans" in refused(
        capsys, dataset, tmp_path / "o", "group", "--epsilon", 1
    )
    (dataset / "derivatives" / "fmriprep").symlink_to(data)
    chosen = ["--template", tmp_path / "none.nii.gz", *FEATURES]
    assert "none.nii.gz does not exist" in refused(capsys, dataset, tmp_path / "o", "participant", *chosen)
    (dataset / "derivatives" / "other").symlink_to(data)
    assert "derivatives/fmriprep, derivatives/other" in refused(
        capsys, dataset, tmp_path / "o", "participant"
    )
    there = ["--derivatives", dataset / "derivatives" / "other"]
    assert "no results of the group level" in refused(capsys, dataset, tmp_path / "o", "participant", *there)
    assert not (tmp_path / "o").exists()


def test_only_the_chosen_recordings_are_read(data, results, tmp_path):
    (tmp_path / "filter.json").write_text('{"bold": {"run": [1], "datatype": "func"}}')
    two = [path for path in data.glob("sub-*") if len(list(path.rglob("*_bold.nii.gz"))) == 2]
    out = tmp_path / "out"
    chosen = ["--bids-filter-file", tmp_path / "filter.json", "--template", results / MAPS, *FEATURES]
    call(data, out, "participant", "--participant-label", two[0].name, *chosen)
    (table,) = out.rglob("*_mixing.tsv")
    assert table.name == f"{two[0].name}_task-rest_run-1_desc-ICA_mixing.tsv"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [two[0].name]
    assert bids_errors(out) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["group"], "--epsilon must be given"),
        (["group", "--epsilon", 1, "--mechanism", "none"], "--epsilon must not be given"),
        (["group", "--epsilon", -1], "--epsilon must be a finite number above 0"),
        (["group", "--epsilon", 1, "--participant-label", "0001"], "at least 2 participants, got 1"),
        (["group", "--epsilon", 1, "--participant-label", "nobody"], "no file of participant 'nobody'"),
        (["group", "--epsilon", 1, "--task-id", "nback"], "no image of task 'nback'; available: rest"),
        (["group", "--epsilon", 1, "--session-label", "x"], "no recording of the selected sessions"),
        (["group", "--epsilon", 1, "--voxel-size", 0.1], "voxel_size"),
        (["group", "--epsilon", 1, "--confounds", "tea"], "confounds must be among"),
        (["group", "--epsilon", 1, "--mask", "epi"], "epi"),
        (["group", "--epsilon", 1, "--mem-mb", 0.01], "--mem-mb allows 0"),
        (["group", "--epsilon", 1, "--n-components", 1], "--n-components must be"),
        (["group", "--epsilon", 1, "--n-cpus", 0], "--n-cpus must be"),
        (["group", "--epsilon", 1, "--bids-filter-file", "no.json"], "no.json cannot be read"),
        (["participant"], "no results of the group level"),
        (["participant", "--epsilon", 1], "results of participants are not private"),
    ],
)
def test_bad_input_is_explained_and_nothing_is_written(data, tmp_path, capsys, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, data, "out", *more)
    assert said.startswith("capedjica-bids: ")
    assert words in said
    assert "Traceback" not in said
    assert os.listdir(tmp_path) == []


def test_a_damaged_scan_is_named_and_the_others_are_written(data, results, tmp_path, capsys):
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    scan = next(copy.glob("sub-0003/func/*_bold.nii.gz"))
    scan.write_bytes(scan.read_bytes()[:5000])
    out = tmp_path / "out"
    call(copy, out, "participant", "--template", results / MAPS, *FEATURES)
    said = capsys.readouterr()
    assert "sub-0003" in said.err
    assert "Results of 3 of 4 participants" in said.out
    assert not (out / "sub-0003").exists()
    (copy / "dataset_description.json").unlink()
    assert "BIDS requires it" in refused(capsys, copy, out, "participant", *FEATURES)


def test_an_interruption_leaves_earlier_results_and_nothing_incomplete(
    data, results, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    shutil.copytree(results, out)
    before = everything(out)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(derivatives, "write_whole", stop)
    assert "interrupted" in refused(capsys, data, out, "participant", *FEATURES, code=130)
    shutil.rmtree(out / "group")
    chosen = ["--mechanism", "none", "--n-components", 3, "--scan-length", 60, *FEATURES]
    refused(capsys, data, out, "group", *chosen, code=130)
    assert everything(out) == [name for name in before if not name.startswith("group/")]
    assert not list(out.glob(".*.part"))


def test_other_features_than_those_of_the_group_are_refused(data, results, capsys):
    said = refused(capsys, data, results, "participant", "--voxel-size", 14)
    assert "had other features" in said


def test_regions_of_an_atlas_have_maps_in_space(scans, data, tmp_path):
    from tests.support.small_scans import write_atlas

    n_regions = write_atlas(scans / "mask.nii.gz", tmp_path / "atlas.nii.gz")
    out = tmp_path / "out"
    chosen = ["--atlas", tmp_path / "atlas.nii.gz", "--mechanism", "none", "--scan-length", 60]
    call(data, out, "group", "--n-components", 3, *chosen)
    image = nibabel.load(out / MAPS)
    assert image.shape[3] == 3
    assert len(np.unique(np.asarray(image.dataobj)[..., 0])) <= n_regions + 1
    call(data, out, "participant", "--atlas", tmp_path / "atlas.nii.gz")
    assert bids_errors(out) == []


def test_help_and_version_need_nothing(capsys, monkeypatch):
    for option in ("--help", "--version"):
        monkeypatch.setattr(sys, "argv", ["capedjica-bids", option])
        with pytest.raises(SystemExit) as ended:
            bids.main()
        assert ended.value.code == 0
    assert "capedjica-bids" in capsys.readouterr().out
