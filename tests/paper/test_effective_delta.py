"""The figure on effective delta: its quick version, and the claims that its findings rest on."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from capedjica.privacy import paper
from paper.effective_delta import QUICK, Case, Setting, deltas, findings, main, measure

EXACT = ("exact_cape", "exact_cape_uniform", "exact_conv", "exact_pool")


def test_quick_version_writes_everything(tmp_path):
    main(["--quick", "--out", str(tmp_path / "results")])
    with (tmp_path / "results/effective_delta.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["panel"] for row in rows} == {"tau", "colluding"}
    assert (tmp_path / "results/effective_delta.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results/effective_delta.svg").read_text().lstrip().startswith("<?xml")
    assert json.loads((tmp_path / "results/effective_delta.json").read_text())["n_tau"] == QUICK.n_tau
    assert "Theorem 1" in (tmp_path / "RESULTS.md").read_text()


def test_cases_are_those_of_the_paper():
    setting = Setting()
    assert setting.cases == (Case(1000, 10, 1e-3), Case(5000, 30, 0.1))
    assert (setting.least_tau, setting.most_tau) == (1e-2, 1e2)
    assert [case.most_colluding for case in setting.cases] == [3, 9]


@pytest.mark.parametrize("case", QUICK.cases)
@pytest.mark.parametrize("factor", [0.3, 1.0])
def test_exact_delta_is_that_of_the_joint_covariance(case, factor):
    """The adversary's view built entry by entry, and the two tails of its log-likelihood ratio."""
    row = deltas("tau", case, case.tau * factor, case.most_colluding)
    s, honest = case.n_sites, case.n_sites - case.most_colluding
    tau2 = row.tau**2
    # Messages of the honest sites, then the sum of their masks; all else the adversary knows.
    covariance = np.diag([tau2 * (1 + 1 / s)] * honest + [tau2 * honest])
    covariance[-1, :-1] = covariance[:-1, -1] = tau2
    moved = np.zeros(honest + 1)
    moved[0] = s / case.n_samples
    mu = math.sqrt(moved @ np.linalg.solve(covariance, moved))
    lost, epsilon = case.epsilon / mu, case.epsilon
    expected = norm.sf(lost - mu / 2) - math.exp(epsilon) * norm.sf(lost + mu / 2)
    assert row.exact_cape == pytest.approx(expected, rel=1e-6)


def test_exact_curves_are_in_order_and_the_formulas_are_not():
    rows = [row for row in measure(QUICK) if row.exact_pool > 1e-300]
    assert all(row.exact_pool <= row.exact_cape_uniform <= row.exact_conv * (1 + 1e-9) for row in rows)
    assert all(row.exact_cape_uniform <= row.exact_cape * (1 + 1e-9) for row in rows)
    assert any(row.paper_cape < row.paper_pool for row in rows)


def test_formula_stops_where_it_is_stated():
    case = QUICK.cases[0]
    assert math.isfinite(deltas("colluding", case, case.tau, 3).paper_cape)
    assert math.isnan(deltas("colluding", case, case.tau, 4).paper_cape)


def test_all_others_colluding_leaves_conventional():
    case = QUICK.cases[1]
    row = deltas("colluding", case, case.tau, case.n_sites - 1)
    assert row.exact_cape == pytest.approx(row.exact_conv)
    assert row.exact_cape_uniform == pytest.approx(row.exact_conv)


def test_findings_follow_the_numbers():
    rows = measure(QUICK)
    small, large = findings(QUICK, rows)[:4], findings(QUICK, rows)[4:]
    assert [finding.holds for finding in small] == ["yes", "no", "yes", "in part"]
    assert [finding.holds for finding in large] == ["yes", "no", "no", "in part"]
    broken = next(row for row in rows if row.n_sites == 30 and row.exact_cape > max(row.paper_cape, 1e-12))
    assert paper.cape_delta(0.1, broken.tau, 5000, 30, 9) < broken.exact_cape


def test_findings_would_notice_a_broken_claim():
    rows = [replace(row, exact_cape=row.exact_conv * 2) for row in measure(QUICK)]
    assert findings(QUICK, rows)[0].holds == "no"
    rows = [replace(row, exact_cape=row.exact_pool / 2) for row in measure(QUICK)]
    assert findings(QUICK, rows)[1].holds == "yes"
