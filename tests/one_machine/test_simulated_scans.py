"""Simulated studies of images: what a site holds, what the study says of it, the same for the same seed."""

import os

import nibabel
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

from capedjica.cli import app
from capedjica.errors import InputError
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study

SMALL = {"subjects": (3, 2, 2), "n_components": 3, "n_timepoints": (45, 60), "voxel_size": 12.0, "noise": 0.5}
FORMATS = ("nifti", "bids")


def made(out, file_format, **changes):
    simulate(Simulation(file_format=file_format, **{**SMALL, **changes}), out)
    return out


@pytest.fixture(scope="module", params=FORMATS)
def study(request, tmp_path_factory):
    return made(tmp_path_factory.mktemp(request.param) / request.param, request.param)


def images(study):
    return sorted(study.glob("sites/*/data/**/*_bold.nii.gz"))


def contents(out):
    """What follows from the seed, by name: the scans, the mask and the truth."""
    files = [*out.glob("sites/*/data/**/*"), *out.glob("truth/*"), out / "mask.nii.gz"]
    return {str(file.relative_to(out)): file.read_bytes() for file in files if file.is_file()}


def test_what_is_in_a_study(study):
    assert sorted(path.name for path in study.iterdir()) == ["mask.nii.gz", "sites", "study.toml", "truth"]
    names = sorted(path.name for path in (study / "truth").iterdir())
    assert names == ["README.txt", "maps.nii.gz", "mixing.npy"]
    people = {path.name.split("_")[0] for path in images(study)}
    assert people == {f"sub-{number:04}" for number in range(1, 8)}
    assert len(images(study)) > 7  # somebody has two runs
    tables = list(study.glob("sites/*/data/**/*_desc-confounds_timeseries.tsv"))
    assert len(tables) == (len(images(study)) if study.name == "bids" else 0)


def test_the_study_names_what_every_site_does(study):
    given = Study.load(study)
    table, mask = given.content.features, nibabel.load(study / "mask.nii.gz")
    assert table.kind == "voxels"
    assert table.mask == "mask.nii.gz"
    assert table.detrend
    assert bool(table.confounds) == (study.name == "bids")
    assert (table.high_pass is None) == (study.name == "bids")
    assert given.content.features.n_features == np.count_nonzero(mask.get_fdata())
    assert 45 <= given.content.features.scan_length <= 60
    for site in given.content.sites:
        home = SiteHome.load(study / "sites" / site.name)
        assert home.settings.data.kind == study.name
        assert home.card().card == site.card


def test_sites_differ_in_length_and_repetition_time(study):
    kinds = []
    for site in sorted((study / "sites").iterdir()):
        headers = [nibabel.load(path).header for path in site.glob("data/**/*_bold.nii.gz")]
        (kind,) = {(header.get_data_shape()[3], float(header.get_zooms()[3])) for header in headers}
        kinds.append(kind)
    assert len({length for length, _ in kinds}) > 1
    assert [time for _, time in kinds] == [2.0, 1.5, 2.5]


def test_the_truth_is_in_the_order_of_the_voxels(study):
    mask = nibabel.load(study / "mask.nii.gz").get_fdata() > 0
    maps = nibabel.load(study / "truth" / "maps.nii.gz")
    mixing = np.load(study / "truth" / "mixing.npy")
    assert_allclose(maps.get_fdata()[mask], mixing, rtol=1e-6, atol=1e-9)
    assert not maps.get_fdata()[~mask].any()
    assert_array_equal(maps.affine, nibabel.load(images(study)[0]).affine)
    text = (study / "truth" / "README.txt").read_text()
    assert "No analysis reads it" in text
    assert "maps.nii.gz" in text


def test_the_seed_decides_scans_and_truth_to_the_last_bit(study, tmp_path):
    again = contents(made(tmp_path / "again", study.name))
    other = contents(made(tmp_path / "other", study.name, seed=1))
    assert contents(study) == again
    differing = {name for name, content in other.items() if again.get(name) != content}
    assert {name for name in differing if name.endswith("_bold.nii.gz")} == {
        name for name in other if name.endswith("_bold.nii.gz")
    }
    assert "truth/mixing.npy" in differing


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_study_takes_no_more_than_was_checked_for(tmp_path, file_format):
    simulation = Simulation(file_format=file_format, **SMALL)
    simulate(simulation, tmp_path / "out")
    os.sync()  # some file systems count blocks only then
    taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert 0.2 * simulation.n_bytes < taken <= simulation.n_bytes


def test_progress_is_that_of_people(tmp_path):
    done = []
    simulate(Simulation(file_format="nifti", **SMALL), tmp_path / "out", lambda: done.append(1))
    assert len(done) == 7


def invoke(out, *arguments):
    return CliRunner().invoke(app, ["simulate", str(out), "--subjects", "3,2,2", *arguments])


def test_the_command_says_what_it_made(tmp_path):
    small = ["--components", "3", "--timepoints", "45-60", "--voxel-size", "12", "--noise", "0.5"]
    result = invoke(tmp_path / "out", "--format", "bids", *small)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "3 networks, scans of 45 to 60 time points and 16 x 19 x 16 voxels of 12 mm, 1,102 of them" in said
    assert contents(tmp_path / "out") == contents(made(tmp_path / "other", "bids"))


def test_usual_images_are_noisy_and_of_different_lengths():
    usual = Simulation.usual("bids", subjects=(4, 4), image_side=None, noise=None)
    assert (usual.noise, usual.n_timepoints, usual.epsilon, usual.n_components) == (1.0, (120, 160), 10.0, 6)
    assert Simulation.usual("bids", subjects=(4, 4), noise=0.3).noise == 0.3
    assert Simulation.usual("npy", subjects=(4, 4), noise=None) == Simulation(subjects=(4, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "bids", "--image-side", "20"], "image_side does not apply to format bids"),
        (["--format", "csv", "--voxel-size", "8"], "voxel_size does not apply to format csv"),
        (["--format", "bids", "--voxel-size", "1"], "voxel_size must be between 2 and 12 mm, got 1"),
        (
            ["--format", "nifti", "--timepoints", "40"],
            "at least the number of components, 6 plus 40, with the",
        ),
        (["--format", "nifti", "--noise", "inf"], "noise must be finite, got inf"),
        (["--format", "nifti", "--subjects", "9000000000,1"], "may need"),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(tmp_path, arguments, message):
    result = invoke(tmp_path / "out", *arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert os.listdir(tmp_path) == []
