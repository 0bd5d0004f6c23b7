"""What a study says of itself from its plan to its report fits what it was: of whom, of what, how many."""

import html
import re

import msgspec
import pytest

from capedjica.study.analyses.pca import PcaTable
from capedjica.study.analyses.tabular import KMeansTable, MeanTable
from tests.support.drafts import TABLE, draft
from tests.support.in_process import run_main
from tests.support.kinds import SIZES, make_kind

SCAN = re.compile(r"\bscans?\b", re.IGNORECASE)
ROWS = msgspec.structs.replace(
    draft(),
    features=TABLE,
    analyses=(
        MeanTable(clip=100.0),
        KMeansTable(n_clusters=2, radius=80.0, max_iter=3),
        PcaTable(n_components=1, clip=100.0),
    ),
)


@pytest.fixture
def said(monkeypatch, capsys):
    """Return what a command says, as lines; it must succeed."""

    def call(*arguments):
        done = run_main([str(argument) for argument in arguments], monkeypatch, capsys)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


def page_of(folder):
    """The words of a report, less the names of files and libraries."""
    source = (folder / "run" / "report.html").read_text()
    text = re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", source, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def test_rows_are_not_called_scans_and_analyses_are_told_one_by_one(tmp_path, said):
    make_kind(tmp_path, "rows", ROWS)
    site = tmp_path / "sites" / "s1"
    settings = site / "site.toml"
    settings.write_text(settings.read_text().replace("auto_approve = true", "auto_approve = false"))
    shown = [
        *said("site", "check", site),
        *said("study", "show", tmp_path),
        *said("plan", tmp_path),
        *said("site", "approve", tmp_path, "--site", site, "--yes"),
        *said("site", "check", site, "--study", tmp_path),
        *(ran := said("run", tmp_path)),
        *said("site", "withdraw", "sub-01", site),
    ]
    said("report", tmp_path / "run")
    page = page_of(tmp_path)
    assert (
        "The state of the data was recorded: if the data change before it starts, approve it again." in shown
    )
    assert [line for line in shown if SCAN.search(line)] == []
    assert SCAN.search(page) is None
    assert ran[:3] == [
        "The mean of 3 numbers per participant, clipped to norm 100.",
        "2 clusters of participants by k-means in 3 steps.",
        "1 principal component of 3 features (capePCA).",
    ]
    assert ran[3].startswith(f"3 analyses from {sum(SIZES)} participants at 4 sites in ")
    assert ran[3].endswith(" s; all sites were folders on one machine.")
    assert "The analysis ran for" not in page
    assert "1 principal component was estimated" in page
    assert "on one machine that held the data of all participants" in page
    assert "before any data were read" in page


def test_the_iterations_of_one_analysis_are_told(tmp_path, said):
    make_kind(tmp_path, "kmeans")
    (ran, *_) = said("run", tmp_path)
    assert ran.startswith(
        f"2 clusters of participants by k-means in 3 steps, from {sum(SIZES)} participants at 4 sites in"
    )
    said("report", tmp_path / "run")
    assert "The analysis ran for 3 iterations." in page_of(tmp_path)


def test_where_one_site_works_alone_only_its_people_are_counted(tmp_path, said):
    make_kind(tmp_path, "mean", mechanism="local")
    (ran, *_) = said("run", tmp_path)
    assert f" from {max(SIZES)} participants at 1 site in " in ran
    said("report", tmp_path / "run")
    page = page_of(tmp_path)
    assert f"from {max(SIZES)} participants at 1 site; all sites were folders on one machine." in page
    assert f"From {max(SIZES)} participants at 1 site, on one machine" in page
    assert "The one release was accounted for exactly" in page
    assert "more than one site" not in page
