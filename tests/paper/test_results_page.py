"""RESULTS.md: each experiment replaces its own part, and what is committed is what the code says today."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from paper import composition, effective_delta
from paper.shared import common
from paper.shared.common import Experiment, Finding
from tests.support.places import ROOT


@dataclass(frozen=True)
class Numbers:
    """Stands for a setting and for a row."""

    value: float = 1.5


def write(out, name, measured, *notes):
    findings = [Finding("a claim", measured, "yes")]
    common.write(Experiment(name, name.title(), Numbers(), [Numbers()], Figure(), findings, notes), out)


def test_writing_again_replaces_only_its_own_part(tmp_path):
    for name, measured in (("second", "old"), ("first", "kept"), ("second", "new")):
        write(tmp_path / "results", name, measured, "a note")
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.index("## First") < text.index("## Second")
    assert "| a claim | kept | yes |" in text
    assert "| a claim | new | yes |" in text
    assert "| old |" not in text
    assert text.count("a note") == 2


def test_same_run_gives_the_same_bytes(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder / "results", "again", "same")
    for kind in ("csv", "json", "png", "svg"):
        one, two = ((tmp_path / folder / f"results/again.{kind}").read_bytes() for folder in ("one", "two"))
        assert one == two


def test_small_version_does_not_overwrite_the_results():
    assert common.options("", []).out == Path("paper/results")
    assert common.options("", ["--quick"]).out == Path("out/paper/results")


@pytest.mark.parametrize("module", [composition, effective_delta])
def test_committed_findings_are_those_of_the_code(module):
    setting = module.Setting()
    text = (ROOT / "paper/RESULTS.md").read_text()
    for finding in module.findings(setting, module.measure(setting)):
        assert f"| {finding.claim} | {finding.measured} | {finding.holds} |" in text


def test_what_is_committed_is_small_and_says_nothing_of_where_data_lie():
    files = sorted((ROOT / "paper/results").iterdir())
    assert files
    for path in files:
        assert path.stat().st_size < 500_000, path.name
        if path.suffix == ".json":
            assert "folder" not in path.read_text()


def test_every_part_of_the_page_has_its_files_and_its_command():
    text = (ROOT / "paper/RESULTS.md").read_text()
    for name, command in re.findall(r"<!-- (\w+) -->\n.*?`python -m paper\.(\w+)", text, re.DOTALL):
        assert (ROOT / f"paper/{command}.py").exists()
        for kind in ("csv", "json", "svg"):
            assert (ROOT / f"paper/results/{name}.{kind}").exists()
