"""Growth: exponents are right, small cases of every dimension run, and pages say what was measured."""

import math

import numpy as np
import pytest

from benchmarks.scale import __main__ as command
from benchmarks.scale import measuring, pages
from benchmarks.scale.dimensions import DIMENSIONS
from benchmarks.scale.growth import MEMORY, SITE_BYTES, TIME, Fit, Theory, fit, slope
from benchmarks.scale.measuring import Row, measured
from benchmarks.scale.one_site import run_one_site
from benchmarks.scale.workloads import SimulatedScans, StudySize, mixing_matrix, run_study, run_sum
from benchmarks.utility.shared.report import RESULTS
from tests.benchmarks.test_benchmarks import python

SMALL = StudySize(sites=3, participants=7, components=2, length=30, rotations=2, features=(4, 4, 4))


def row(size, cpu=1.0, memory=10**6, **more):
    values = {
        "seconds": cpu,
        "cpu": cpu,
        "site_cpu": cpu / (4 * size),
        "site_bytes": 50.0,
        "total_bytes": 200.0,
    }
    return Row(size, **(values | more), before=10**8, peak=10**8 + memory, load=0.5)


# Exponents


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.7])
def test_an_exact_power_is_found_without_error(exponent):
    found, error = slope([10, 20, 40, 80], [3 * size**exponent for size in (10, 20, 40, 80)])
    assert found == pytest.approx(exponent, abs=1e-12)
    assert error == pytest.approx(0, abs=1e-12)


def test_the_standard_error_is_that_of_repeated_experiments():
    rng, sizes = np.random.default_rng(0), np.geomspace(10, 1000, 6)
    fits = [slope(sizes, sizes**1.5 * np.exp(0.2 * rng.standard_normal(6))) for _ in range(2000)]
    spread = np.std([one for one, _ in fits])
    assert np.mean([one for one, _ in fits]) == pytest.approx(1.5, abs=4 * spread / math.sqrt(2000))
    assert math.sqrt(np.mean([error**2 for _, error in fits])) == pytest.approx(spread, rel=0.05)
    assert math.isnan(slope([1, 2], [1, 2])[1])


def test_only_the_largest_sizes_and_the_best_runs_count():
    rows = [row(size, cpu=max(size**2, 5000)) for size in (10, 100, 200, 400, 800)]
    rows += [row(size, cpu=10 * size**2 + 9000) for size in (10, 100, 800)]
    found = fit(rows, Theory(TIME, 2, 2, "squares"))
    assert found.exponent == pytest.approx(2)
    assert found.values[0] == 5000
    assert found.verdict == "as in theory"


@pytest.mark.parametrize(
    ("exponent", "verdict"),
    [(0.7, "less than in theory"), (1.0, "as in theory"), (1.4, "MORE than in theory")],
)
def test_a_verdict_compares_with_theory(exponent, verdict):
    theory = Theory(TIME, 1, 1, "reads")
    assert Fit(theory, exponent, 0.05, (1, 2), (1.0, 2.0)).verdict == verdict
    assert Fit(theory, exponent, 0.2, (1, 2), (1.0, 2.0)).verdict == "as in theory"


# Workloads


def test_a_simulated_scan_is_the_same_whenever_it_is_asked_for():
    scans = SimulatedScans(mixing_matrix(SMALL), 3, 30, site=1)
    np.testing.assert_array_equal(scans[2], list(scans)[2])
    assert not np.array_equal(scans[0], scans[1])
    assert not np.array_equal(scans[0], SimulatedScans(mixing_matrix(SMALL), 3, 30, site=2)[0])
    assert [scan.shape for scan in scans[1:]] == [(30, 64)] * 2
    with pytest.raises(IndexError):
        scans[3]


def test_bytes_of_a_study_do_not_depend_on_its_participants():
    few, more = (run_study(StudySize(2, number, 2, 30, 2, (9,))) for number in (6, 24))
    assert abs(more.site_bytes - few.site_bytes) < 100
    assert more.site_bytes * 2 < more.total_bytes


def test_bytes_of_a_study_grow_with_its_features_only_without_a_basis():
    plain = [run_study(StudySize(2, 4, 2, 30, 2, (side, 4, 4))).site_bytes for side in (4, 8)]
    assert plain[1] > 2 * plain[0]


