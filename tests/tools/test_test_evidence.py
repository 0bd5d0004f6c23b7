"""Evidence of the whole suite: tests of a lost worker are run again, parts are merged with their commits."""

import json

import pytest

from tests import evidence
from tests.evidence import Case, Part, cases_of, lines_of, part_of, read_parts, run_pytest, summary, unreached

# Ends its worker the first time.
LOST = """
import os, pathlib, pytest
def test_before(): pass
def test_that_ends_its_worker():
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        os._exit(9)
def test_after(): pass
def test_wrong(): assert False
@pytest.mark.skip(reason="not here")
def test_skipped(): pass
@pytest.mark.xfail(reason="known")
def test_expected(): assert False
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of tests outside the project, which pytest is told to run alone."""
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(evidence.Path(__file__).parents[2]))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    path = tmp_path / "test_lost.py"
    path.write_text(LOST)
    return path


def test_what_a_lost_worker_did_not_reach_is_run_again(file, tmp_path):
    record = tmp_path / "record.jsonl"
    record.touch()
    run_pytest(record, [*evidence.ALONE, str(file)])
    missing = unreached(lines_of(record))
    assert "test_lost.py::test_that_ends_its_worker" in missing
    assert "test_lost.py::test_before" not in missing
    run_pytest(record, [*evidence.ALONE, *missing])
    lines = lines_of(record)
    assert unreached(lines) == []
    assert {case.name.split("::")[1]: case.outcome for case in cases_of(lines)} == {
        "test_before": "passed",
        "test_that_ends_its_worker": "passed",
        "test_after": "passed",
        "test_wrong": "failed",
        "test_skipped": "skip",
        "test_expected": "xfail",
    }


def test_a_summary_names_each_part_with_its_commit_and_all_that_did_not_pass():
    cases = [Case("a.py::x", seconds=2.0), Case("a.py::y", "failed"), Case("b.py::z", "not reached")]
    one = part_of(cases, "abc", "2031-01-01", 60.0)
    text = summary({"flare": one, "attacks": None})
    assert "flare: commit abc of 2031-01-01, 1 passed, 1 failed, 0 skipped" in text
    assert "1 NOT REACHED" in text
    assert "attacks: not run" in text
    assert "failed: a.py::y\nnot reached: b.py::z" in text
    assert "     1      2.0  a\n" in text
    assert not one.green
    assert part_of(cases[:1], "abc", "2031-01-01", 60.0).green


def test_parts_are_kept_apart_and_cover_every_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "EVIDENCE", tmp_path)
    (tmp_path / "test-full").mkdir()
    content = evidence.msgspec.json.encode(Part("abc", "2031-01-01", 1.0, "Python", {"a": (1, 2.0)}, [], []))
    (tmp_path / "test-full" / "flare.json").write_bytes(content)
    parts = read_parts()
    assert json.loads(content)["commit"] == parts["flare"].commit
    assert parts["rest"] is None
    for name, paths in evidence.PARTS.items():
        assert all((evidence.ROOT / path).exists() for path in paths), name


def test_a_file_that_cannot_be_imported_has_failed(file, tmp_path):
    record = tmp_path / "record.jsonl"
    record.touch()
    file.write_text("import nothing_of_that_name\n")
    run_pytest(record, [*evidence.ALONE, str(file)])
    found = part_of(cases_of(lines_of(record)), "abc", "2031-01-01", 1.0)
    assert [(case.name, case.outcome) for case in found.others] == [("test_lost.py", "failed")]
    assert not found.green
