"""The figures on capeDJICA, small: everything is written, and the numbers are where they belong.

Ranges of gain indices rest on a dozen runs of each algorithm on these very data sets with other noise. They
reach about five standard deviations of that noise or more to either side (false alarms of about 1e-6 were the
tails Gaussian), and exclude what a broken method gives: about 0.3 to 0.7 where maps should be found, below
0.1 where noise should hide them.
"""

import csv
import json
import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from paper import spatial_maps, vary_delta, vary_epsilon, vary_subjects
from paper.shared.runs import Kept
from paper.shared.scores import (
    CAPE,
    CAPE_TUNED,
    CONVENTIONAL_TUNED,
    DJICA,
    DP_DJICA,
    LOCAL,
    LOCAL_TUNED,
    QUIET,
    SUBJECT,
    Score,
    account_handles,
    compare,
    score,
    strict_utility,
)

MODULES = {
    "vary_epsilon": vary_epsilon,
    "vary_subjects": vary_subjects,
    "vary_delta": vary_delta,
    "spatial_maps": spatial_maps,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All four, one after the other, on shared runs."""
    folder = tmp_path_factory.mktemp("figures")
    for module in MODULES.values():
        module.main(["--quick", "--out", str(folder / "results"), "--runs", str(folder / "runs")])
    return folder


def table(folder, name):
    with (folder / f"results/{name}.csv").open() as file:
        return list(csv.DictReader(file))


def gain(rows, algorithm, **place):
    (row,) = [
        row
        for row in rows
        if row["algorithm"] == algorithm and all(float(row[name]) == value for name, value in place.items())
    ]
    return float(row["gain_index"])


@pytest.mark.parametrize("name", MODULES)
def test_everything_is_written(folder, name):
    base = folder / f"results/{name}"
    assert base.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert base.with_suffix(".svg").read_text().lstrip().startswith("<?xml")
    assert base.with_suffix(".json").stat().st_size < 10_000
    assert f"python -m paper.{name}" in (folder / "RESULTS.md").read_text()


def test_runs_are_shared_between_figures(folder):
    """What two figures ask for is on disk once, and a second time nothing is made."""
    modules = MODULES.values()
    asked = [run for module in modules for run in module.runs(module.QUICK)]
    needed = {need for run in asked for need in run.needs}
    assert len(set(asked)) < len(asked)
    assert len(list((folder / "runs").glob("*.npz"))) == len(set(asked) | needed)
    assert all(run in Kept(folder / "runs") for run in asked)


# Algorithm, epsilon_i or total epsilon, range of the gain index (mean of two data sets).
RANGES = [
    (DJICA, {}, 0.05, 0.15),
    (CAPE, {"epsilon_i": 1.0}, 0.2, 0.8),
    (CAPE, {"epsilon_i": 1000.0}, 0.48, 0.55),
    (CAPE_TUNED, {"epsilon_i": 1.0}, 0.2, 0.95),
    (CAPE_TUNED, {"epsilon_i": 1000.0}, 0.05, 0.24),
    (LOCAL_TUNED, {"epsilon_i": 1.0}, 0.15, 0.95),
    (DP_DJICA, {"epsilon_i": 1000.0}, 0.48, 0.55),
    (CONVENTIONAL_TUNED, {"epsilon_i": 1000.0}, 0.05, 0.24),
    (QUIET, {}, 0.48, 0.55),
    (SUBJECT, {"epsilon": 1.0}, 0.1, 0.9),
    (SUBJECT, {"epsilon": 100.0}, 0.01, 0.07),
]


@pytest.mark.parametrize(("algorithm", "place", "low", "high"), RANGES)
def test_gain_indices_are_where_they_belong(folder, algorithm, place, low, high):
    assert low < gain(table(folder, "vary_epsilon"), algorithm, **place) < high


def test_gain_indices_of_the_other_figures(folder):
    """One data set each, so ranges are wider."""
    subjects, deltas = table(folder, "vary_subjects"), table(folder, "vary_delta")
    assert 0.01 < gain(subjects, SUBJECT, n_subjects=48.0) < 0.08
    assert gain(subjects, SUBJECT, n_subjects=24.0) < 0.25
    for delta in (1e-5, 1e-2):
        assert 0.01 < gain(deltas, SUBJECT, delta=delta) < 0.08
        assert 0.28 < gain(deltas, CAPE, delta=delta) < 0.34
        assert gain(deltas, CAPE_TUNED, delta=delta) < 0.25
    maps = {
        (row["algorithm"], int(row["n_subjects"])): float(row["map_correlation"])
        for row in table(folder, "spatial_maps")
    }
    assert maps[SUBJECT, 48] > 0.97
    assert maps[DJICA, 48] > 0.9


def test_accounts_are_in_order(folder):
    for row in table(folder, "vary_epsilon"):
        if row["algorithm"] in (CAPE, CAPE_TUNED, LOCAL):
            values = [float(row[name]) for name in ("exact_descent", "exact_with_pca", "guarantee")]
            assert values == sorted(values)
            assert float(row["paper_descent"]) < float(row["paper_with_pca"])
        if row["algorithm"] in (CAPE, CAPE_TUNED):  # what the aggregator sees costs more than the output
            assert float(row["exact_descent"]) > float(row["paper_descent"])


def test_parameters_name_no_folder(folder):
    text = (folder / "results/vary_epsilon.json").read_text()
    assert json.loads(text)["rows"][0]["data"]["n_subjects"] == 48
    assert "folder" not in text


def test_settings_are_those_of_the_paper():
    for row, subjects in zip(vary_epsilon.FULL.rows, (256, 1024), strict=True):
        data = row.data
        assert (data.n_subjects, data.n_components, data.n_sites) == (subjects, 20, 4)
        assert (data.n_timepoints, data.image_side) == (250, 30)
    assert 0.5 in vary_epsilon.FULL.rows[0].epsilons
    assert vary_delta.FULL.epsilons[0] == 0.5


def one(algorithm, gain_index, epsilon=math.nan, exact=50.0, guarantee=50.0, error=0.0, maps=0.9, gains=()):
    place = ("synthetic", 1024, 20, 4, algorithm, 1.0, 1e-5, epsilon, 2)
    accounts = (40.0, 41.0, exact, exact, guarantee)
    return Score(*place, gain_index, error, maps, 10, *accounts, 30.0, gains)


def of(gains, maps):
    """A row of some repeats."""
    return one(CAPE, fmean(gains), maps=maps, gains=tuple(gains))


def test_differences_are_taken_repeat_by_repeat():
    """Data sets that differ by 0.1 do not hide a difference of 0.03 in all of them."""
    worse, better = of((0.20, 0.30, 0.40), 0.5), of((0.17, 0.271, 0.369), 0.6)
    assert (compare(better, worse), compare(worse, better)) == ("better", "worse")
    shuffled = of((0.369, 0.17, 0.271), 0.6)
    assert compare(shuffled, worse) == "alike"


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_chance_alone_is_seldom_called_better(repeats):
    """Of 4,000 pairs that do not differ 5% are called better, give or take three and a half deviations.

    Two standard errors in place of Student's quantile would give 15%, 9% and 6% of them.
    """
    rng = np.random.default_rng(5)
    gains = 0.5 + 0.05 * rng.standard_normal((4000, 2, repeats))
    pairs = [[of(own, -fmean(own)) for own in pair] for pair in gains]
    verdicts = [compare(*pair, matters=False) for pair in pairs]
    assert 0.038 < verdicts.count("better") / 4000 < 0.062


def test_one_run_decides_nothing():
    assert compare(of((0.1,), 0.9), of((0.3,), 0.5)) == "undecided"
    assert compare(of((0.1, 0.1), 0.9), of((0.3,), 0.5)) == "undecided"


def test_a_smaller_gain_index_with_worse_maps_is_no_win():
    row, other = of((0.25, 0.25), 0.39), of((0.32, 0.33), 0.40)
    assert compare(row, other) == compare(other, row) == "alike"
    assert compare(replace(row, map_correlation=0.45), other) == "better"


def test_small_gain_indices_count_by_their_factor():
    """0.008 against 0.028 is a win, 0.300 against 0.310 is none unless size does not matter."""
    assert compare(of((0.008, 0.0081), 0.99), of((0.028, 0.0279), 0.98)) == "better"
    close = of((0.300, 0.301), 0.52), of((0.310, 0.311), 0.50)
    assert (compare(*close), compare(*close, matters=False)) == ("alike", "better")


def test_usable_by_luck_is_not_usable():
    ours = one(SUBJECT, 0.097, 5.0, math.nan, 5.0, error=0.015)
    rows = [one(CAPE, 0.3), one(CAPE_TUNED, 0.3)]
    assert "Nor, up to ε = 10, has" in strict_utility("here:", [*rows, ours], "epsilon").measured
    sure = replace(ours, gain_error=0.001)
    assert "What has it is" in strict_utility("here:", [*rows, sure], "epsilon").measured
    once = replace(ours, gain_index=0.05, gain_error=math.nan)
    assert "Nor, up to ε = 10, has" in strict_utility("here:", [*rows, once], "epsilon").measured


def test_legend_names_what_is_drawn():
    labels = [line.get_label() for line in account_handles([one(CAPE, 0.3)])]
    assert not any("DP-djICA" in label for label in labels)
    assert not any("∞" in label for label in labels)
    rows = [one(CAPE, 0.3, guarantee=math.inf), one(DP_DJICA, 0.3, exact=math.nan)]
    labels = [line.get_label() for line in account_handles(rows)]
    assert sum("DP-djICA" in label for label in labels) == 2
    assert any("∞" in label for label in labels)


def test_every_algorithm_has_the_repeats_of_its_figure(folder):
    for name in ("vary_epsilon", "vary_subjects", "vary_delta"):
        rows = table(folder, name)
        assert len({row["n_runs"] for row in rows}) == 1
        assert all(len(row["gains"].split()) == int(row["n_runs"]) for row in rows)


def test_finding_on_strict_guarantees_follows_the_numbers():
    ours = one(SUBJECT, 0.03, 1.0, math.nan, 1.0)
    poor = [one(CAPE, 0.3), one(CAPE_TUNED, 0.05, exact=600.0, guarantee=1e5), ours]
    finding = strict_utility("here:", poor, "epsilon")
    assert finding.holds == "no"
    assert "capeDJICA nowhere, tuned from an exact ε of 600" in finding.measured
    assert "0.030 (1)" in finding.measured
    assert strict_utility("here:", [one(CAPE, 0.05, guarantee=5.0), ours], "epsilon").holds == "yes"


def test_findings_would_notice_if_the_method_worked(folder):
    """With poor scores in its place capeDJICA's claims do not hold, with good ones they do.

    Both are written here: what a few noisy runs give is now and then the one, now and then the other.
    """
    setting, kept = vary_epsilon.QUICK, Kept(folder / "runs")
    rows = vary_epsilon.measure(setting, kept)
    poor = {"gain_index": 0.505, "gains": (0.5, 0.51), "map_correlation": 0.5}
    good = {"gain_index": 0.02, "gains": (0.02, 0.02), "map_correlation": 0.99, "guarantee": 1.0}

    def answers(changes):
        scores = [replace(row, **changes.get((row.algorithm, row.epsilon_i), {})) for row in rows]
        verdicts = [finding.holds for finding in vary_epsilon.findings(setting, scores)]
        return [verdicts[claim] for claim in (0, 1, 3, 6)]

    everywhere = {(CAPE, 1.0): poor, (CAPE, 1000.0): poor}
    assert "yes" not in answers(everywhere)
    assert answers({**everywhere, (CAPE, 1000.0): good}) == ["yes"] * 4


def test_score_averages_and_has_a_standard_error(folder):
    setting, kept = vary_epsilon.QUICK, Kept(folder / "runs")
    cell, repeats = vary_epsilon.cells(setting, setting.rows[0])[0], setting.rows[0].repeats
    row = score(cell, repeats, kept)
    values = [kept.load(run).numbers["gain_index"] for run in vary_epsilon.repeated(cell, repeats)]
    assert row.gain_index == pytest.approx(sum(values) / 2)
    assert row.gain_error == pytest.approx(abs(values[0] - values[1]) / 2)


def test_mosaic_shows_every_map_once():
    maps = np.arange(1, 8)[:, None, None] * np.ones((7, 3, 3))
    tile = spatial_maps.mosaic(-maps)
    assert np.count_nonzero(tile == -1) == 7 * 9
    assert np.isnan(tile).any()
