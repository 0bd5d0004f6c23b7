"""Files of before: a study.toml of schema 1, its sites with their ledgers, a complete and an interrupted run.

All of them were written by version 0.1.0.dev1 (``schema-1.tar.gz``: ``capedjica simulate``, one ``capedjica
run``, and one that was killed after its third mean).
"""

import json
import math
import re
import tarfile

import msgspec
import numpy as np
import pytest

from capedjica.coordinator.run.comparison import compare_runs
from capedjica.coordinator.run.report import run_report
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.results.individual import write_local_results
from capedjica.study.study_file import Study, read_study_file, write_study
from tests.support.drafts import ANALYSES, draft
from tests.support.places import ROOT

HASHES = {
    "study.toml": (
        "a018aba0035061eac51e547c6de386d2330b4d08816b55ca5a328aad87931e93",
        "af682aa773a3b1dadad7bd2d0beb591c9ebd74c781464e7188839504b2580b05",
    ),
    "interrupted.toml": (
        "a6e0438f62b6f1d62a00f3ab5e298fd64c66e7306e557b76a1cafa8c755d5880",
        "9d0dbf6ee4109b59a48868e8709a1dfebf43cac4a19422b5911a3f7be8e3de11",
    ),
}


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(ROOT / "tests" / "vectors" / "schema-1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("name", HASHES)
def test_a_study_keeps_its_hash_and_its_contract(folder, name):
    study = Study.load(folder / name)
    assert (study.hash.hex(), study.contract.hash.hex()) == HASHES[name]
    assert study.content.schema == 1
    assert study.content.networks.n_components == 2
    assert study.content.features.image_shape == (4, 4)


def test_it_is_written_as_it_was_agreed_on(folder):
    study = Study.load(folder)
    write_study(folder / "copy.toml", study.content)
    assert Study.load(folder / "copy.toml").hash == study.hash
    assert "schema = 1" in (folder / "copy.toml").read_text()


def test_the_same_study_in_schema_2_is_another_with_the_same_stages(folder):
    text = (folder / "study.toml").read_text()
    first = Study.load(folder)
    moved = ("n_features", "scan_length", "image_shape")
    lines = text.replace("schema = 1", "schema = 2").splitlines()
    scans = [line for line in lines if line.startswith(moved)]
    kept = [line.replace("mask =", "masking =") for line in lines if line not in scans]
    place = kept.index("[features]") + 1
    (folder / "second.toml").write_text("\n".join([*kept[:place], *scans, *kept[place:]]))
    second = Study.load(folder / "second.toml")
    assert second.content.schema == 2
    assert second.hash != first.hash
    assert second.contract.stages == first.contract.stages


def test_a_key_in_the_wrong_place_is_named(folder):
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace("schema = 1", "schema = 2"))
    with pytest.raises(InputError, match=r"analysis\.n_features is not a known key"):
        read_study_file(folder / "study.toml")


def test_a_file_that_does_not_say_its_schema_is_known_by_its_keys(folder):
    text = (folder / "study.toml").read_text()
    (folder / "silent.toml").write_text(text.replace("schema = 1\n", ""))
    assert Study.load(folder / "silent.toml").hash == Study.load(folder).hash


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("n_components = 2", 'n_components = 2\nkind = "pca"', "analysis.kind is not a key of schema 1"),
        ("n_components = 2", 'n_components = 2\nname = "x"', "analysis.name is not a key of schema 1"),
        ("n_components = 2", "n_components = 2\nshare = 1.0", "analysis.share is not a key of schema 1"),
        ("n_components = 2", "n_component = 2", "did you mean n_components"),
        ("[analysis]", "[[analysis]]", "several require schema = 2"),
    ],
)
def test_what_schema_1_did_not_have_is_refused(folder, before, after, message):
    text = (folder / "study.toml").read_text()
    assert before in text
    (folder / "study.toml").write_text(text.replace(before, after))
    with pytest.raises(InputError) as error:
        Study.load(folder)
    assert message in str(error.value)


def test_several_analyses_do_not_fit_into_schema_1():
    content = msgspec.structs.replace(draft(), features=ANALYSES["pca"][0], analyses=ANALYSES["pca"][1])
    assert Study(content).problems() == []
    assert "require schema = 2" in Study(msgspec.structs.replace(content, schema=1)).problems()[0]


def test_ledgers_still_count(folder):
    study, interrupted = Study.load(folder), Study.load(folder / "interrupted.toml")
    told = json.loads((folder / "run" / "privacy.json").read_text())
    for home in find_sites(study, folder / "sites"):
        with home.open_ledger() as ledger:
            ledger.verify_chain()
            studies = ledger.totals().studies
        spent = studies[study.contract.hash]
        assert spent.mu2 == pytest.approx(told["sites"][home.settings.name]["spent_mu_squared"], rel=1e-12)
        assert studies[interrupted.contract.hash].n_releases >= 3


def test_a_complete_run_is_complete_reported_and_compared(folder):
    study, before = Study.load(folder), (folder / "run" / "maps.npy").read_bytes()
    state = run_study(study, find_sites(study, folder / "sites"), folder / "run")
    assert state.complete
    assert state.resumed == 0
    assert (folder / "run" / "maps.npy").read_bytes() == before
    page = run_report(folder / "run").html
    assert re.search(r"2 (networks|maps, \w+ of them reliable,) of \d+ participants", page)
    assert 'id="convergence"' in page
    (compared,) = compare_runs([folder / "run"])
    assert compared.method == "subject"
    home = find_sites(study, folder / "sites")[0]
    assert write_local_results(folder / "run", home).written == 3


def test_an_interrupted_run_goes_on_and_pays_the_rest_only(folder):
    study = Study.load(folder / "interrupted.toml")
    homes = find_sites(study, folder / "sites")
    run_study(study, homes, folder / "interrupted")
    state = RunFolder(folder / "interrupted").state()
    assert (state.complete, state.resumed) == (True, 1)
    planned = sum(stage.count for stage in study.contract.stages)
    for home in homes:
        with home.open_ledger() as ledger:
            spent = ledger.totals().studies[study.contract.hash]
        assert spent.n_releases <= planned + 1
        assert spent.mu2 <= study.contract.cap(home.settings.name).mu2
    assert np.isfinite(np.load(folder / "interrupted" / "maps.npy")).all()
    assert math.isfinite(json.loads((folder / "interrupted" / "privacy.json").read_text())["epsilon"])
