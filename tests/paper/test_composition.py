"""The figure on composition: its quick version, and its curves against other ways to compute them."""

import csv
import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from capedjica.privacy import gaussian_delta, paper
from paper.composition import (
    QUICK,
    Setting,
    findings,
    main,
    measure,
    notes,
    rdp_as_printed,
    theorem_2,
    total,
    useful_variance,
    view_factor,
)


def test_quick_version_writes_everything(tmp_path):
    main(["--quick", "--out", str(tmp_path / "results")])
    with (tmp_path / "results/composition.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert max(int(row["iterations"]) for row in rows) == 1000
    assert (tmp_path / "results/composition.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/composition.svg").read_text().lstrip().startswith("<?xml")
    assert (tmp_path / "results/composition.json").exists()
    assert "strong composition" in (tmp_path / "RESULTS.md").read_text()


def test_setting_is_that_of_the_paper():
    setting = Setting()
    assert (setting.variance, setting.delta, setting.most_iterations) == (0.25, 1e-5, 1000)


@pytest.mark.parametrize("iterations", [1, 30, 1000])
@pytest.mark.parametrize("variance", [0.25, 30_000.0])
def test_curves_against_other_ways(iterations, variance):
    row = total(QUICK, variance, iterations)
    # Exact: delta at that epsilon is the one asked for.
    assert gaussian_delta(math.sqrt(2 * iterations / variance), row.exact) == pytest.approx(1e-5, rel=1e-6)
    assert row.rdp == pytest.approx(paper.rdp_epsilon(iterations, variance, variance, 1e-5))
    assert row.moments == pytest.approx(row.rdp)
    assert row.exact < row.rdp < row.moments_as_printed * (1 + 1e-9)
    assert row.exact < min(row.strong, row.naive)
    assert row.exact < row.exact_aggregator


def test_rdp_against_google():
    """Its conversion is tighter than the paper's and its orders few: between exact and the paper's."""
    row = total(QUICK, useful_variance(QUICK), 1000)
    sigma = math.sqrt(useful_variance(QUICK))
    event = SelfComposedDpEvent(GaussianDpEvent(sigma), 2000)
    google = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert row.exact < google <= row.rdp


def test_useful_variance_gives_the_useful_epsilon():
    assert total(QUICK, useful_variance(QUICK), 1000).exact == pytest.approx(1.0)


def test_aggregator_sees_the_factor_of_the_paper_masks():
    assert view_factor(QUICK) == pytest.approx(4 / 5 * (1 + 4 / 3))


def test_rdp_as_printed_depends_on_the_learning_rate():
    """50 iterations at epsilon_i = 0.5: by hand, A/2 + sqrt(2 A ln(1/delta)) with A = 2 J / sigma^2."""
    spent = 2 * 50 * 0.25 / (2 * math.log(125))
    total = spent / 2 + math.sqrt(2 * spent * math.log(1e5))
    assert f"{total:.3g} with (τ/Δ)²" in rdp_as_printed(Setting()).measured
    assert "2.87e+06 as printed" in rdp_as_printed(Setting()).measured


def test_theorem_2_adds_up_and_is_wasteful():
    """At 100 releases each may have delta = 1e-7; the exact total is a tenth of what they add up to."""
    found = theorem_2(Setting())
    each = float(found.measured.partition("from ε = ")[2].partition(" ")[0])
    tau = 4 / 1024 / 0.5 * math.sqrt(2 * math.log(125))
    assert paper.cape_delta(each, tau, 1024, 4, 1) == pytest.approx(1e-7, rel=0.1)
    assert f"({100 * each:.3g}, 1e-05)" in found.measured
    assert theorem_2(replace(Setting(), epsilon_i=0.2)).holds == "yes"


def test_findings_follow_the_numbers():
    rows = measure(QUICK)
    assert [finding.holds for finding in findings(QUICK, rows)] == ["yes", "no", "no", "no", "in part"]
    assert "protects nobody" in notes(QUICK, rows)[0]
    upside_down = [replace(row, strong=0.0) for row in rows]
    assert findings(QUICK, upside_down)[0].holds == "no"
