"""The benchmark of studies across processes: what it makes of its measurements, and that it runs."""

import json
import subprocess

import numpy as np
import pytest
from rich.console import Console

from benchmarks import federated
from benchmarks.federated import Size, Times
from benchmarks.trees import against
from tests.benchmarks.test_benchmarks import python


def noted(folder, n_sites, releases, computing):
    """Return what parties would note: a question every 100 ms, answered after 50 ms."""
    asked = [(1, slot, 10.0 + 0.1 * slot, 10.05 + 0.1 * slot) for slot in range(releases)]

    class Home:
        def __init__(self, number):
            self.folder = folder / f"site-{number}"
            self.folder.mkdir()
            # In another order than they were asked, as nothing depends on it.
            notes = [(1, slot, computing * number, computing * number + 0.005) for slot in range(releases)]
            (self.folder / "times.json").write_text(json.dumps(notes[::-1]))

    return {"bare": [(0.02,)] * 5, "asked": asked}, [Home(number) for number in range(1, n_sites + 1)]


def test_the_online_part_leaves_out_the_slowest_site(tmp_path):
    times = federated._read(*noted(tmp_path, 4, 101, 0.005))
    np.testing.assert_allclose(times.online, 0.03, rtol=1e-9)
    assert len(times.online) == 101 - federated.WARM_UP
    np.testing.assert_allclose(times.handled - times.computed, 0.005)
    assert times.total == pytest.approx(10.05)
    assert times.idle == pytest.approx(1 - 101 * 0.02 / 10.05)


@pytest.mark.parametrize(("milliseconds", "met"), [(29.0, True), (31.0, False)])
def test_the_aim_is_met_or_missed(milliseconds, met):
    online = np.full(100, 1e-3 * milliseconds)
    times = Times(online / 2, online + 0.1, np.full(100, 0.1), np.full(100, 0.11), 20.0)
    rows = federated._latency_rows(4, times)
    assert [row.met for row in rows] == [None, met, None]
    assert [row.met for row in federated._latency_rows(10, times)] == [None, None]
    assert rows[0].ratio == pytest.approx(2.0)
    assert federated._idle_row(Size(), times).met is False
    assert federated._idle_row(Size(), Times(*[online] * 2, online * 6, online, 20.0)).met is True


def test_bad_numbers_of_sites_are_refused():
    done = python("-m", "benchmarks.federated", "--sites", "2")
    assert done.returncode == 2
    assert "--sites must lie between 3 and 50, got 2" in done.stderr


def test_what_is_no_worktree_is_refused(tmp_path):
    done = python("-m", "benchmarks.federated", "--against", str(tmp_path))
    assert done.returncode == 2
    assert f"--against takes a worktree of an earlier commit, got {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    ("slower", "met"), [(1.1, [True, True]), (2.4, [True, False]), (2.6, [False, False])]
)
def test_two_trees_are_measured_in_turn_and_compared(monkeypatch, tmp_path, slower, met):
    """The earlier tree stands for 10 ms a release and 10 s a study; every third run meets a busy machine."""
    calls = []

    def measured(tree, what):
        calls.append((tree, what))
        busy = 5.0 if len(calls) % 3 == 0 else 1.0
        return (0.01 if what == "online" else 10.0) * (slower if tree == against.ROOT else 1.0) * busy

    monkeypatch.setattr(against, "measured", measured)
    monkeypatch.setattr(against, "_commit", lambda tree: "abc")
    section = against.run(Console(quiet=True), tmp_path, 5)
    assert [row.met for row in section.rows] == met
    assert [row.ratio for row in section.rows] == pytest.approx([slower, slower])
    assert [row.unit for row in section.rows] == ["ms", "s"]
    assert calls[:4] == [(against.ROOT, "online"), (tmp_path, "online")] * 2
    assert len(calls) == 20


def test_a_tree_is_measured_by_its_own_code(tmp_path):
    """What is imported comes from the tree that was named, and from no other."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "federated.py").write_text("raise SystemExit(7)\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        against.measured(tmp_path, "study")
    assert error.value.returncode == 7


@pytest.mark.full
def test_the_quick_benchmark_runs():
    done = python("-m", "benchmarks.federated", "--quick")
    assert done.returncode == 0, done.stderr
    assert "online part of a release, 4 sites, median" in done.stdout
    assert "40 iterations, 4 x 10 people: time not computing" in done.stdout
