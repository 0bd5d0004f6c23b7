"""Runs with labels, tables of regions on a brain, and atlases of z-values: files, commands and pages."""

import csv
import json
import re
import runpy
import shutil
import zipfile

import msgspec
import nibabel
import numpy as np
import pytest

from capedjica.coordinator.run.report import run_findings
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.report.group import group_page
from capedjica.report.pictures.slices import SHOWN_FROM, axial
from capedjica.study.approval_text import feature_words
from capedjica.study.study_file import Study, write_study
from tests.report.conftest import run as run_in
from tests.support.in_process import run_main
from tests.support.places import ROOT
from tests.support.small_scans import make_scans
from tests.support.small_study import COMPONENTS, SIDE, make_study

N_REGIONS = SIDE * SIDE


@pytest.fixture(scope="module")
def parcels(tmp_path_factory):
    """A made-up image of as many regions as the small study has columns, with names beside it."""
    path = tmp_path_factory.mktemp("parcels") / "parcels.nii.gz"
    runpy.run_path(ROOT / "examples" / "made_up_parcels.py")["main"](N_REGIONS, path)
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process."""
    return lambda *arguments: run_main([str(one) for one in arguments], monkeypatch, capsys)


def copied(run, folder):
    return shutil.copytree(run, folder / "run")


def page_of(run):
    return group_page(run_findings(run))


def table_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Tables of regions


@pytest.fixture(scope="module")
def of_regions(tmp_path_factory, parcels):
    """A study of tables whose columns are the regions of an image, and its run."""
    folder = tmp_path_factory.mktemp("regions")
    study = make_study(folder)
    for path in (parcels, parcels.with_name("parcels.tsv")):
        shutil.copy(path, folder)
    features = msgspec.structs.replace(study.content.features, image_shape=None, atlas=parcels.name)
    write_study(folder / "brain.toml", msgspec.structs.replace(study.content, features=features))
    study = Study.load(folder / "brain.toml")
    run_in(study, folder, "run")
    return study, folder / "run"


def test_tables_of_regions_become_brains(of_regions, parcels):
    study, run = of_regions
    maps = nibabel.load(run / "maps.nii.gz")
    labels = np.asarray(nibabel.load(parcels).dataobj)
    np.testing.assert_array_equal(maps.affine, nibabel.load(parcels).affine)
    values = np.load(run / "maps.npy")
    for region in (1, 17, N_REGIONS):
        inside = np.asarray(maps.dataobj)[labels == region]
        np.testing.assert_allclose(inside, np.tile(values[:, region - 1], (len(inside), 1)), rtol=1e-6)
    peaks = table_of(run / "peaks.csv")
    for number in range(1, COMPONENTS + 1):
        first = next(row for row in peaks if row["component"] == str(number))
        # At its peak a map has the value 1, and the table calls the region by its place.
        region = int(np.abs(values[number - 1]).argmax()) + 1
        assert first["region"].startswith(f"parcel {region} (")
    page = page_of(run)
    assert 'id="volumes"' in page
    assert f"parcel {np.abs(values[0]).argmax() + 1} (" in page
    assert any(
        "regions of the atlas 'parcels.nii.gz'" in words for words in feature_words(study.content.features)
    )


def test_images_can_be_templates_for_such_tables(of_regions):
    from capedjica.data.templates import read_template

    study, run = of_regions
    given = read_template(run, study.features)
    np.testing.assert_allclose(given.template.maps, np.load(run / "maps.npy"), atol=1e-5)


def test_regions_and_columns_must_be_as_many(of_regions, tmp_path):
    study, _ = of_regions
    features = msgspec.structs.replace(study.content.features, n_features=N_REGIONS - 1)
    content = msgspec.structs.replace(study.content, features=features)
    with pytest.raises(InputError, match=r"n_features is 99, but the atlas has 100 regions; every column"):
        write_study(tmp_path / "study.toml", content, study.folder)


def test_a_study_without_places_gets_them_in_its_report(tables, parcels, tmp_path, command):
    run = copied(tables / "regions", tmp_path)
    assert 'id="volumes"' not in page_of(run)
    found = command("report", run, "--regions", parcels, "--labels", parcels)
    assert found.returncode == 0, found.stderr
    page = (run / "report.html").read_text()
    assert 'id="volumes"' in page
    assert "parcel" in page
    rows = table_of(run / "labels.csv")
    best = np.abs(np.load(run / "maps.npy")).argmax(axis=1) + 1
    assert [row["region"].split(" (")[0] for row in rows] == [f"parcel {number}" for number in best]
    assert {row["system"] for row in rows} <= {"left", "right", "midline", ""}


def test_new_studies_of_tables_take_an_image_of_their_regions(tables, parcels, tmp_path, command):
    sites = [flag for number in range(1, 5) for flag in ("--site", tables / "sites" / f"s{number}")]
    out = tmp_path / "new" / "study.toml"
    options = ["--title", "x", "--components", 3, "--timepoints", 60, "--epsilon", 5, *sites]
    found = command("study", "new", out, *options, "--regions", parcels)
    assert found.returncode == 0, found.stderr
    features = Study.load(out).content.features
    assert (features.kind, features.atlas, features.n_features) == ("columns", "parcels.nii.gz", N_REGIONS)
    assert (out.parent / "parcels.tsv").exists()
    other = ("study", "new", tmp_path / "other.toml", *options, "--regions", parcels)
    for more, message in (
        (["--features", "99"], "its tables have 100 columns"),
        (["--atlas", parcels], "--atlas is for images and --regions is for tables"),
        (["--image-shape", "10x10"], "columns that are regions"),
    ):
        refused = command(*other, *more)
        assert refused.returncode == 2
        assert message in refused.stderr
    assert not (tmp_path / "other.toml").exists()


# Tables of centres


@pytest.fixture(scope="module")
def centres(tmp_path_factory, parcels):
    """A table of the centres of the made-up regions, with their names."""
    image = nibabel.load(parcels)
    labels = np.asarray(image.dataobj)
    path = tmp_path_factory.mktemp("centres") / "centres.csv"
    rows = ["index,name,x,y,z"]
    for number in range(1, N_REGIONS + 1):
        x, y, z = np.argwhere(labels == number).mean(axis=0) @ image.affine[:3, :3].T + image.affine[:3, 3]
        rows.append(f"{number},place {number},{x:.1f},{y:.1f},{z:.1f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_centres_place_the_regions_of_a_study(tables, centres, tmp_path, command):
    sites = [flag for number in range(1, 5) for flag in ("--site", tables / "sites" / f"s{number}")]
    out = tmp_path / "new" / "study.toml"
    options = ["--title", "x", "--components", 3, "--timepoints", 60, "--epsilon", 5, *sites]
    made = command("study", "new", out, *options, "--regions", centres)
    assert made.returncode == 0, made.stderr
    assert "borders of regions are approximate" in " ".join(made.stdout.split())
    study = Study.load(out)
    assert (study.content.features.atlas, study.content.features.n_features) == ("centres.csv", N_REGIONS)
    words = " ".join(feature_words(study.content.features))
    assert "regions of the table of centres 'centres.csv', in its order" in words
    assert "borders of regions are approximate" in words
    run = tmp_path / "run"
    run_study(study, find_sites(study, tables / "sites"), run)
    values = np.load(run / "maps.npy")
    first = next(row for row in table_of(run / "peaks.csv") if row["component"] == "1")
    assert first["region"] == f"place {np.abs(values[0]).argmax() + 1}"
    page = page_of(run)
    assert 'id="volumes"' in page
    assert page.count("borders of regions are approximate") == 2  # what was done, and above the maps
    refused = command("study", "new", tmp_path / "scans.toml", *options, "--atlas", centres)
    assert refused.returncode == 2
    assert "tables of centres are only for columns" in " ".join(refused.stderr.split())


def test_centres_place_the_regions_of_a_report_and_of_derivatives(tables, centres, tmp_path, command):
    run = copied(tables / "regions", tmp_path)
    assert "approximate" not in page_of(run)
    found = command("report", run, "--regions", centres)
    assert found.returncode == 0, found.stderr
    page = (run / "report.html").read_text()
    assert 'id="volumes"' in page
    assert "borders of regions are approximate" in page
    exported = command("bids-export", run, tmp_path / "bids", "--regions", centres)
    assert exported.returncode == 0, exported.stderr
    about = json.loads((tmp_path / "bids" / "group" / "desc-ICA_components.json").read_text())
    assert "borders of regions are approximate" in about["Description"]
    short = centres.with_name("short.csv")
    short.write_text("\n".join(centres.read_text().splitlines()[:-1]) + "\n")
    refused = command("report", run, "--regions", short)
    assert refused.returncode == 2
    assert "n_features is 100, but the atlas has 99 regions" in " ".join(refused.stderr.split())


def test_images_of_regions_have_their_true_borders(of_regions):
    assert "approximate" not in page_of(of_regions[1])


# Labels of a run


def test_labels_of_a_run_are_files_and_part_of_the_page(brains, tmp_path, command):
    run = copied(brains / "brains", tmp_path)
    whole = set(zipfile.ZipFile(run / "results.zip").namelist())
    truth = nibabel.load(brains / "truth" / "maps.nii.gz")
    truth.to_filename(tmp_path / "truth.nii.gz")
    (tmp_path / "names.txt").write_text("A & B\nsecond\nthird\n")
    found = command(
        *("report", run, "--labels", tmp_path / "truth.nii.gz", "--label-names", tmp_path / "names.txt"),
        *("--csf", brains / "mask.nii.gz"),
    )
    assert found.returncode == 0, found.stderr
    rows = table_of(run / "labels.csv")
    assert len(rows) == 3
    assert {row["match 1"] for row in rows} <= {"A & B", "second", "third"}
    assert {row["ventricles"] for row in rows} == {"1"}
    again = page_of(run)
    assert again == (run / "report.html").read_text()
    named = [row["name"] for row in rows if row["name"]]
    assert named
    assert all(f": {name.replace('&', '&amp;')}" in again for name in named)
    assert str(tmp_path) not in again
    assert set(zipfile.ZipFile(run / "results.zip").namelist()) == whole | {"labels.csv", "labels.json"}
    run_findings(run)


def test_what_cannot_label_is_refused_before_anything_runs(of_regions, parcels, tmp_path, command):
    study, _ = of_regions
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = 1000
    far = nibabel.Nifti1Image(np.asarray(nibabel.load(parcels).dataobj), affine)
    far.to_filename(tmp_path / "far.nii.gz")
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    for options, message in (
        (["--labels", tmp_path / "far.nii.gz"], "may be in a different space"),
        (["--labels", parcels, "--label-names", tmp_path / "few.txt"], "but its table has 2 names"),
        (["--label-names", tmp_path / "few.txt"], "names of labels are given, but no labels"),
        (["--white-matter", parcels], "must contain 0 and 1, or probabilities"),
    ):
        refused = command("run", study.folder / "brain.toml", "--out", tmp_path / "out", *options)
        assert refused.returncode == 2
        assert message in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.stderr
        assert not (tmp_path / "out").exists()


def test_a_run_can_be_labelled_at_once(of_regions, parcels, command):
    study, run = of_regions
    found = command("run", study.folder / "brain.toml", "--labels", parcels)
    assert found.returncode == 0, found.stderr
    assert len(table_of(run / "labels.csv")) == COMPONENTS
    content = json.loads((run / "labels.json").read_text())
    assert content["source"] == "parcels.nii.gz"


# Atlases of z-values


@pytest.fixture(scope="module")
def z_values(tmp_path_factory):
    """A run of scans whose features are maps in z-values, from -20 to 50."""
    folder = tmp_path_factory.mktemp("z")
    study = make_scans(folder)
    mask = nibabel.load(folder / "mask.nii.gz")
    inside = np.asarray(mask.dataobj) > 0
    places = np.argwhere(inside)
    centres = places[:: len(places) // 11][:12]
    away = ((places[:, np.newaxis] - centres) ** 2).sum(axis=-1)
    values = np.zeros((*mask.shape, len(centres)), dtype=np.float32)
    values[inside] = 70 * np.exp(-away / 8) - 20
    nibabel.Nifti1Image(values, mask.affine).to_filename(folder / "z.nii.gz")
    features = msgspec.structs.replace(
        study.content.features,
        kind="atlas",
        atlas="z.nii.gz",
        mask=None,
        mask_sha256=None,
        n_features=len(centres),
    )
    write_study(folder / "z.toml", msgspec.structs.replace(study.content, features=features))
    run_in(Study.load(folder / "z.toml"), folder, "run")
    return folder / "run"


def test_maps_through_an_atlas_of_z_values_are_not_saturated(z_values):
    image = nibabel.load(z_values / "maps.nii.gz")
    heights = np.abs(np.asarray(image.dataobj)).max(axis=(0, 1, 2))
    np.testing.assert_allclose(heights, 1, rtol=1e-6)
    findings = run_findings(z_values)
    assert findings.maps is not None
    np.testing.assert_array_equal(np.asarray(findings.maps.image.dataobj), np.asarray(image.dataobj))
    cuts = np.array(axial(findings.maps.image))
    assert (np.abs(cuts) <= 1).all()
    assert (np.abs(cuts) < SHOWN_FROM).mean() > 0.3
    assert max(abs(float(row["value"])) for row in table_of(z_values / "peaks.csv")) <= 1
    assert re.search(r'"levels":100', page_of(z_values))
