"""Runs exported as BIDS derivatives: valid, complete, and nothing that the run did not publish."""

import json
import shutil

import nibabel
import numpy as np
import pytest

from capedjica.coordinator.run.bids_export import export_run
from capedjica.data.simulated.brain import SPACE
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.report import derivatives
from capedjica.report.derivatives import entities_of, named, read_table
from capedjica.site.results.individual import write_local_results
from tests.support.programs import bids_errors
from tests.support.small_scans import make_scans
from tests.support.small_study import SIDE, make_study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    study = make_scans(folder / "joint", (3, 3))
    homes = find_sites(study, study.folder / "sites")
    run_study(study, homes, folder / "joint" / "run")
    return study, homes, folder / "joint" / "run"


def test_an_exported_run_is_valid_and_has_its_maps_and_guarantee(run, tmp_path):
    _, _, folder = run
    out = tmp_path / "new" / "derivatives"
    names = export_run(folder, out)
    assert sorted(names) == sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert bids_errors(out) == []
    stem = out / "group" / f"space-{SPACE}_desc-ICA_components"
    maps = np.asarray(nibabel.load(f"{stem}.nii.gz").dataobj)
    np.testing.assert_array_equal(maps, np.asarray(nibabel.load(folder / "maps.nii.gz").dataobj))
    privacy = json.loads((folder / "privacy.json").read_text())
    for path in out.glob("group/*.json"):
        said = json.loads(path.read_text())["Privacy"]
        assert (said["Epsilon"], said["Mu"], said["Private"]) == (privacy["epsilon"], privacy["mu"], True)
    metrics = (out / "group" / "desc-ICA_metrics.tsv").read_text().splitlines()
    assert metrics[0] == "component\tname\tstability\tgrade"
    assert len(metrics) == 1 + maps.shape[3]
    grades = json.loads((folder / "reliability.json").read_text())["grade"]
    assert [line.split("\t")[3] for line in metrics[1:]] == grades
    assert "<html" in (out / "group.html").read_text()
    everything = "".join(path.read_text() for path in out.rglob("*.json"))
    assert str(folder.parent) not in everything
    assert "sub-" not in everything


def test_names_have_entities_in_the_order_of_the_standard(run, tmp_path):
    order = ["sub", "ses", "task", "run", "space", "desc"]
    export_run(run[2], tmp_path / "out")
    for path in (tmp_path / "out" / "group").iterdir():
        keys = list(entities_of(path))
        assert keys == sorted(keys, key=order.index)
        assert path.name.split(".")[0] == named(entities_of(path), path.name.split(".")[0].split("_")[-1])


def test_existing_results_are_not_overwritten_and_an_unfinished_run_is_none(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="already exists and is not empty"):
        export_run(run[2], tmp_path / "out")
    shutil.copytree(run[2], tmp_path / "part")
    (tmp_path / "part" / "privacy.json").unlink()
    with pytest.raises(InputError, match="not the folder of a complete run"):
        export_run(tmp_path / "part", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "part"]


def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(derivatives, "write_whole", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        export_run(run[2], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_individual_results_of_a_site_are_valid_too(run, tmp_path):
    _, homes, folder = run
    written = write_local_results(folder, homes[0])
    assert bids_errors(written.folder) == []
    shutil.copytree(written.folder, tmp_path / "all", ignore=shutil.ignore_patterns(".bidsignore"))
    assert bids_errors(tmp_path / "all") == ["NOT_INCLUDED"]
    about = json.loads((written.folder / "dataset_description.json").read_text())
    assert about["DatasetLinks"]["scans"] == homes[0].data_path.resolve().as_uri()


def test_features_without_positions_are_tables(tmp_path):
    study = make_study(tmp_path)
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out")
    maps = read_table(tmp_path / "out" / "group" / "desc-ICA_components.tsv")
    assert maps.shape == (SIDE * SIDE, 3)
    np.testing.assert_allclose(maps.T, np.load(tmp_path / "run" / "maps.npy"), atol=1e-7)
    assert bids_errors(tmp_path / "out") == []
