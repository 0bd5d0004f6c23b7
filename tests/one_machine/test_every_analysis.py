"""Every kind of analysis from study.toml: planned, explained, run, reported; several under one budget."""

import csv
import html
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from rich.console import Console

from capedjica import private_mean
from capedjica.algorithms.ica.individual import centre, connectivity, standardise
from capedjica.coordinator.planning.plan import plan_study
from capedjica.coordinator.planning.plan_text import show_plan
from capedjica.coordinator.run.report import run_report
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy import gaussian_epsilon
from capedjica.study.analyses.pca import PcaTable
from capedjica.study.analyses.tabular import MeanTable, RegressionTable
from capedjica.study.approval_text import show_study
from capedjica.study.study_file import Study, write_study
from tests.support.drafts import ANALYSES, GROUPS, PUBLIC_KNOWLEDGE, draft
from tests.support.in_process import run_main
from tests.support.kinds import SIZES, make_kind, results_of
from tests.support.places import ROOT

TWO = "networks, then connectivity"
COMPARED = {
    "effects.csv",
    *(f"{name}.npy" for name in ("effects", "standard_errors", "p_values", "q_values", "intervals")),
}
EXPECTED = {
    "mean": {"mean.npy", "mean.csv"},
    "histogram": {"counts.npy", "shares.npy", "density.npy", "histogram.csv"},
    "kmeans": {"centers.npy", "shares.npy", "clusters.csv"},
    "regression": {"weights.npy", "weights.csv"},
    "pca": {"maps.npy", "maps.csv"},
    "ica": {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv"},
    "paper": {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv"},
    TWO: {
        *(f"networks/{name}" for name in ("unmixing.npy", "mixing.npy", "maps.npy", "maps.csv")),
        *("connectivity/mean.npy", "connectivity/mean.csv"),
    },
    "group-comparison": COMPARED,
    "networks, then groups": {
        *(f"networks/{name}" for name in ("unmixing.npy", "mixing.npy", "maps.npy", "maps.csv")),
        *(f"groups/{name}" for name in COMPARED),
    },
    "template": {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv", "template.csv"},
    "guided": {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv", "template.csv"},
    "spatial": {"unmixing.npy", "mixing.npy", "maps.npy", "maps.csv"},
    "template, then connectivity": {
        *(f"known/{name}" for name in ("unmixing.npy", "mixing.npy", "maps.npy", "maps.csv")),
        *("connectivity/mean.npy", "connectivity/mean.csv"),
    },
    "three": {
        *(f"networks/{name}" for name in ("unmixing.npy", "mixing.npy", "maps.npy", "maps.csv")),
        *("amplitudes/mean.npy", "amplitudes/mean.csv"),
        *("groups/centers.npy", "groups/shares.npy", "groups/clusters.csv"),
    },
}


def run(study, folder, name="run", seed=None):
    return run_study(study, find_sites(study, folder / "sites"), folder / name, insecure_noise_seed=seed)


@pytest.mark.parametrize("kind", ANALYSES | PUBLIC_KNOWLEDGE | GROUPS)
def test_a_kind_is_planned_explained_run_and_reported(tmp_path, kind):
    study = make_kind(tmp_path, kind)
    out = io.StringIO()
    console = Console(file=out, width=100)
    show_plan(plan_study(study), console)
    show_study(study, console)
    text = " ".join(out.getvalue().split())
    for step in study.steps:
        for words in step.table.words(step.setting):
            assert " ".join(words.split()) in text
    for stage in study.contract.stages:
        assert stage.query.label in text
    assert run(study, tmp_path).complete
    # Which maps are too weak to be found is told where there are any; people so few may have some.
    found = {name for name in results_of(tmp_path / "run") if not name.endswith("recoverable.csv")}
    assert found - {"template.npy"} == EXPECTED[kind]
    check_total(study, tmp_path)
    page = run_report(tmp_path / "run").html
    for step in study.steps:
        if step.table.kind != "ica":
            assert f'id="analysis-{step.name}"' in page
            assert html.escape(step.table.article(step.setting)).replace("&#x27;", "&#39;") in page
    # What is handed on is enough for the same page, but for the means.
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(tmp_path / "run" / "results.zip", unpacked)
    assert [f'id="analysis-{step.name}"' in run_report(unpacked).html for step in study.steps] == [
        f'id="analysis-{step.name}"' in page for step in study.steps
    ]


def check_total(study, folder):
    """One cap; every release has one entry, and all of them together cost exactly what is told."""
    told = json.loads((folder / "run" / "privacy.json").read_text())
    assert told["epsilon"] == study.content.privacy.epsilon
    planned = sum(stage.count for stage in study.contract.stages)
    for home in find_sites(study, folder / "sites"):
        with home.open_ledger() as ledger:
            ledger.verify_chain()
            spent = ledger.totals().studies[study.contract.hash]
        assert spent.n_releases == len(told["releases"]) <= planned
        mu2 = math.fsum(release["mu"][home.settings.name] ** 2 for release in told["releases"])
        assert spent.mu2 == pytest.approx(mu2, rel=1e-12)
        assert spent.mu2 <= study.contract.cap(home.settings.name).mu2
        assert told["sites"][home.settings.name]["spent_epsilon"] == pytest.approx(
            gaussian_epsilon(math.sqrt(mu2), 1e-5), rel=1e-9
        )


def test_every_command_takes_every_kind(tmp_path, monkeypatch, capsys):
    make_kind(tmp_path, "three")
    site = str(tmp_path / "sites" / "s1")
    for command in (
        ["plan", str(tmp_path)],
        ["plan", str(tmp_path), "--json"],
        ["study", "show", str(tmp_path)],
        ["study", "show", str(tmp_path), "--json"],
        ["site", "check", site, "--study", str(tmp_path)],
        ["run", str(tmp_path), "--out", str(tmp_path / "run")],
        ["report", str(tmp_path / "run")],
        ["site", "results", str(tmp_path / "run"), "--site", site],
        ["site", "report", str(tmp_path / "run"), "--site", site],
        ["run", str(tmp_path), "--out", str(tmp_path / "run")],
    ):
        done = run_main(command, monkeypatch, capsys)
        assert done.returncode == 0, done.stderr
    for name in ("networks", "amplitudes", "groups"):
        assert name in done.stdout


def table_of(home):
    return (home.data_path / "participants.tsv").read_text().splitlines()


def test_a_mean_from_a_study_is_the_mean_of_the_estimator(tmp_path):
    study = make_kind(tmp_path, "mean", reserve=0.0, insecure_noise=True)
    run(study, tmp_path, seed=5)
    people = {
        home.settings.name: [
            [float(row[column]) for column in ("age", "volume", "dx")]
            for row in csv.DictReader(table_of(home), delimiter="\t")
        ]
        for home in find_sites(study, tmp_path / "sites")
    }
    alone = private_mean(people, clip=100.0, epsilon=10.0, insecure_noise_seed=5)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "mean.npy"), alone.value)


def test_a_later_analysis_uses_what_an_earlier_one_published(tmp_path):
    """Without noise the mean connectivity is that of the time courses of the published networks."""
    study = make_kind(tmp_path, TWO, epsilon=None, mechanism="none")
    run(study, tmp_path)
    unmixing, total = np.load(tmp_path / "run" / "networks" / "unmixing.npy"), np.zeros(3)
    for home in find_sites(study, tmp_path / "sites"):
        for file in sorted(home.data_path.glob("*.npy")):
            z = connectivity(standardise(centre(np.load(file)) @ unmixing.T))
            vector = z[np.triu_indices(3, 1)]
            total += vector * min(1.0, 2.0 / np.linalg.norm(vector))
    found = np.load(tmp_path / "run" / "connectivity" / "mean.npy")
    np.testing.assert_allclose(found, total / sum(SIZES), atol=1e-6)


def test_what_is_wrong_with_one_of_several_analyses_says_with_which():
    features, (ica, mean) = ANALYSES[TWO]
    other = msgspec.structs.replace(mean, networks="nothing")
    content = msgspec.structs.replace(draft(), features=features, analyses=(ica, other))
    (problem,) = Study(content).draft_problems()
    assert problem.startswith("analysis[2].networks must name an earlier analysis of kind 'ica'")


def test_shares_divide_one_budget():
    content = msgspec.structs.replace(draft(), features=ANALYSES["three"][0], analyses=ANALYSES["three"][1])
    study = Study(content)
    sums = [math.fsum(study.contract.stages[stage].share for stage in step.stages) for step in study.steps]
    assert sums == pytest.approx([0.4, 0.2, 0.4])
    plan = plan_study(study)
    assert max(site.epsilon for site in plan.sites) <= 2.0


KILL = """
import os, signal, sys
from pathlib import Path
from capedjica.coordinator.run.watcher import Watcher
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.study.study_file import Study

class Killer(Watcher):
    def step(self, step):
        if step.n_done == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
study = Study.load(folder)
run_study(study, find_sites(study, folder / "sites"), folder / "run", None, Killer())
"""


def killed(folder, after):
    """Run a study in a process of its own that is killed after so many means."""
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(folder), str(after)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not RunFolder(folder / "run").state().complete


@pytest.mark.parametrize("after", [5, 6, 7])
def test_a_run_killed_between_two_analyses_finds_the_same(tmp_path, after):
    """Networks take so many means here: the run is killed before the last, after it, and after the next."""
    study = make_kind(tmp_path, TWO, epsilon=None, mechanism="none")
    killed(tmp_path, after)
    run(study, tmp_path)
    whole = make_kind(tmp_path / "whole", TWO, epsilon=None, mechanism="none")
    run(whole, tmp_path / "whole")
    assert results_of(tmp_path / "run") == results_of(tmp_path / "whole" / "run")
    told = json.loads((tmp_path / "whole" / "run" / "privacy.json").read_text())
    labels = [release["label"] for release in told["releases"]]
    # One mean of connectivity follows those of the networks.
    assert after in (len(labels) - 2, len(labels) - 1, len(labels))


def test_a_run_killed_between_two_analyses_pays_once(tmp_path):
    study = make_kind(tmp_path, TWO)
    killed(tmp_path, 5)
    run(study, tmp_path)
    check_total(study, tmp_path)
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [release["label"] for release in told["releases"]] == [
        label for stage in study.contract.stages for label in [stage.query.label] * stage.count
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "median"}, "analysis.kind 'median' is unknown; expected one of ica, pca, mean"),
        ({"kind": "mean"}, "analysis.clip is missing"),
        ({"kind": "mean", "clip": 1.0, "networks": "ica"}, "analysis.networks must name an earlier analysis"),
        (
            {"kind": "regression", "label": "dx", "feature_bound": 1.0},
            "requires labels: features.kind must be 'table'",
        ),
        ({"kind": "histogram", "edges": [[0, 1]]}, "analysis.edges must have 6 lists, one per number"),
        ({"kind": "histogram", "edges": [[1, 0]] * 6}, "analysis.edges[1] must be strictly increasing"),
        ({"kind": "pca", "n_components": 7}, "analysis.n_components must be at most n_features, 6; got 7"),
        ({"kind": "ica", "n_components": 7}, "analysis.n_components must be at most n_features, 6; got 7"),
        ({"kind": "mean", "clip": 1.0, "name": "../up"}, "analysis.name"),
        ({"kind": "mean", "clip": 1.0, "share": 0.5}, "shares must add up to 1"),
        ({"kind": "mean", "clip": 1.0, "name": "a\n"}, "analysis.name"),
        (
            {"kind": "mean", "clip": 1.0, "center": [1.0]},
            "analysis.center must have 6 values, one per number",
        ),
        ({"kind": "kmeans", "n_clusters": 2, "radius": 1.0, "scale": [0.0] * 6}, "analysis.scale"),
    ],
)
def test_an_analysis_that_cannot_be_run_is_refused_in_words(tmp_path, change, message):
    write_study(tmp_path / "study.toml", msgspec.structs.replace(draft(), features=ANALYSES["ica"][0]))
    text = (tmp_path / "study.toml").read_text()
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in change.items())
    changed = re.sub(r"\[analysis\].*?\n\n", lambda _: f"[analysis]\n{lines}\n\n", text, flags=re.DOTALL)
    (tmp_path / "study.toml").write_text(changed)
    with pytest.raises(InputError) as error:
        Study.load(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("n_features", "table", "message"),
    [
        (10**9, MeanTable(clip=1.0), "a participant would have 1,000,000,000 numbers"),
        (20_000, MeanTable(clip=1.0, values="connectivity"), "a participant would have 199,990,000 numbers"),
        (1, MeanTable(clip=1.0, values="connectivity"), "requires at least 2 features"),
        (1, MeanTable(clip=1.0, values="amplitudes"), "requires at least 2 features"),
    ],
)
def test_sizes_are_refused_before_anything_of_that_size_is_made(n_features, table, message):
    features = msgspec.structs.replace(ANALYSES["ica"][0], n_features=n_features)
    (problem,) = Study(msgspec.structs.replace(draft(), features=features, analyses=(table,))).problems()
    assert message in problem


