"""A study with a template: what it must say, whose file it is, and what a run of it leaves."""

import json
import zipfile

import msgspec
import numpy as np
import pytest

from capedjica.algorithms.ica.template_method import TemplateMethod
from capedjica.coordinator.run.report import run_report
from capedjica.data.templates import read_template
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.results.individual import write_local_results
from capedjica.study.analyses import IcaTable
from capedjica.study.analyses.tabular import MeanTable
from capedjica.study.approval_text import describe
from capedjica.study.study_file import Study, write_study
from tests.support.drafts import draft, with_ica
from tests.support.in_process import run_main
from tests.support.small_study import COMPONENTS, make_study

NAMES = ("visual", "motor", "default </script>")
KNOWN = IcaTable(
    method="template",
    n_components=3,
    template="template.npy",
    template_origin="public",
    template_names=NAMES,
)


def with_template(**changes):
    content = draft()
    return msgspec.structs.replace(content, analyses=(msgspec.structs.replace(KNOWN, **changes),))


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "template.npy", np.eye(3, 12) + 0.1)
    return tmp_path


def test_a_template_is_read_back_and_known_by_its_hash(folder):
    write_study(folder / "study.toml", with_template())
    study = Study.load(folder)
    (step,) = study.steps
    assert isinstance(step.analysis, TemplateMethod)
    assert step.analysis.template.names == NAMES
    assert [stage.query.size for stage in step.analysis.stages()] == [36]
    words = " ".join(describe(study)["analyses"][0]["words"])
    assert study.content.analyses[0].template_sha256 in words
    assert "no participant of this study contributed to it" in words
    assert any("assumes that no participant" in said for said in study.guarantee().caveats)
    np.save(folder / "template.npy", np.eye(3, 12) + 0.2)
    with pytest.raises(InputError, match="is not the file of the study"):
        Study.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"template": None}, "analysis.template is missing; analysis.method 'template' requires it"),
        ({"template_origin": None}, "analysis.template_origin is missing"),
        ({"template": "maps.npy", "template_sha256": "a" * 64}, "other than a result file"),
        ({"template": "known.nii.gz", "template_sha256": "a" * 64}, "must be a .npy file"),
        (
            {"template": "../template.npy", "template_sha256": "a" * 64},
            "must be a relative path inside the folder",
        ),
        ({"template_names": NAMES[:2]}, "one name for each of the 3 networks; got 2"),
        ({"n_components": 4, "template_names": ()}, r"has shape \(3, 12\), expected \(4, 12\)"),
        ({"max_iter": 3}, "analysis.max_iter is not allowed for method 'template'"),
        ({"method": "subject"}, "analysis.template is only allowed for methods 'template' and 'guided'"),
        (
            {"method": "guided", "group_maps": False},
            "analysis.group_maps is only allowed for method 'template'",
        ),
        ({"group_maps": False}, "the study would release nothing, because a template without group_maps"),
        ({"n_components": 61, "template_names": ()}, "at most scan_length, 60; got 61"),
        ({"template_sha256": "0" * 64}, "is not the file of the study"),
        ({"template_source": "a\nb"}, "template_source must be printable"),
    ],
)
def test_what_a_study_cannot_say_of_a_template(folder, changes, message):
    with pytest.raises(InputError, match=message):
        write_study(folder / "study.toml", with_template(**changes))
    assert not (folder / "study.toml").exists()


def test_an_old_schema_has_no_templates(folder):
    content = msgspec.structs.replace(with_template(), schema=1)
    with pytest.raises(InputError, match="schema 1 allows one analysis"):
        write_study(folder / "study.toml", content)


def test_what_is_not_said_leaves_the_hash_of_a_study_as_it_was():
    """The hash of a study without a template, from before there were any."""
    digest = "8b5757a49e4d1a44f258e4a4e758a96a88b0bfa093bda903c50f2ac2e467597e"
    assert Study(draft()).hash.hex() == digest
    assert Study(with_ica(draft(), group_maps=True, template_names=())).hash.hex() == digest


