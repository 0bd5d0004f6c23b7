"""What a study of images leaves: maps in template space, and for each site what is about its people."""

import csv
import json
import os
import zipfile

import nibabel
import numpy as np
import pytest

from capedjica.coordinator.run.comparison import compare_runs
from capedjica.coordinator.run.results import is_whole
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.data.cache import SeriesCache
from capedjica.data.simulated.brain import SPACE
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.participants.cohort import open_people
from capedjica.site.results import individual
from capedjica.site.results.individual import purge_results, write_local_results
from capedjica.study.study_file import Study
from tests.support.small_scans import COMPONENTS, SUBJECTS, atlas_study, make_scans
from tests.support.small_study import SIDE, make_study


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """A study of voxels and one of regions, both run."""
    voxels = make_scans(tmp_path_factory.mktemp("scans") / "trial")
    regions = atlas_study(voxels)
    for study, run in ((voxels, "run"), (regions, "run-atlas")):
        run_study(study, find_sites(study, study.folder / "sites"), study.folder / run)
    return voxels, regions


# For all


@pytest.mark.parametrize(("which", "run"), [(0, "run"), (1, "run-atlas")])
def test_maps_are_images_in_the_space_of_the_features(studies, which, run):
    study = studies[which]
    folder = study.folder / run
    maps, image = np.load(folder / "maps.npy"), nibabel.load(folder / "maps.nii.gz")
    public = nibabel.load(study.folder / ("mask.nii.gz", "atlas.nii.gz")[which])
    np.testing.assert_array_equal(image.affine, public.affine)
    assert image.shape == (*public.shape, COMPONENTS)
    inside = np.asarray(public.dataobj)
    values = np.asarray(image.dataobj)
    assert not values[inside == 0].any()
    if which == 0:
        np.testing.assert_allclose(values[inside != 0].T, maps, rtol=1e-6)
    else:
        for feature, label in enumerate(np.unique(inside[inside != 0])):
            np.testing.assert_allclose(
                values[inside == label].T,
                np.outer(maps[:, feature], np.ones((inside == label).sum())),
                rtol=1e-6,
            )
    assert (folder / "maps.png").read_bytes().startswith(b"\x89PNG")


def test_every_map_has_a_peak_where_it_is_one(studies):
    image = nibabel.load(studies[0].folder / "run" / "maps.nii.gz")
    rows = list(csv.DictReader((studies[0].folder / "run" / "peaks.csv").read_text().splitlines()))
    values, to_voxel = np.asarray(image.dataobj), np.linalg.inv(image.affine)
    assert {int(row["component"]) for row in rows} == set(range(1, COMPONENTS + 1))
    for row in rows:
        place = np.rint(to_voxel[:3] @ [*(float(row[axis]) for axis in "xyz"), 1.0]).astype(int)
        assert values[(*place, int(row["component"]) - 1)] == pytest.approx(float(row["value"]))
    named = csv.DictReader((studies[1].folder / "run-atlas" / "peaks.csv").read_text().splitlines())
    assert all(row["region"].startswith("cube ") for row in named)


