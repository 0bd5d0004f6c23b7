"""The guide from scans to maps: its commands, in a shell, and what comes out of them."""

import csv
import json
import re
import runpy
import shutil

import nibabel
import numpy as np
import pytest

from capedjica.data import SyntheticModel
from capedjica.metrics import match_components
from tests.docs.test_docs import ROOT, blocks
from tests.support.shell import run_script

GUIDE = ROOT / "docs" / "user-guide" / "scans.md"
GETTING_STARTED = ROOT / "docs" / "user-guide" / "getting-started.md"
CHANGED = """
sed '{edits}; s/^title = .*/title = "{name}"/' {study}/study.toml > {study}/{name}.toml
capedjica run {study}/{name}.toml --out {study}/run-{name}
"""
NO_PRIVACY = '/^epsilon = /d; s/^mechanism = .*/mechanism = "none"/'


def run_changed(study, name, edits):
    """Commands that change a study and run it."""
    return CHANGED.format(study=study, name=name, edits=edits)


def script(language):
    return "\n".join(parameter.values[0] for parameter in blocks(language, [GUIDE]))


def script_of(heading):
    """Return the commands of a section of the page for beginners."""
    text = GETTING_STARTED.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))


def correlations(run, truth):
    """Correlations of a run's maps with the true ones, matched."""
    return match_components(np.load(run / "maps.npy"), np.load(truth / "mixing.npy").T).correlations


# People and epsilon: of the guide, and a third of the people with three times the mu, so no more noise.
AS_WRITTEN, SMALLER = (72, 20), (24, 100)


@pytest.fixture(scope="module", params=[SMALLER, pytest.param(AS_WRITTEN, marks=pytest.mark.full)], ids=str)
def size(request):
    return request.param


@pytest.fixture(scope="module")
def walked(tmp_path_factory, size):
    """Where the guide leads to from an empty folder, and what was said on the way."""
    commands = script("bash")
    for option, written, value in zip(("--subjects", "--epsilon"), AS_WRITTEN, size, strict=True):
        assert commands.count(f" {option} {written} ") == 1
        commands = commands.replace(f" {option} {written} ", f" {option} {value} ")
    folder = tmp_path_factory.mktemp("guide")
    return folder, run_script(commands, folder)


def test_group_maps_match_the_truth(walked, size):
    folder, said = walked
    truth = folder / "brains" / "truth"
    assert correlations(folder / "pilot" / "run-none", truth).min() > 0.9
    assert f"Each participant (all of their data) is protected with epsilon {size[1]}" in said


def test_the_maps_are_worth_looking_at(walked, size):
    """Of 72 people at epsilon 20 a stability of 0.95 is usual: none is poor, which is below 0.7."""
    folder, said = walked
    assert "poor" not in json.loads((folder / "pilot" / "run" / "reliability.json").read_text())["grade"]
    assert f"3 networks from {size[0]} participants" in said


def test_maps_are_images_where_the_truth_is(walked):
    folder, _ = walked
    maps, true = (
        nibabel.load(folder / path) for path in ("pilot/run-none/maps.nii.gz", "brains/truth/maps.nii.gz")
    )
    assert maps.shape == true.shape
    np.testing.assert_array_equal(maps.affine, true.affine)
    inside = nibabel.load(folder / "brains" / "mask.nii.gz").get_fdata() > 0
    found = match_components(maps.get_fdata()[inside].T, true.get_fdata()[inside].T)
    assert found.correlations.min() > 0.9
    with (folder / "pilot" / "run-none" / "peaks.csv").open() as file:
        peaks = {row["component"] for row in csv.DictReader(file)}
    assert len(peaks) == 3


def test_what_is_about_single_people_stays_at_home(walked):
    folder, said = walked
    home = folder / "brains" / "sites" / "site-1"
    (results,) = (home / "results").iterdir()
    assert (home / "results").stat().st_mode & 0o077 == 0
    people = {path.name for path in (home / "data").glob("sub-*")}
    assert people <= {path.name for path in results.iterdir()}
    assert not list((home / "cache").glob("*.npy"))
    assert "they must not leave this site" in said
    assert not any("sub-" in str(path) for path in (folder / "pilot").rglob("*"))


