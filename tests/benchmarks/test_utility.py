"""The benchmarks of utility: their quick versions run, their parts are what they say, the headline holds."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.utility.__main__ import CLAIMS, main
from benchmarks.utility.abide import MOST_EMPTY, halves, pooled_icas, read_abide
from benchmarks.utility.calibration import SIMULATED as SIMULATED_SEEDS
from benchmarks.utility.calibration import Seen, fitted
from benchmarks.utility.calibration import main as calibration
from benchmarks.utility.guided import TUNED_SETTING, UNSEEN_SETTING, difference
from benchmarks.utility.guided_external import (
    DOSENBACH,
    FEWEST,
    MIRRORED,
    SEITZMAN,
    SHIFTED,
    blobs,
    centres,
    match_rows,
    mirror_pairs,
    order_rows,
    published,
)
from benchmarks.utility.guided_more import KINDS, HalfClip, TwiceClip, children
from benchmarks.utility.methods import factors
from benchmarks.utility.number import visible
from benchmarks.utility.readable import HELD_OUT_SEED, every_other
from benchmarks.utility.shared.problems import DELTA, Size, synthetic
from benchmarks.utility.shared.report import RESULTS, read_csv
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, averaged, gain, standard_error
from benchmarks.utility.start import RandomStart, VarimaxAlone
from benchmarks.utility.synthetic import NOISE, QUICK
from capedjica import CapeDJICA
from capedjica.algorithms.ica.guided import GuidedMethod
from capedjica.algorithms.ica.maps.calibration import calibrated
from capedjica.algorithms.ica.template import Template
from capedjica.data import make_synthetic
from capedjica.metrics import normalized_gain_index

# Exact templates have a gain index of 0, and a number has none: these have tests of their own.
APART = ("guided-synthetic", "number")
SIMULATED = [name for name, claim in CLAIMS.items() if not claim.needs_folder and name not in APART]


def run(name: str, folder: Path, *more: str) -> list[Row]:
    assert main([name, *more, "--quick", "--seeds", "1", "--output", str(folder)]) == 0
    return read_csv(folder / f"utility-{name}.csv")


def check_files(name: str, folder: Path) -> None:
    base = folder / f"utility-{name}"
    with open(base.with_suffix(".csv"), newline="") as file:
        assert csv.DictReader(file).fieldnames == [field.name for field in fields(Row)]
    text = base.with_suffix(".md").read_text("utf-8")
    assert text.startswith(f"# {CLAIMS[name].title}")
    assert f"[Figure](utility-{name}.svg), [every run](utility-{name}.csv)." in text
    assert f"python -m benchmarks.utility {name}" in text
    assert "nan" not in text
    assert base.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(base.with_suffix(".svg")).getroot().tag.endswith("svg")


def check_rows(rows: list[Row]) -> None:
    for row in rows:
        assert (row.epsilon is None) == (row.mechanism == "none")
        assert 0 < row.gain_index < 1
        assert 0 < row.map_correlation <= 1
        assert row.seconds >= 0


@pytest.mark.parametrize("name", SIMULATED)
def test_quick_version(name: str, tmp_path: Path) -> None:
    rows = run(name, tmp_path)
    check_files(name, tmp_path)
    check_rows(rows)
    assert {row.n_subjects for row in rows} == {QUICK.n_subjects}
    # A random unmixing matrix of four components has about 0.4.
    assert min(row.gain_index for row in rows) < 0.1


def test_table_and_figure_can_be_drawn_again(tmp_path: Path) -> None:
    before = run("noise", tmp_path)
    page = tmp_path / "utility-noise.md"
    text = page.read_text("utf-8")
    page.unlink()
    assert run("noise", tmp_path, "--redraw") == before
    assert page.read_text("utf-8") == text


@pytest.mark.parametrize("name", CLAIMS)
def test_committed_pages_have_what_they_link_to(name: str) -> None:
    page = RESULTS / f"utility-{name}.md"
    if name == "spatial" and not page.exists():
        pytest.skip("simulates 1,000 brains five times, and has not run to its end yet")
    text = page.read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 2
    assert all((RESULTS / link).exists() for link in links)


def test_number_quick_version(tmp_path: Path) -> None:
    rows = run("number", tmp_path)
    check_files("number", tmp_path)
    quiet = [row for row in rows if row.epsilon == 30.0]
    assert len(quiet) == 2
    assert all(row.number is not None and row.near == (abs(row.number - 4) <= 2) for row in rows)
    assert any(row.visible == 4 and row.near for row in quiet)


def test_theory_lets_through_what_is_above_the_threshold() -> None:
    """Eight directions of 100: of twice the threshold all, of a little more some, of less none."""
    threshold = 0.03 / np.sqrt(2) * np.sqrt(100)
    means = [np.diag([height * threshold] * 8 + [0.0] * 92) for height in (4.0, 1.5, 0.9)]
    clear, near, hidden = (visible(mean, 8, 12, 0.03) for mean in means)
    assert clear == 8
    assert 0 < near < 8
    assert hidden == 0


def test_rows_made_before_an_interruption_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: Options) -> list[Task]:
        first, *_ = NOISE.tasks(options)
        return [first, Task(_interrupt, ())]

    monkeypatch.setitem(CLAIMS, "noise", replace(CLAIMS["noise"], tasks=interrupted))
    assert main(["noise", "--quick", "--seeds", "1", "--output", str(tmp_path)]) == 130
    assert read_csv(tmp_path / "utility-noise.csv")


def _interrupt() -> list[Row]:
    raise KeyboardInterrupt


@pytest.fixture
def abide(tmp_path: Path) -> Path:
    """A folder as of ABIDE: 64 simulated people of four sites, and one whose regions are mostly empty."""
    study = make_synthetic(4, 64, 4, 80, 12, random_state=0, noise=0.3)
    scans = {f"p{s}-{number}": scan for s, site in enumerate(study.sites) for number, scan in enumerate(site)}
    scans["p0-empty"] = np.where(np.arange(144) <= MOST_EMPTY, 0, scans["p0-0"]).astype(np.float32)
    np.savez(tmp_path / "timeseries.npz", **{name: scan.astype(np.float16) for name, scan in scans.items()})
    with open(tmp_path / "participants.tsv", "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["participant_id", "site", "diagnosis"])
        writer.writerows(
            [name, f"S{name[1]}", "control" if number % 2 else "autism"] for number, name in enumerate(scans)
        )
    return tmp_path


def test_abide_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("abide", tmp_path, str(abide))
    check_files("abide", tmp_path)
    check_rows([row for row in rows if row.method != "tanh ICA, other starts"])
    assert str(abide) not in (tmp_path / "utility-abide.md").read_text("utf-8")
    (private,) = [
        row.gain_index
        for row in rows
        if (row.mechanism, row.epsilon, row.setting, row.reference)
        == ("cape", 30.0, "all, 20 sites", "same method, no noise")
    ]
    assert private < 0.15


def mean_of(rows: list[Row], **wanted: object) -> Cell:
    (found,) = [
        cell for cell in averaged(rows) if all(getattr(cell, name) == value for name, value in wanted.items())
    ]
    return found


def test_guided_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("guided", tmp_path, str(abide))
    check_files("guided", tmp_path)
    text = (tmp_path / "utility-guided.md").read_text("utf-8")
    assert str(abide) not in text
    assert {row.n_subjects for row in rows} == {48}
    for setting in (TUNED_SETTING, UNSEEN_SETTING):
        private = partial(mean_of, rows, setting=setting, mechanism="cape", epsilon=30.0)
        exact = private(method="exact, own method: guided", reference="same method, no noise")
        assert exact.gain_index < 0.1
        assert exact.moved is not None
        assert private(method="own method: guided").map_correlation > 0.8
        alone = mean_of(rows, setting=setting, method="exact, pooled tanh: template alone")
        assert alone.gain_index == pytest.approx(0, abs=1e-6)


def test_external_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("guided-external", tmp_path, str(abide))
    check_files("guided-external", tmp_path)
    assert {row.n_subjects for row in rows} == {64}
    for source in (SEITZMAN, DOSENBACH):
        own = partial(mean_of, rows, setting=f"{source}, 4 networks", reference="pooled tanh ICA")
        # Published networks have nothing to do with simulated ones; without noise guidance leaves them.
        alone, free = own(method="external: template alone"), own(method="external: guided", mechanism="none")
        assert alone.map_correlation < 0.6 < 0.9 < free.map_correlation
    assert {row.method for row in rows if row.reference == "best match in the pooled ICA"} >= {"Visual"}


@pytest.mark.parametrize(("source", "networks"), [(SEITZMAN, 12), (DOSENBACH, 6)])
def test_published_networks_are_where_they_are_said_to_be(source: str, networks: int) -> None:
    """A network is largest near its own coordinates: vision behind, motion on top."""
    coordinates, positions = published(source), centres(200)
    assert len(coordinates) == networks
    assert min(map(len, coordinates.values())) >= FEWEST
    template = blobs(coordinates, positions)
    largest = dict(zip(template.names, positions[template.maps.argmax(axis=1)], strict=True))
    vision, motion = ("Visual", "SomatomotorDorsal") if source == SEITZMAN else ("occipital", "sensorimotor")
    assert largest[vision][1] < -60
    assert largest[motion][2] > 40


def test_a_network_is_its_own_best_match() -> None:
    template = blobs(published(DOSENBACH), centres(200))
    rows = match_rows("any", template, -template.maps[::-1].T, 1)
    assert [row.map_correlation for row in rows] == pytest.approx([1.0] * template.n_networks)


def test_order_of_regions_is_seen_in_the_data() -> None:
    """Series that are shared by near and by mirrored regions, with the columns in order and reversed."""
    positions = centres(200)
    folded = np.abs(positions) * [1, 0, 0] + positions * [0, 1, 1]
    waves = np.random.default_rng(0).standard_normal((300, 3, 40))
    phases = np.einsum("rx,txk->tkr", folded / 30, waves[:1])[0]
    scan = (waves[:, 0] @ np.cos(phases) + waves[:, 1] @ np.sin(phases)).astype(np.float32)
    scan -= scan.mean(axis=0)
    right = {row.method: row.map_correlation for row in order_rows({"a": [scan]}, positions)}
    wrong = {row.method: row.map_correlation for row in order_rows({"a": [scan[:, ::-1]]}, positions)}
    assert right[MIRRORED] > 0.8 > 0.3 > max(right[SHIFTED], wrong[MIRRORED])
    assert right["0 to 20 mm"] > 0.5 > right["60 to 80 mm"]
    left, other = mirror_pairs(positions)
    assert len(left) > 30
    assert np.all(positions[left, 0] < 0)
    assert np.all(positions[other, 0] > 0)


def test_denoised_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("denoised", tmp_path, str(abide))
    check_files("denoised", tmp_path)
    for row in rows:
        if row.method == "gain":
            raw, better = (
                mean_of(rows, setting=row.setting, epsilon=row.epsilon, method=method).map_correlation
                for method in ("raw", "denoised")
            )
            assert row.map_correlation == pytest.approx(better - raw, abs=1e-5)
            assert row.map_correlation == 0 or row.setting != "ABIDE, every other site"
    assert mean_of(rows, setting="synthetic", method="raw", epsilon=30.0).map_correlation > 0.8


def test_stability_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("stability", tmp_path, str(abide))
    check_files("stability", tmp_path)
    assert all(0 <= row.map_correlation <= 1 for row in rows if row.method == "predicted")
    said, true = (
        mean_of(rows, setting="synthetic", method=method, epsilon=30.0).map_correlation
        for method in ("predicted", "actual")
    )
    assert said == pytest.approx(true, abs=0.1)


@pytest.mark.parametrize("constants", [(0.3, 0.5, 0.4), (0.3, 0.9, 0.0)])
def test_constants_are_found_again_in_what_they_predict(constants: tuple[float, float, float]) -> None:
    rng, cells = np.random.default_rng(0), []
    for least in (0.7, 0.75, 0.8, 0.85, 0.9):
        drawn, turned = rng.uniform(least, 1.0, 12), rng.uniform(least, 1.0, 12)
        actual = calibrated(drawn, turned, constants)
        cells.append([Seen(drawn, turned, np.ones(12, dtype=bool), actual)])
    assert fitted(cells, "subject" if constants[2] else "spatial") == pytest.approx(constants, abs=0.01)


def test_constants_are_fitted_on_other_data_than_predictions_are_compared_with(abide: Path) -> None:
    sites = read_abide(abide)
    ours, others = (set(every_other(sites, first)) for first in (True, False))
    assert ours | others == set(sites)
    assert not ours & others
    assert HELD_OUT_SEED not in SIMULATED_SEEDS.values()


def test_calibration_quick_version(abide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibration([str(abide), "--quick"]) == 0
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert {name: len(found.split(", ")) for name, found in lines.items()} == {
        "subject": 3,
        "spatial": 3,
        "guided": 1,
    }


def test_bad_templates_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("guided-bad", tmp_path, str(abide))
    check_files("guided-bad", tmp_path)
    by_random = mean_of(rows, method="random maps: guided", mechanism="cape", epsilon=30.0)
    assert by_random.unsupported is not None
    assert by_random.untold is not None
    # Of 48 people this cannot be told of all networks, but none of them has support.
    assert by_random.unsupported + by_random.untold == 4
    assert mean_of(rows, method="random maps: guided", mechanism="none").unsupported == 4
    assert mean_of(rows, method="30 people of one site: guided", mechanism="none").unsupported == 0
    assert mean_of(rows, method="random maps: group maps", reference="the template itself").n_rows == 1


def test_children_are_those_of_public_sites(abide: Path) -> None:
    assert children(abide, ("s0",)) == {}
    table = abide / "participants.tsv"
    lines = table.read_text("utf-8").splitlines()
    ages = ["age", *(str(8 + number % 8) for number in range(len(lines) - 1))]
    table.write_text("\n".join(f"{line}\t{age}" for line, age in zip(lines, ages, strict=True)), "utf-8")
    assert {name: len(scans) for name, scans in children(abide, ("s0", "s2")).items()} == {"s0": 8, "s2": 8}


def test_ablation_quick_version(abide: Path, tmp_path: Path) -> None:
    rows = run("guided-ablation", tmp_path, str(abide))
    check_files("guided-ablation", tmp_path)
    alone = mean_of(rows, method="support alone", epsilon=3.0)
    assert alone.gain_index == pytest.approx(mean_of(rows, method="own method: template alone").gain_index)
    assert alone.n_iter == 0
    assert mean_of(rows, method="as it is", epsilon=None).n_iter > 1


def test_variants_differ_from_the_method_in_what_they_say() -> None:
    template = Template.of(np.eye(4, 9))
    clips = {
        kind: kind(template, 80, 0.001).stages()[-1].query.clip
        for kind in (GuidedMethod, HalfClip, TwiceClip)
    }
    assert clips[HalfClip] * 2 == clips[GuidedMethod] == clips[TwiceClip] / 2
    for kind in KINDS.values():
        assert sum(stage.share for stage in kind(template, 80, 0.001).stages()) == pytest.approx(1)


def test_guided_synthetic_quick_version(tmp_path: Path) -> None:
    rows = run("guided-synthetic", tmp_path)
    check_files("guided-synthetic", tmp_path)
    for setting in ("compact maps", "scattered maps"):
        own = partial(mean_of, rows, setting=setting)
        perturbed = own(method="truth and half as much of other smooth maps: template alone")
        guided = own(method="truth and half as much of other smooth maps: guided", epsilon=30.0)
        assert guided.gain_index < perturbed.gain_index / 2
        assert own(method="the truth: template alone").gain_index < 0.01


def test_differences_have_the_bound_of_their_draws() -> None:
    runs = replace(cell("guided", "cape", 0.10), gain_error=0.01, n_rows=20)
    template = replace(cell("template", "none", 0.11), gain_error=float("nan"), n_rows=1)
    gap = difference(runs, template)
    assert gap.gain_index == pytest.approx(-0.01)
    # The 95% point of the t-distribution with 19 degrees of freedom.
    assert gap.upper == pytest.approx(-0.01 + 1.7291 * 0.01, abs=1e-5)
    still = difference(replace(runs, gain_error=0.0), template)
    assert still.upper == still.gain_index


def test_abide_is_skipped_where_it_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["abide", str(tmp_path), "--output", str(tmp_path / "results")]) == 0
    assert "skipped" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_only_those_with_enough_regions_are_enrolled(abide: Path) -> None:
    sites = read_abide(abide)
    assert {name: len(site) for name, site in sites.items()} == {f"s{s}": 16 for s in range(4)}
    assert all(np.abs(scan.mean(axis=0)).max() < 1e-4 for site in sites.values() for scan in site)


def test_halves_are_a_partition(abide: Path) -> None:
    sites = read_abide(abide)
    first, second = halves(sites, seed=0)
    for name, scans in sites.items():
        parts = {id(scan) for scan in first[name]} | {id(scan) for scan in second[name]}
        assert parts == {id(scan) for scan in scans}
        assert len(first[name]) == len(second[name]) == 8


def test_pooled_ica_finds_the_sources() -> None:
    problem = synthetic(0, replace(QUICK, n_subjects=128, with_basis=False))
    best, *others = pooled_icas(problem.scans, problem.n_components)
    assert gain(best, problem.mixing) < 0.05
    sources = np.concatenate(problem.scans) @ best.T
    assert np.cov(sources.T) == pytest.approx(np.eye(4), abs=0.02)
    assert len(others) == 3


def test_problem_is_that_of_make_synthetic() -> None:
    size = replace(QUICK, noise=0.5, with_basis=False)
    problem, study = synthetic(3, size), make_synthetic(4, 64, 4, 80, 12, random_state=3, noise=0.5)
    assert np.array_equal(problem.mixing, study.mixing)
    for ours, theirs in zip(problem.features.values(), study.sites, strict=True):
        assert [scan.shape for scan in ours] == [scan.shape for scan in theirs]
        assert all(np.allclose(a, b - b.mean(axis=0), atol=1e-4) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("mechanism", ["cape", "pooled", "conventional", "local"])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_method_is_what_the_estimator_chooses(mechanism: str, epsilon: float) -> None:
    """Iterations, shares and clips of the benchmark are those that users get."""
    study = make_synthetic(4, 64, 4, 80, 12, random_state=0)
    model = CapeDJICA(4, epsilon, DELTA, mechanism=mechanism, image_shape=(12, 12), scan_length=80)
    model.fit(study.sites)
    method = synthetic(0, QUICK).method(epsilon, mechanism)
    assert model.n_iter_ == method.n_rotations
    assert [release.share for release in method.stages()] == pytest.approx(method.shares)


def test_gain_does_not_depend_on_the_scale_of_sources() -> None:
    rng = np.random.default_rng(0)
    unmixing, mixing = rng.standard_normal((4, 9)), rng.standard_normal((9, 4))
    scaled = np.diag([1.0, -3.0, 20.0, 0.1]) @ unmixing
    assert gain(scaled, mixing) == pytest.approx(gain(unmixing, mixing), rel=1e-12)
    assert gain(np.eye(4), np.eye(4)[[2, 0, 3, 1]]) == normalized_gain_index(np.eye(4)) == 0


def test_varimax_alone_spends_everything_before_the_rotations() -> None:
    method = synthetic(0, QUICK).method(1.0, "cape", VarimaxAlone)
    assert len(method.stages()) == 3
    assert sum(stage.share for stage in method.stages()) == pytest.approx(1)


def test_random_start_gets_there_without_varimax() -> None:
    problem = synthetic(0, replace(QUICK, n_subjects=128))
    unmixing, n_iter = problem.analyse(100.0, "pooled", RandomStart)
    assert n_iter == problem.method(100.0, "pooled").n_rotations
    assert gain(unmixing, problem.mixing) < 0.05


def cell(method: str, mechanism: str, value: float) -> Cell:
    return Cell("synthetic", 64, method, mechanism, 1.0, "truth", value, 0.0, 0.9, 0.0, 10, 1.0, 3)


def test_factors_compare_with_the_best_other() -> None:
    ours, others = cell("subject", "cape", 0.02), [cell("paper", "cape", 0.3), cell("subject", "local", 0.06)]
    assert factors([ours, *others]) == {(64, 1.0): pytest.approx(3)}
    poor = [cell("subject", "cape", 0.3), cell("paper", "cape", 0.31)]
    assert factors(poor) == {}


def test_means_and_standard_errors() -> None:
    rows = [
        Row("a", 64, "subject", "cape", 1.0, "truth", seed, value, 0.9, 5, seconds)
        for seed, (value, seconds) in enumerate([(0.1, 1.0), (0.2, 9.0), (0.3, 2.0)])
    ]
    (mean,) = averaged(rows)
    assert (mean.gain_index, mean.seconds, mean.n_rows) == (pytest.approx(0.2), 2.0, 3)
    assert mean.gain_error == pytest.approx(0.1 / np.sqrt(3))
    assert np.isnan(standard_error([0.1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "invalid choice"),
        (["noise", "--seeds", "0"], "--seeds must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_redrawing_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", "--redraw", "--output", str(tmp_path)]) == 2
    assert "run the benchmark without --redraw" in capsys.readouterr().out.replace("\n", " ")


def mean_gain(size: Size, epsilon: float, seeds: range) -> float:
    return float(
        np.mean([gain(p.analyse(epsilon)[0], p.mixing) for p in (synthetic(s, size) for s in seeds)])
    )


def test_headline_at_half_the_size() -> None:
    """Runs have 0.0195 with a standard deviation of 0.0015 at epsilon 2, so the odds of an alarm are nil."""
    half = Size(n_subjects=512, n_components=10, n_timepoints=200, image_side=24)
    assert mean_gain(half, 2.0, range(2)) <= 0.03
    # Four times the noise must show.
    assert mean_gain(half, 0.5, range(1)) > 0.03


@pytest.mark.full
@pytest.mark.parametrize(("epsilon", "bound"), [(1.0, 0.10), (2.0, 0.06), (3.0, 0.04)])
def test_headline(epsilon: float, bound: float) -> None:
    assert mean_gain(Size(), epsilon, range(3)) <= bound