def test_public_centres_and_scales_make_a_regression_that_learns(tmp_path):
    """Ages and volumes in units of about one: without noise the weights point the right way."""
    table = RegressionTable(
        label="dx", feature_bound=2.0, center=(50.0, 1.5), scale=(20.0, 1.0), max_iter=200
    )
    content = msgspec.structs.replace(draft(), features=ANALYSES["mean"][0], analyses=(table,))
    study = make_kind(tmp_path, "regression", content, epsilon=None, mechanism="none")
    for home in find_sites(study, tmp_path / "sites"):
        header, *rows = table_of(home)
        split = [row.split("\t") for row in rows]
        lines = [f"{name}\t{age}\t{volume}\t{int(float(age) > 50)}" for name, age, volume, _ in split]
        (home.data_path / "participants.tsv").write_text("\n".join([header, *lines]) + "\n")
    run(study, tmp_path)
    weights = np.load(tmp_path / "run" / "weights.npy")
    assert weights[0] > 1.0
    assert abs(weights[1]) < weights[0] / 2
    assert "(age - 50) / 20" in (tmp_path / "run" / "weights.csv").read_text()


def test_principal_components_of_columns_are_a_table(tmp_path):
    content = msgspec.structs.replace(
        draft(), features=ANALYSES["mean"][0], analyses=(PcaTable(n_components=2, clip=100.0),)
    )
    study = make_kind(tmp_path, "pca", content, epsilon=None, mechanism="none")
    run(study, tmp_path)
    assert set(results_of(tmp_path / "run")) == {"components.npy", "components.csv"}
    rows = (tmp_path / "run" / "components.csv").read_text().splitlines()
    assert rows[0] == "column,component 1,component 2"
    assert [row.split(",")[0] for row in rows[1:]] == ["age", "volume", "dx"]
    assert "components.csv" in run_report(tmp_path / "run").html