def test_plain_images_lead_to_the_same_maps(tmp_path):
    simulate = (
        "capedjica simulate plain --format nifti --sites 3 --subjects 18 --components 3 --voxel-size 12"
    )
    run_script(simulate + run_changed("plain", "none", NO_PRIVACY), tmp_path)
    assert correlations(tmp_path / "plain" / "run-none", tmp_path / "plain" / "truth").min() > 0.9


# fmt: off
ABIDE_SITES = [
    "CALTECH", "CMU", "KKI", "LEUVEN_1", "LEUVEN_2", "MAX_MUN", "NYU", "OHSU", "OLIN", "PITT", "SBL", "SDSU",
    "STANFORD", "TRINITY", "UCLA_1", "UCLA_2", "UM_1", "UM_2", "USM", "YALE",
]
# fmt: on


def make_abide(folder, per_site, length, sites=ABIDE_SITES):
    """Lay out region series of nobody real as nilearn leaves ABIDE; one person's scan is no good."""
    rng = np.random.default_rng(0)
    n_people = per_site * len(sites)
    seeds = np.random.SeedSequence(1).spawn(-(-n_people // 32))
    model = SyntheticModel(rng.standard_normal((20, 200)), np.full(n_people, length), 0.5, seeds)
    people = [(f"{site.title()}_{51000 + number:07}", site) for number, site in enumerate(sites * per_site)]
    series = {name: scan for (name, _), scan in zip(people, model.subjects(), strict=True)}
    series[people[0][0]][5, 7] = np.nan
    np.savez(folder / "series.npz", **series)
    lines = ["participant_id\tsite", *("\t".join(person) for person in people)]
    (folder / "people.tsv").write_text("\n".join(lines) + "\n")
    lay_out = runpy.run_path(str(ROOT / "examples" / "arrays_to_abide.py"))["main"]
    lay_out(folder / "series.npz", folder / "people.tsv", folder / "nilearn_data")
    return people


def test_twenty_sites_of_abide(tmp_path):
    people = make_abide(tmp_path, per_site=3, length=60)
    shutil.copy(ROOT / "examples" / "cc200_centres.csv", tmp_path)
    said = run_script(script_of("Arrays in one archive").replace("abide_cc200", "nilearn_data"), tmp_path)
    assert said.count("$ capedjica") <= 6
    assert said.count("excluded: ") == 1
    assert people[0][0] in next(line for line in said.splitlines() if "excluded: " in line)
    # So few people of mere noise have no networks to be found, and the first thing said is that.
    words = " ".join(said.split())
    assert re.search(r"20 maps, \w+ of them reliable, from 59 participants at 20 sites", words)
    assert words.index("Not reliable: ") < words.index("20 maps, ")
    cost = json.loads((tmp_path / "abide" / "run" / "privacy.json").read_text())
    assert cost["private"]
    assert cost["epsilon"] == 10
    maps = np.load(tmp_path / "abide" / "run" / "maps.npy")
    assert maps.shape == (20, 200)
    assert np.isfinite(maps).all()
    page = (tmp_path / "abide" / "run" / "report.html").read_text()
    assert 'id="volumes"' in page
    assert "borders of regions are approximate" in page


@pytest.mark.full
def test_a_study_of_the_usual_size(tmp_path, capsys):
    """From `simulate --format bids` to group maps: without privacy, and at epsilon 10, 5 and 2."""
    runs = [run_changed("big", e, f"s/^epsilon = .*/epsilon = {e}.0/") for e in ("10", "5", "2")]
    runs.append(run_changed("big", "none", NO_PRIVACY))
    run_script("capedjica simulate big --format bids" + "".join(runs), tmp_path)
    found = {
        name: correlations(tmp_path / "big" / f"run-{name}", tmp_path / "big" / "truth")
        for name in ("none", "10", "5", "2")
    }
    with capsys.disabled():
        for name, values in found.items():
            print(
                f"\nepsilon {name}: maps match by {values.mean():.3f}, the worst by {values.min():.3f}",
                end="",
            )
    assert found["none"].min() > 0.95
    assert found["10"].mean() > 0.9
    assert found["none"].mean() > found["10"].mean() > found["5"].mean() > found["2"].mean()
