"""A group comparison adjusted for motion, with public groups, from BIDS folders to effects."""

import csv
import json
from collections import Counter

import numpy as np

from tests.support.shell import run_script

SIMULATE = (
    "capedjica simulate ../groups --format bids --sites 3 --subjects 24 --components 2 --timepoints 50 "
    "--voxel-size 12 --epsilon 40 --group-difference 1"
)


def group_sizes(site):
    with (site / "data" / "participants.tsv").open() as file:
        groups = Counter(row["group"] for row in csv.DictReader(file, delimiter="\t"))
    return f'{{ site = "{site.name}", sizes = [{groups["control"]}, {groups["patient"]}] }}'


def say(command, tmp_path, number):
    folder = tmp_path / str(number)
    folder.mkdir()
    return run_script(command, folder)


def test_motion_and_public_groups_from_bids_folders(tmp_path):
    say(SIMULATE, tmp_path, 1)
    study = tmp_path / "groups" / "study.toml"
    sizes = ", ".join(group_sizes(site) for site in sorted((tmp_path / "groups" / "sites").iterdir()))
    added = f'contrast = "group"\nmotion = true\nmode = "public-groups"\ngroup_sizes = [{sizes}]\n'
    study.write_text(study.read_text().replace('contrast = "group"\n', added))
    say("capedjica run ../groups", tmp_path, 2)
    run = tmp_path / "groups" / "run"
    cost = json.loads((run / "privacy.json").read_text())
    labels = [release["label"] for release in cost["releases"]]
    assert labels[-2:] == ["groups: covariates by group", "groups: effects of the contrast"]
    assert any("not protected" in words for words in cost["not_covered"])
    assert cost["spent_epsilon"] <= 40.0
    assert np.isfinite(np.load(run / "groups" / "effects.npy")).all()
    # Sizes that contradict the number enrolled are refused before anything is spent.
    wrong = study.read_text().replace(sizes, sizes.replace("sizes = [", "sizes = [1", 1))
    study.write_text(wrong)
    said = say("if capedjica plan ../groups; then exit 1; fi", tmp_path, 3)
    assert "group_sizes" in said