def test_two_analyses_of_one_name_are_refused(tmp_path):
    table = ANALYSES["mean"][1][0]
    content = msgspec.structs.replace(draft(), features=ANALYSES["mean"][0], analyses=(table, table))
    assert "2 analyses have the name 'mean'" in Study(content).problems()[0]


def test_labels_of_stages_are_frozen():
    """They are in contracts and ledgers: another word would be another study."""
    labels = {
        kind: [stage.query.label for stage in Study(content).contract.stages]
        for kind, content in (
            (kind, msgspec.structs.replace(draft(), features=features, analyses=analyses))
            for kind, (features, analyses) in ANALYSES.items()
        )
    }
    networks = ["subspace", "log-covariance", "log-covariance, whitened", "rotation"]
    named = [f"networks: {label}" for label in networks]
    assert labels == {
        "mean": ["mean of the subjects' vectors"],
        "histogram": ["share of people in each cell"],
        "kmeans": ["shares and sums of the clusters"],
        "regression": ["gradient of the logistic loss"],
        "pca": ["second moments (PCA)"],
        "ica": networks,
        "paper": ["second moments (PCA)", "gradients of W and b"],
        TWO: [*named, "connectivity: mean of the subjects' vectors"],
        "three": [
            *named,
            "amplitudes: mean of the subjects' vectors",
            "groups: shares and sums of the clusters",
        ],
    }
