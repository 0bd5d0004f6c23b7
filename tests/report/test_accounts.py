"""Figures of privacy that a report shows: each is exact or on the safe side."""

import math
import re

import numpy as np
import pytest
from scipy.stats import norm

from capedjica.privacy import gaussian_epsilon
from capedjica.report.accounts import (
    assumptions,
    best_guess,
    by_the_paper,
    from_whom,
    odds,
    release_rows,
    side_by_side,
    site_rows,
)
from capedjica.study.reporting import run_findings


@pytest.fixture(scope="module")
def findings(tables):
    return run_findings(tables / "pixels")


def test_the_best_guess_is_that_of_the_best_test():
    for mu in (1e-3, 0.1, 0.5, 1.0, 2.0, 5.0):
        assert norm.cdf(mu / 2) <= best_guess(mu, 1e-5) <= norm.cdf(mu / 2) + 1e-11
    assert best_guess(math.inf, 1e-5) == 1


def test_an_attack_is_right_as_often_as_the_report_says_and_not_more_or_less():
    """Guess which of two scans somebody had from noise of known size; false alarms below 1e-8 (6 sigma)."""
    n, mu = 400_000, 1.2
    rng = np.random.default_rng(5)
    other = rng.integers(2, size=n)
    right = np.mean((rng.standard_normal(n) + mu * other > mu / 2) == other)
    sigma = 0.5 / math.sqrt(n)
    assert abs(right - best_guess(mu, 1e-5)) < 6 * sigma
    for scale in (0.7, 1.3):
        assert abs(right - best_guess(mu * scale, 1e-5)) > 6 * sigma


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.9, 2.0, 3.3, 10.0])
def test_the_factor_in_words_is_not_below_the_true_one(epsilon):
    factor = float(re.search(r"factor of more than ([\d.,]+), but", odds(epsilon, 1e-5))[1].replace(",", ""))
    assert math.exp(epsilon) <= factor <= 1.02 * math.exp(epsilon) + 1
    assert "1 in 100,000" in odds(epsilon, 1e-5)
    assert "next to nobody" in odds(14.0, 1e-5)


def test_accountants_add_up_what_was_released(findings):
    totals = side_by_side(findings.privacy)
    assert totals["exact"] == pytest.approx(findings.privacy.spent_epsilon, rel=1e-6)
    assert totals["exact"] <= findings.privacy.epsilon
    assert totals["exact"] < totals["rdp"] == totals["moments"] < totals["naive"]


def test_the_papers_formulas_are_told_in_the_right_units(findings):
    """mu^2 is S/S_H/sigma^2 here; the paper's is known for four sites of which one colludes."""
    said = by_the_paper(findings.contract, findings.privacy)
    exact = side_by_side(findings.privacy)["exact"]
    square = findings.privacy.spent_mu**2 / (4 / 3)
    for name, factor in {"output": 1.0, "theorem_1": 1.475, "paper_masks": 1.8667}.items():
        assert said[name] == pytest.approx(
            gaussian_epsilon(math.sqrt(factor * square), findings.privacy.delta), rel=1e-3
        )
    assert said["output"] < exact < said["theorem_1"] < said["paper_masks"]


def test_the_papers_formulas_are_mute_without_its_protocol(tables):
    found = run_findings(tables / "none")
    assert by_the_paper(found.contract, found.privacy) == {}


def test_rows_of_sites_and_releases_add_up(findings):
    sites, kinds = (
        site_rows(findings.contract, findings.privacy),
        release_rows(findings.contract, findings.privacy),
    )
    assert [site.people for site in sites] == list(findings.contract.subjects)
    assert sum(kind.times for kind in kinds) == len(findings.privacy.releases) == sites[0].releases
    assert sites[0].numbers == sum(kind.times * kind.numbers for kind in kinds)
    assert sites[0].kilobytes == sites[0].numbers * 8 / 1000
    assert max(site.spent for site in sites) == pytest.approx(findings.privacy.spent_epsilon, rel=1e-12)
    together = math.hypot(*(release.mu for release in findings.privacy.releases))
    assert gaussian_epsilon(together, findings.privacy.delta) >= max(kind.epsilon for kind in kinds)


def test_who_is_an_adversary_and_what_is_assumed(findings, tables):
    assert "any 1 of the 4 sites" in from_whom(findings.contract)
    assert any("No more than 1 of the 4" in words for words in assumptions(findings.contract))
    twice = gaussian_epsilon(2 * findings.privacy.mu, findings.privacy.delta)
    shown = float(
        re.search(r"epsilon ([\d.]+) in place of 10\.", " ".join(assumptions(findings.contract)))[1]
    )
    assert twice <= shown <= 1.001 * twice
    assert from_whom(run_findings(tables / "none").contract) == "Nobody."