def test_the_bundle_holds_the_results_and_the_study_and_nothing_else(studies, tmp_path):
    study = studies[1]
    folder = study.folder / "run-atlas"
    with zipfile.ZipFile(folder / "results.zip") as bundle:
        names = set(bundle.namelist())
        bundle.extractall(tmp_path)
    results = {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv", "maps.nii.gz", "peaks.csv", "maps.png"}
    about = {"reliability.json", "privacy.json", "provenance.json", "study.toml", "atlas.nii.gz"}
    assert names == results | about
    assert Study.load(tmp_path).hash == study.hash
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert provenance["study"]["features"]["atlas_sha256"] == study.content.features.atlas_sha256
    assert {"nilearn", "nibabel"} <= set(provenance["libraries"])
    for name, digest in provenance["files"].items():
        assert RunFolder(tmp_path).hash_of(name) == digest
    assert {"maps.nii.gz", "peaks.csv", "maps.png"} <= set(provenance["files"])


def test_results_that_were_deleted_are_made_again(studies):
    study, folder = studies[1], studies[1].folder / "run-atlas"
    before = {name: (folder / name).read_bytes() for name in ("maps.nii.gz", "peaks.csv")}
    for name in (*before, "results.zip"):
        (folder / name).unlink()
    run_study(study, find_sites(study, study.folder / "sites"), folder)
    assert is_whole(RunFolder(folder))
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_runs_are_compared_with_the_truth(studies):
    (row,) = compare_runs([studies[0].folder / "run"], studies[0].folder / "truth" / "mixing.npy")
    assert 0 < row.map_correlation <= 1


# For one site


@pytest.fixture
def home(studies):
    home = find_sites(studies[0], studies[0].folder / "sites")[1]
    yield home
    purge_results(home)


def everything(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def test_every_person_has_results_that_only_the_owner_can_read(studies, home):
    ticks = []
    written = write_local_results(studies[0].folder / "run", home, lambda: ticks.append(1))
    assert (written.written, written.kept, written.unusable) == (SUBJECTS[1], 0, ())
    assert len(ticks) == SUBJECTS[1]
    assert written.folder == home.folder / "results" / studies[0].hash.hex()[:16]
    for path in (home.results_path, written.folder, *written.folder.glob("sub-*")):
        assert path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in everything(home.results_path).values()} == {0o600}
    for person in open_people(home, studies[0]).people:
        assert os.listdir(written.folder / person.name) == ["func"]
        names = set(os.listdir(written.folder / person.name / "func"))
        runs = ["", "_run-1", "_run-2"] if len(person.recordings) > 1 else [""]
        stem = f"{person.name}_task-rest"
        for run in runs[len(runs) > 1 :]:
            assert {f"{stem}{run}_desc-ICA_mixing.tsv", f"{stem}{run}_desc-ICA_spectra.json"} <= names
        assert f"{stem}_space-{SPACE}_desc-ICA_components.nii.gz" in names


def test_the_numbers_are_those_of_the_maps_applied_to_the_scan(studies, home):
    study, run = studies[0], studies[0].folder / "run"
    folder = write_local_results(run, home).folder
    unmixing, people = np.load(run / "unmixing.npy"), open_people(home, study)
    for person, scan in zip(people.people, people, strict=True):
        stem = folder / person.name / "func" / f"{person.name}_task-rest"
        if len(person.recordings) > 1:
            continue
        table = np.loadtxt(f"{stem}_desc-ICA_mixing.tsv", delimiter="\t", skiprows=1)
        centred = scan.astype(float) - scan.mean(axis=0, dtype=float)
        np.testing.assert_allclose(table, centred @ unmixing.T, rtol=1e-5, atol=1e-5)
        z = np.loadtxt(f"{stem}_desc-ICA_relmat.tsv", delimiter="\t", skiprows=1)
        expected = np.corrcoef(table.T)
        assert z[0, 1] == pytest.approx(np.arctanh(expected[0, 1]), abs=1e-5)
        image = nibabel.load(f"{stem}_space-{SPACE}_desc-ICA_components.nii.gz")
        mask = np.asarray(nibabel.load(study.folder / "mask.nii.gz").dataobj) != 0
        maps = np.linalg.lstsq(table / table.std(axis=0), centred, rcond=None)[0]
        np.testing.assert_allclose(np.asarray(image.dataobj)[mask].T, maps, atol=1e-4 * np.abs(maps).max())
        about = json.loads((stem.parent / f"{stem.name}_desc-ICA_mixing.json").read_text())
        assert about["Columns"] == ["component-01", "component-02", "component-03"]
        assert about["RepetitionTime"] == 1 / about["SamplingFrequency"] == 1.5
        assert about["VolumesLeftOut"] == 0
        grades = json.loads((run / "reliability.json").read_text())["grade"]
        assert about["Reliability"] == dict(zip(about["Columns"], grades, strict=True))
        assert ("Warning" in about) == ("poor" in grades)
        spectrum = np.loadtxt(f"{stem}_desc-ICA_spectra.tsv", delimiter="\t", skiprows=1)
        assert spectrum[-1, 0] == pytest.approx(1 / 3, rel=0.05)


def test_an_interruption_leaves_whole_people_who_are_kept(studies, home, monkeypatch):
    run, done = studies[0].folder / "run", []
    analyse = individual.analyse_subject

    def stop(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return analyse(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(individual, "analyse_subject", stop)
        with pytest.raises(KeyboardInterrupt):
            write_local_results(run, home)
    (folder,) = home.results_path.iterdir()
    assert sum(path.is_dir() for path in folder.iterdir()) == 3
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
    before = {name: path.stat().st_mtime_ns for name, path in everything(folder).items() if "sub-" in name}
    written = write_local_results(run, home)
    assert (written.written, written.kept) == (SUBJECTS[1] - 3, 3)
    after = {name: path.stat().st_mtime_ns for name, path in everything(folder).items()}
    assert before.items() <= after.items()


def test_results_of_other_maps_are_not_mixed(studies, home, tmp_path):
    run = studies[0].folder / "run"
    write_local_results(run, home)
    for name in ("study.toml", "mask.nii.gz", "reliability.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    np.save(tmp_path / "unmixing.npy", 2 * np.load(run / "unmixing.npy"))
    with pytest.raises(InputError, match="contains results computed from different maps of this study"):
        write_local_results(tmp_path, home)
    np.save(tmp_path / "unmixing.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match=r"has shape \(2, 3\), but its study requires"):
        write_local_results(tmp_path, home)
    assert purge_results(home) == 1
    assert not home.results_path.exists()
    assert purge_results(home) == 0


def test_tables_have_maps_without_places_and_bad_scans_have_nothing(tmp_path):
    study = make_study(tmp_path)
    homes = find_sites(study, tmp_path / "sites")
    run_study(study, homes, tmp_path / "run")
    (homes[0].data_path / "sub-01.npy").write_bytes(b"")
    written = write_local_results(tmp_path / "run", homes[0])
    assert written.unusable == ("sub-01",)
    assert written.written == 5
    stem = written.folder / "sub-00" / "func" / "sub-00"
    maps = np.loadtxt(f"{stem}_desc-ICA_components.tsv", delimiter="\t", skiprows=1)
    assert maps.shape == (SIDE * SIDE, 3)
    about = json.loads((stem.parent / "sub-00_desc-ICA_spectra.json").read_text())
    assert about["FrequencyUnit"] == "cycles per time point"
    assert not (homes[0].folder / "cache").exists()


def test_the_cache_of_a_run_is_there_until_it_is_purged(studies, home):
    list(open_people(home, studies[0]))
    assert home.cache_path.stat().st_mode & 0o777 == 0o700
    assert SeriesCache(home.cache_path).purge() >= SUBJECTS[1]
    assert not home.cache_path.exists()
