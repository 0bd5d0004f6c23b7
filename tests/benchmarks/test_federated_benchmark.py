"""The benchmark of studies across processes: what it makes of its measurements, and that it runs."""

import json

import numpy as np
import pytest

from benchmarks import federated
from benchmarks.federated import Size, Times
from tests.benchmarks.test_benchmarks import python


def noted(folder, n_sites, releases, computing):
    """Write what parties would note: a question every 100 ms, answered after 50 ms."""
    asked = [(1, slot, 10.0 + 0.1 * slot, 10.05 + 0.1 * slot) for slot in range(releases)]
    (folder / "federation" / "server").mkdir(parents=True)
    notes = {"bare": [(0.02,)] * 5, "asked": asked}
    (folder / "federation" / "server" / "times.json").write_text(json.dumps(notes))

    class Home:
        def __init__(self, number):
            self.folder = folder / f"site-{number}"
            self.folder.mkdir()
            # In another order than they were asked, as nothing depends on it.
            notes = [(1, slot, computing * number, computing * number + 0.005) for slot in range(releases)]
            (self.folder / "times.json").write_text(json.dumps(notes[::-1]))

    return [Home(number) for number in range(1, n_sites + 1)]


def test_the_online_part_leaves_out_the_slowest_site(tmp_path):
    times = federated._read(tmp_path, noted(tmp_path, 4, 101, 0.005))
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


@pytest.mark.full
def test_the_quick_benchmark_runs():
    done = python("-m", "benchmarks.federated", "--quick")
    assert done.returncode == 0, done.stderr
    assert "online part of a release, 4 sites, median" in done.stdout
    assert "40 iterations, 4 x 10 people: time not computing" in done.stdout
