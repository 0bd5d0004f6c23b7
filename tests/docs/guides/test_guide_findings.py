"""The guide to findings: its commands, in a shell, from BIDS folders to a page that names the truth."""

import csv
import json
import re
import shutil
import tomllib

import msgspec
import numpy as np
import pytest

from capedjica.data.scans import told_once
from capedjica.metrics import match_components
from capedjica.site.approval.admission import Scans
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study, to_content
from tests.docs.test_docs import ROOT, blocks
from tests.support.drafts import ICA, draft, plain
from tests.support.shell import run_script

GUIDE = ROOT / "docs" / "user-guide" / "findings.md"


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """Where the guide leads to from an empty folder, and what was said on the way."""
    folder = tmp_path_factory.mktemp("findings")
    return folder / "groups", run_script(
        "\n".join(block.values[0] for block in blocks("bash", [GUIDE])), folder
    )


def test_the_true_differences_are_found_and_no_others(walked):
    """Half of a difference of 1, of clipped outcomes, with a standard error of about 0.05; 5 of these."""
    folder, _ = walked
    mixing = np.load(folder / "truth" / "mixing.npy")
    matched = match_components(np.load(folder / "run" / "ica" / "maps.npy"), mixing.T).permutation
    effects = np.load(folder / "run" / "groups" / "effects.npy")[matched]
    errors = np.load(folder / "run" / "groups" / "standard_errors.npy")[matched]
    with (folder / "truth" / "group_differences.tsv").open() as file:
        truth = np.array([float(row["difference"]) for row in csv.DictReader(file, delimiter="\t")])
    assert truth.tolist() == [1.0, -1.0, 0.0]
    assert (np.abs(effects) <= np.abs(truth) / 2 + 5 * errors).all()
    assert effects[0] > 2 * errors[0]
    assert effects[1] < -2 * errors[1]
    assert abs(effects[2]) < 5 * errors[2]


def test_the_page_says_what_was_found_and_what_could_be_hidden(walked):
    folder, _ = walked
    page = (folder / "run" / "report.html").read_text()
    for words in (
        "significant at a false discovery rate of 5%",
        "Detectable effects",
        "For the methods:",
        "an effect is half the difference",
        "effect on amplitudes (patient against control)",
        'download="effects.csv"',
        'download="groups.tsv"',
    ):
        assert words in page, words


def test_the_run_leaves_the_table_with_commas_and_with_tabs(walked):
    folder, _ = walked
    by_commas, by_tabs = (
        list(csv.reader((folder / "run" / "groups" / name).read_text().splitlines(), delimiter=delimiter))
        for name, delimiter in (("effects.csv", ","), ("effects.tsv", "\t"))
    )
    assert by_tabs == by_commas
    assert len(by_tabs) == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda text: re.sub(r"sub-0002.*\n", "", text),
            ["no row of sub-0002; expected one row per participant; without it they count as zero"],
        ),
        (
            lambda text: text.replace("\t", ","),
            [
                "no column participant_id; expected one, and tabs between columns",
                "no columns participant_id among 'participant_id,group,age'; expected one column "
                "participant_id, tabs between columns, and a row per participant",
            ],
        ),
    ],
)
def test_what_is_wrong_with_participants_is_told_once(walked, tmp_path, change, told):
    folder, _ = walked
    site = shutil.copytree(folder / "sites" / "site-1", tmp_path / "site-1")
    for name in ("ledger.sqlite", "ledger.head", "approved"):
        assert not (site / name).exists() or (site / name).rename(tmp_path / name)
    table = site / "data" / "participants.tsv"
    table.write_text(change(table.read_text()))
    found = Scans(SiteHome.load(site), Study.load(folder)).problems
    assert told_once((one.alike, str(one)) for one in found) == [f"{table}: {words}" for words in told]


def test_the_plan_says_beforehand_what_can_be_found(walked):
    _, said = walked
    assert "Detectable differences" in said
    assert re.search(r"groups: group control and patient\s+3\s+\d\.\d{3}", said)
    assert '"Detectable differences"' in GUIDE.read_text("utf-8")


def test_one_budget_pays_for_networks_and_comparison(walked):
    folder, _ = walked
    cost = json.loads((folder / "run" / "privacy.json").read_text())
    labels = {release["label"].split(":")[0] for release in cost["releases"]}
    assert labels == {"ica", "groups"}
    assert cost["spent_epsilon"] <= 40.0


def test_the_table_of_the_guide_is_that_of_the_study(walked):
    folder, _ = walked
    (snippet,) = (tomllib.loads(block.values[0]) for block in blocks("toml", [GUIDE]))
    ica = msgspec.structs.replace(ICA, name="ica")
    frame = plain(msgspec.structs.replace(draft(), analyses=(ica,)))
    content = to_content(frame | {"analysis": [frame["analysis"][0], *snippet["analysis"]]})
    assert content.analyses[1] == Study.load(folder).content.analyses[1]