def test_what_releases_nothing_has_no_part_of_the_budget(folder):
    mean = MeanTable(name="connectivity", values="connectivity", networks="ica", clip=2.0)
    first = msgspec.structs.replace(KNOWN, group_maps=False)
    content = msgspec.structs.replace(draft(), analyses=(first, mean))
    write_study(folder / "study.toml", content)
    study = Study.load(folder)
    assert [stage.share for stage in study.analysis.stages()] == [1.0]
    assert study.steps[1].analysis.rows.names[0] == "visual - motor"
    shared = msgspec.structs.replace(first, share=0.5)
    (problem,) = Study(msgspec.structs.replace(content, analyses=(shared, mean)), folder).draft_problems()[:1]
    assert "releases nothing, so it must not have a share" in problem


# Runs


def study_of(folder, *analyses):
    """Four sites with the true maps as a template, permuted."""
    made = make_study(folder)
    truth = np.load(folder / "truth" / "mixing.npy").T[[2, 0, 1]]
    np.save(folder / "template.npy", truth)
    content = msgspec.structs.replace(made.content, analyses=analyses)
    (folder / "study.toml").unlink()
    write_study(folder / "study.toml", content)
    return Study.load(folder), truth


def test_a_run_keeps_the_order_and_the_names_and_says_where_the_template_is_from(
    tmp_path, monkeypatch, capsys
):
    study, truth = study_of(tmp_path, KNOWN)
    sites, out = str(tmp_path / "sites"), tmp_path / "run"
    ran = run_main(
        ["run", str(tmp_path / "study.toml"), "--sites", sites, "--out", str(out)], monkeypatch, capsys
    )
    assert ran.returncode == 0, ran.stderr
    maps = np.load(out / "maps.npy")
    assert all(np.corrcoef(one, true)[0, 1] > 0.8 for one, true in zip(maps, truth, strict=True))
    assert (out / "maps.csv").read_text().startswith("visual,motor,default </script>\n")
    assert json.loads((out / "reliability.json").read_text())["names"] == list(NAMES)
    (table,) = json.loads((out / "tables.json").read_text())
    assert [row[0] for row in table["rows"]] == list(NAMES)
    privacy = json.loads((out / "privacy.json").read_text())
    assert any("assumed to be public knowledge" in said for said in privacy["not_covered"])
    assert "order of the template" in json.loads((out / "provenance.json").read_text())["maps"]
    page = run_report(out).html
    assert "Map 1: visual" in page
    assert "default </script>" not in page
    assert "networks of a template (public)" in page
    with zipfile.ZipFile(out / "results.zip") as archive:
        assert "template.npy" in archive.namelist()
    again = read_template(out / "results.zip", None, truth.shape[1])
    assert again.template.names == NAMES
    assert again.epsilon == study.content.privacy.epsilon
    home = find_sites(study, tmp_path / "sites")[0]
    written = write_local_results(out, home)
    about = json.loads(next(written.folder.glob("sub-*/func/*_mixing.json")).read_text())
    assert about["Names"]["component-01"] == "visual"


def test_networks_that_are_known_cost_nothing_before_their_connectivity(tmp_path):
    mean = MeanTable(name="connectivity", values="connectivity", networks="ica", clip=2.0)
    study, truth = study_of(tmp_path, msgspec.structs.replace(KNOWN, group_maps=False), mean)
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    np.testing.assert_allclose(
        np.load(tmp_path / "run" / "ica" / "maps.npy"),
        truth / np.abs(truth).max(axis=1, keepdims=True),
        atol=1e-9,
    )
    found = (tmp_path / "run" / "connectivity" / "mean.csv").read_text()
    assert "visual - motor" in found
    labels = [one["label"] for one in json.loads((tmp_path / "run" / "privacy.json").read_text())["releases"]]
    assert labels == ["connectivity: mean of the subjects' vectors"]
    page = run_report(tmp_path / "run").html
    assert "nothing was released for them" in page
    assert len(np.load(tmp_path / "run" / "connectivity" / "mean.npy")) == COMPONENTS