def test_bytes_of_a_secure_sum_are_those_that_were_counted():
    small, large = run_sum(4, 100), run_sum(4, 1100)
    assert large.site_bytes - small.site_bytes == pytest.approx(8000, abs=10)
    assert 0 < small.site_cpu < small.cpu


def test_one_site_alone_sends_what_a_site_of_a_whole_sum_sends():
    alone, whole = run_one_site(6, 50), run_sum(6, 50)
    # Names of sites differ by one character.
    assert alone.site_bytes == pytest.approx(whole.site_bytes, rel=0.02)
    assert alone.site_cpu == alone.cpu > 0


@pytest.mark.parametrize("name", DIMENSIONS)
def test_the_smallest_case_of_a_dimension_runs(name):
    dimension = DIMENSIONS[name]
    found = measured(dimension.run, dimension.quick[0])
    assert found.size == dimension.quick[0]
    assert found.before > 0
    assert found.memory > 0
    assert {theory.quantity for theory in dimension.theory} >= {MEMORY, SITE_BYTES}
    assert len(dimension.sizes) >= 5


def test_the_largest_sizes_are_those_promised():
    largest = {name: max(dimension.sizes) for name, dimension in DIMENSIONS.items()}
    assert largest["participants"] == 100_000
    assert largest["sites"] == 200
    assert largest["secure-sum"] == 1_000
    assert largest["components"] == 200
    assert largest["features"] == 200_000


@pytest.mark.full
def test_memory_does_not_grow_with_participants():
    """Ten times as many that all are on disk, in processes of their own."""
    few, many = (measuring.in_fresh_processes("participants", size)[0] for size in (10_000, 100_000))
    assert many.memory < 2 * few.memory + 50e6


# Pages and command


def write_all(folder):
    for name, dimension in DIMENSIONS.items():
        rows = [row(size, cpu=size / 10, total_bytes=size * 100.0) for size in dimension.sizes]
        pages.write_csv(folder / f"scale-{name}.csv", rows)


def test_runs_are_read_as_they_were_written(tmp_path):
    rows = [row(10, cpu=1.25), row(20, cpu=2.5, total_bytes=123456789.0)]
    pages.write_csv(tmp_path / "scale.csv", rows)
    assert pages.read_csv(tmp_path / "scale.csv") == rows


def test_pages_are_drawn_again_from_the_csv(tmp_path, capsys):
    write_all(tmp_path)
    assert command.main(["--redraw", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "scale-participants.md").read_text()
    assert "| participants | processor time | 1e+04 s at 100,000 | 1.00 ± 0.00 | 1 |" in page
    assert "| 100,000 | 1e+04 s | 1 MB | 50 B |" in page
    assert (tmp_path / "scale-secure-sum.svg").stat().st_size > 1000
    assert "in total" in capsys.readouterr().out


def test_without_results_nothing_is_drawn(tmp_path, capsys):
    assert command.main(["sites", "--redraw", "--output", str(tmp_path)]) == 2
    assert "run the benchmark without --redraw" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_dimension_is_refused():
    done = python("-m", "benchmarks.scale", "nonsense")
    assert done.returncode == 2
    assert "invalid choice: 'nonsense'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_size_that_cannot_be_measured_is_an_error(capfd):
    assert command.main(["features", "--measure", "sites", "4"]) == 0
    with pytest.raises(Exception, match=r"features of size 7 could not be measured: exit code 1"):
        measuring.in_fresh_processes("features", 7)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(12.345, "s", "12.3 s"), (0.0123, "s", "12.3 ms"), (512, "B", "512 B"), (3.2e9, "B", "3.2 GB")],
)
def test_numbers_are_shown_with_their_unit(value, unit, text):
    assert pages.shown(value, unit) == text


def test_the_documentation_shows_what_was_measured():
    found = {
        name: pages.fits(pages.read_csv(RESULTS / f"scale-{name}.csv"), dimension)
        for name, dimension in DIMENSIONS.items()
    }
    shown = command.DOCUMENTED.read_text("utf-8").split(pages.BEGIN)[1].split(pages.END)[0].strip()
    assert shown == pages.exponents(found)
