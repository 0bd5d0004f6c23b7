"""Simulated studies on disk: what is in them, the same for the same seed, whole or not there at all."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

from capedjica.cli import app
from capedjica.data import FeatureTable, People, find_people, make_synthetic, open_features
from capedjica.errors import InputError
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.cli.test_cli import run

SMALL = {"subjects": (3, 5, 4), "n_components": 4, "n_timepoints": (30, 40), "image_side": 10}
LARGE = ["--subjects", "20000", "--components", "4", "--timepoints", "20", "--image-side", "12"]
ARGUMENTS = ["--subjects", "3,5,4", "--components", "4", "--timepoints", "30-40", "--image-side", "10"]


def made(out, **changes):
    simulate(Simulation(**{**SMALL, **changes}), out)
    return out


def people(folder):
    return People(find_people("files", folder).people, open_features(FeatureTable(), folder, 100))


def scans(out):
    return [scan for site in sorted((out / "sites").iterdir()) for scan in people(site / "data")]


def contents(out):
    """What follows from the seed, by name: the scans and the truth."""
    files = [*out.glob("sites/*/data/*"), *out.glob("truth/*")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made(tmp_path_factory.mktemp("studies") / "trial")


def test_what_is_in_a_study(study):
    assert sorted(path.name for path in study.iterdir()) == ["sites", "study.toml", "truth"]
    assert sorted(path.name for path in (study / "truth").iterdir()) == [
        "README.txt",
        "maps.npy",
        "mixing.npy",
    ]
    assert sorted(path.name for path in (study / "sites").iterdir()) == ["site-1", "site-2", "site-3"]
    for site in (study / "sites").iterdir():
        files = {"data", "identity.pem", "site.toml", f"{site.name}.card"}
        assert {path.name for path in site.iterdir()} == files
    names = sorted(path.name for path in (study / "sites").glob("*/data/*"))
    assert names == [f"sub-{number:04}.npy" for number in range(1, 13)]
    assert list(study.parent.glob(".*")) == []


def test_the_study_is_one_that_its_sites_can_run(study):
    content = Study.load(study / "study.toml").content
    assert content.networks.n_components == 4
    assert content.features.n_features == 100
    assert content.features.image_shape == (10, 10)
    assert content.features.scan_length == 35
    assert content.privacy.epsilon == 3.0
    assert [site.subjects for site in content.sites] == [3, 5, 4]
    for table in content.sites:
        home = SiteHome.load(study / "sites" / table.name)
        assert home.card().card == table.card
        assert home.settings.policy.auto_approve
        assert home.settings.policy.allow_unprotected
        assert home.policy.total.epsilon == home.policy.per_study.epsilon == 1000
        assert home.data_path == study / "sites" / table.name / "data"
        found = people(home.data_path)
        assert len(found) == table.subjects
        assert found.check(4) == []


def test_lengths_vary_between_the_bounds(study):
    lengths = {len(scan) for scan in scans(study)}
    assert lengths <= set(range(30, 41))
    assert len(lengths) > 1


def outside(scan, mixing):
    """How much of a scan is outside the span of the maps, relative to all of it."""
    basis = np.linalg.qr(mixing)[0]
    return np.linalg.norm(scan - scan @ basis @ basis.T) / np.linalg.norm(scan)


def test_the_truth_is_that_of_the_scans(study):
    mixing, maps = (np.load(study / "truth" / f"{name}.npy") for name in ("mixing", "maps"))
    assert_array_equal(mixing, maps.reshape(4, -1).T)
    others = np.random.default_rng(0).permutation(mixing)
    for scan in scans(study):
        assert outside(scan, mixing) < 1e-6
        assert outside(scan, others) > 0.1
        sources = scan.astype(np.float64) @ np.linalg.pinv(mixing).T
        assert_allclose(sources.mean(axis=0), 0, atol=1e-4)
        assert_allclose(sources.std(axis=0), 1, rtol=1e-4)
    text = (study / "truth" / "README.txt").read_text()
    assert "No analysis reads it" in text
    assert "seed 0" in text
    assert "noise" not in text


def has_noise_scale(out, noise):
    """Whether the scans have noise of this scale: 40,000 values outside the maps, standard error 0.35%."""
    mixing = np.load(out / "truth" / "mixing.npy")
    basis = np.linalg.qr(mixing)[0]
    residual = np.vstack([scan - scan @ basis @ basis.T for scan in scans(out)])
    scale = np.sqrt(np.sum(residual**2) / (len(residual) * (100 - 4)))
    return abs(scale / (noise * np.sqrt(np.sum(mixing**2) / 100)) - 1) < 0.02  # false alarm 1e-8


def test_noise_has_the_stated_scale_and_no_other(tmp_path):
    noisy = made(tmp_path / "noisy", noise=0.5)
    assert has_noise_scale(noisy, 0.5)
    assert not has_noise_scale(noisy, 0.5 / 0.7)
    assert not has_noise_scale(noisy, 0.5 / 1.3)
    assert "plus noise of standard deviation" in (noisy / "truth" / "README.txt").read_text()


def test_the_same_as_in_memory(tmp_path):
    n_subjects, sizes = 40, (11, 29)  # more than one batch, and sites that do not end with one
    out = made(tmp_path / "a", subjects=sizes, noise=0.2, seed=7)
    expected = make_synthetic(2, n_subjects, 4, (30, 40), 10, 7, noise=0.2, site_sizes=sizes)
    assert_array_equal(np.load(out / "truth" / "mixing.npy"), expected.mixing)
    for scan, subject in zip(scans(out), [*expected.sites[0], *expected.sites[1]], strict=True):
        assert_array_equal(scan, subject)


@pytest.mark.parametrize("file_format", ["npy", "csv"])
def test_the_seed_decides_scans_and_truth_to_the_last_bit_but_no_key(tmp_path, file_format):
    first, again = (made(tmp_path / name, seed=3, file_format=file_format) for name in "ab")
    other = made(tmp_path / "c", seed=4, file_format=file_format)
    assert len(contents(first)) == 15
    assert contents(first) == contents(again)
    assert contents(first).keys() == contents(other).keys()
    same = [name for name, content in contents(other).items() if content == contents(first)[name]]
    assert same == []
    keys = {(out / "sites" / "site-1" / "identity.pem").read_bytes() for out in (first, again, other)}
    assert len(keys) == 3


def test_npy_and_csv_hold_the_same_numbers(study, tmp_path):
    text = made(tmp_path / "text", file_format="csv")
    assert len(list(text.glob("sites/*/data/*.csv"))) == 12
    for one, other in zip(scans(study), scans(text), strict=True):
        assert_array_equal(one, other.astype(np.float32))


@pytest.mark.parametrize("file_format", ["npy", "csv"])
def test_a_study_takes_no_more_than_was_checked_for(tmp_path, file_format):
    simulation = Simulation(
        subjects=(20, 20), n_components=4, n_timepoints=(100, 100), image_side=20, file_format=file_format
    )
    simulate(simulation, tmp_path / "out")
    os.sync()  # some file systems count blocks only then
    taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert 0.5 * simulation.n_bytes < taken <= simulation.n_bytes


def test_memory_is_that_of_one_scan_and_not_of_the_study(tmp_path):
    simulation = Simulation(subjects=(60, 60), n_components=4, n_timepoints=(100, 100), image_side=32)
    simulate(Simulation(**SMALL), tmp_path / "first")  # compiles and loads what is needed
    tracemalloc.start()
    simulate(simulation, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.npy"))
    assert size > 49e6
    assert peak < size / 12


# The command ------------------------------------------------------------------------------------------------


def test_simulate_says_what_it_made_and_what_is_next(tmp_path):
    out = tmp_path / "my trial"
    result = run("simulate", str(out), *ARGUMENTS)
    assert result.returncode == 0, result.stderr
    assert "12 simulated participants at 3 sites (3, 5, 4), 4 networks, scans of 30 to 40 " in result.stdout
    assert f"The ground truth is in {out / 'truth'}" in result.stdout
    for command in ("plan", "run"):
        assert f"  capedjica {command} '{out / 'study.toml'}'\n" in result.stdout
    assert contents(out) == contents(made(tmp_path / "other"))


def test_an_empty_folder_may_be_there_already(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    made(tmp_path / "out")
    assert (tmp_path / "real" / "study.toml").exists()
    made(tmp_path / "new" / "folders" / "out")
    assert (tmp_path / "new" / "folders" / "out" / "study.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sites", "1"], "sites must be a whole number of at least 2, got 1"),
        (["--sites", "4"], "subjects must be one number or one per site (4), got 3 numbers"),
        (["--subjects", "3"], "subjects must be a whole number of at least 4, got 3"),
        (["--subjects", "5,0"], "subjects of site 2 must be a whole number of at least 1, got 0"),
        (["--subjects", "5;5"], "subjects must be whole numbers separated by ',', got '5;5'"),
        (["--components", "1"], "components must be a whole number of at least 2, got 1"),
        (["--components", "26"], "n_components must be at most 15, the size of the basis; got 26"),
        (
            ["--timepoints", "3"],
            "must be at least the number of components, 4, with the shortest first",
        ),
        (["--timepoints", "40-30"], "the shortest first; got 40-30"),
        (["--timepoints", "10-20-30"], "timepoints must be one number or a range such as 150-250"),
        (["--timepoints", "long"], "timepoints must be whole numbers separated by '-', got 'long'"),
        (["--image-side", "0"], "image_side must be a whole number of at least 1, got 0"),
        (["--image-side", "5000"], "features.image_shape must have at most"),
        (["--noise", "-0.5"], "noise must be at least 0, got -0.5"),
        (["--noise", "inf"], "noise must be finite, got inf"),
        (["--epsilon", "0"], "epsilon must be a finite number above 0, got 0.0"),
        (["--epsilon", "1001"], "epsilon must be at most 1000 (the budget of simulated sites), got 1001"),
        (["--delta", "1"], "delta must lie strictly between 0 and 1, got 1.0"),
        (["--format", "nii"], "format must be npy, csv, nifti or bids, got 'nii'"),
        (["--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
        (["--subjects", "900000000000,5,5"], "22 PB, but "),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(tmp_path, monkeypatch, arguments, message):
    disk = SimpleNamespace(free=10**15)  # a petabyte, wherever the tests run
    monkeypatch.setattr("capedjica.one_machine.simulation.shutil.disk_usage", lambda _: disk)
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "out"), *ARGUMENTS, *arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_too_large_for_the_disk_says_how_large(tmp_path):
    huge = ["--subjects", "900000000,5,5"]
    result = run("simulate", str(tmp_path / "out"), *ARGUMENTS, *huge)
    assert result.returncode == 2
    assert result.stdout == ""
    said = r"capedjica: \S+out may need 21\.8 TB, but only [0-9.]+ (MB|GB|TB) is free on its disk; .*\n"
    assert re.fullmatch(said, result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(study, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="trial is not empty; give a folder that does not exist yet"):
        made(study)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file exists and is not a folder"):
        made(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        made(tmp_path / "file" / "out")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="is the current folder"):
        made(tmp_path / "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "here"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    result = run("simulate", str(tmp_path / "out"), *ARGUMENTS, preexec_fn=small_files_only)
    assert result.returncode == 2
    assert f"capedjica: {tmp_path / 'out'} cannot be written: " in result.stderr
    assert "None" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "capedjica", "simulate", str(tmp_path / "out"), *LARGE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        # A run in the background ignores the signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(tmp_path.glob(".out.*.part/sites/site-1/data/sub-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
