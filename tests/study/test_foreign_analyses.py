"""An analysis of another package, a private median of fifty lines: found by its entry point, and run."""

import importlib.metadata
import io
import sys

import msgspec
import numpy as np
import pytest
from rich.console import Console

from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.study import analyses, study_file
from capedjica.study.analyses import AnalysisTable, known_kinds, provider, table_class
from capedjica.study.approval_text import describe, show_study
from capedjica.study.study_file import Study
from tests.support.drafts import TABLE, draft
from tests.support.kinds import SIZES, make_kind
from tests.support.private_median import MEDIAN, installed_median


@pytest.fixture
def installed(tmp_path_factory):
    with installed_median(tmp_path_factory.mktemp("packages") / "median") as folder:
        yield folder


def median_study(folder, **privacy):
    table = table_class("median")(low=0.0, high=100.0)
    return make_kind(
        folder, "median", msgspec.structs.replace(draft(), features=TABLE, analyses=(table,)), **privacy
    )


def ages(study, folder):
    rows = [
        line.split("\t")
        for home in find_sites(study, folder / "sites")
        for line in (home.data_path / "participants.tsv").read_text().splitlines()[1:]
    ]
    return np.array([float(row[1]) for row in rows])


def test_it_is_short():
    lines = (MEDIAN / "private_median.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 50


def test_it_runs_from_a_study_and_is_near_the_median(tmp_path, installed):
    study = median_study(tmp_path, epsilon=20.0)
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    table = (tmp_path / "run" / "median.csv").read_text().splitlines()
    found = float(table[1].split(",")[1])
    people = np.sort(ages(study, tmp_path))
    assert len(people) == sum(SIZES)
    # Of 30 people the noise of eight steps at epsilon 20 moves the middle by a few at most.
    assert people[8] - 0.4 < found < people[21] + 0.4


def test_sites_are_told_whose_it_is(tmp_path, installed):
    study = median_study(tmp_path)
    (told,) = describe(study)["analyses"]
    assert told["provider"] == "private-median 1.0"
    assert provider("mean") == ""
    assert "median" in known_kinds()
    out = io.StringIO()
    show_study(study, Console(file=out, width=80, color_system=None))
    text = " ".join(out.getvalue().split())
    assert "Computed by private-median 1.0, which is not part of capedjica" in text
    assert "holds only if the claims of this package hold" in text
    assert (
        "share above the middle: private-median 1.0 claims that each participant's numbers are computed"
        in text
    )
    assert "never further apart than 1 (spread) times the length to which each is clipped, 1 (clip)" in text
    assert "if either is false, so is the cost stated below" in text
    assert "bounded all the same" not in text


def test_another_version_of_the_package_is_another_study(tmp_path, installed, monkeypatch):
    study = median_study(tmp_path)
    before = study.hash
    monkeypatch.setattr(study_file, "provider", lambda kind: "private-median 2.0")
    assert Study.load(tmp_path).hash != before


def test_where_it_is_not_installed_it_is_refused(tmp_path, installed, monkeypatch):
    median_study(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    analyses._foreign.cache_clear()
    with pytest.raises(InputError, match="'median' is unknown"):
        Study.load(tmp_path)


def test_no_package_takes_the_place_of_one_of_ours(monkeypatch):
    point = importlib.metadata.EntryPoint("ica", "os:path", analyses.GROUP)
    monkeypatch.setattr(analyses, "entry_points", lambda group: [point])
    analyses._foreign.cache_clear()
    try:
        assert table_class("ica") is analyses.IcaTable
    finally:
        analyses._foreign.cache_clear()


@pytest.mark.parametrize(
    ("value", "message"),
    [("no_such_module:Table", "cannot be loaded"), ("os:path", "is not a subclass of AnalysisTable")],
)
def test_a_broken_package_is_named(monkeypatch, value, message):
    point = importlib.metadata.EntryPoint("broken", value, analyses.GROUP)
    monkeypatch.setattr(analyses, "entry_points", lambda group: [point])
    analyses._foreign.cache_clear()
    try:
        with pytest.raises(InputError, match=f"'broken' of {value} .*{message}"):
            table_class("broken")
    finally:
        analyses._foreign.cache_clear()


def test_a_table_that_does_not_say_how_it_is_computed():
    class Nothing(AnalysisTable, frozen=True, kw_only=True):
        kind: str = "nothing"

    with pytest.raises(NotImplementedError, match="Nothing does not implement open"):
        Nothing().open(None)
