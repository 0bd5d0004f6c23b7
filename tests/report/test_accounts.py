"""Figures of privacy that a report shows: each is exact or on the safe side."""

import dataclasses
import html
import json
import math
import re
import shutil

import pytest

from capedjica.coordinator.run.report import run_findings
from capedjica.errors import InputError
from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.wording import round_up
from capedjica.report.accounts import (
    by_the_paper,
    release_rows,
    side_by_side,
    site_rows,
)
from capedjica.report.group import group_page


@pytest.fixture(scope="module")
def findings(tables):
    return run_findings(tables / "pixels")


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
    assert "any 1 of the 3 other sites" in findings.contract.adversary.against
    said = " ".join(findings.privacy.guarantee.rests_on)
    assert "No more than 1 of the 4" in said
    twice = gaussian_epsilon(2 * findings.privacy.mu, findings.privacy.delta)
    shown = float(re.search(r"at two sites, epsilon is ([\d.]+) and not 10\.", said)[1])
    assert twice <= shown <= 1.001 * twice
    assert run_findings(tables / "none").privacy.adversary.against == "no one"


def test_without_colluding_sites_none_is_said_to_be_covered(findings):
    contract, privacy = findings.contract, dataclasses.replace(findings.privacy, n_colluding=0)
    none = dataclasses.replace(contract.roster, n_colluding=0)
    page = group_page(
        dataclasses.replace(findings, contract=dataclasses.replace(contract, roster=none), privacy=privacy)
    )
    assert "every other site" not in page
    assert f"hold against {privacy.adversary.not_against}" in html.unescape(page)
    assert f"Against one curious site, epsilon is {round_up(privacy.curious_site_epsilon)}." in page
    assert privacy.curious_site_epsilon > privacy.epsilon
    assert "No site colludes with the aggregator" in page


def test_a_page_names_the_unit_and_what_is_not_covered(findings):
    sample = {"neighbour": "sample", "units_per_subject": 60}
    privacy = dataclasses.replace(findings.privacy, not_covered=("Lengths are <public>.",), **sample)
    changed = dataclasses.replace(
        findings, contract=dataclasses.replace(findings.contract, **sample), privacy=privacy
    )
    page = html.unescape(group_page(changed))
    assert "Each single time point is protected with" in page
    assert "Each participant" not in page
    assert f"up to 60 time points is protected only with epsilon {round_up(privacy.subject_epsilon)}" in page
    assert "at the level of time points" in page
    assert "What the guarantee does not cover" in page
    assert "<li>Lengths are <public>.</li>" in page
    assert "What the guarantee does not cover" not in group_page(findings)
    assert "Each participant (all of their data) is protected" in group_page(findings)


@pytest.mark.parametrize("run", ["none", "seeded"])
def test_a_run_that_protects_nobody_has_no_finite_cost(tables, run):
    findings = run_findings(tables / run)
    privacy = findings.privacy
    costs = [privacy.epsilon, privacy.mu, privacy.spent_epsilon, privacy.subject_epsilon]
    costs += [*privacy.site_epsilon.values(), *privacy.charged.values()]
    costs += [mu for release in privacy.releases for mu in release.site_mu.values()]
    costs += [one for site in site_rows(findings.contract, privacy) for one in (site.cap, site.spent)]
    costs += [kind.epsilon for kind in release_rows(findings.contract, privacy)]
    assert costs == [math.inf] * len(costs)
    written = json.loads((tables / run / "privacy.json").read_text())
    assert [written[name] for name in ("epsilon", "mu", "subject_epsilon", "spent_epsilon")] == [None] * 4
    assert written["against"] == "no one"


def test_a_privacy_json_from_before_is_read_as_of_subjects(tables, tmp_path):
    folder = shutil.copytree(tables / "pixels", tmp_path / "old")
    written = json.loads((folder / "privacy.json").read_text())
    assert written["neighbour"] == "subject"
    new = (
        *("neighbour", "units_per_subject", "subject_epsilon", "subject_mu", "against", "not_against"),
        *("curious_site_epsilon", "not_covered"),
    )
    old = {name: value for name, value in written.items() if name not in new}
    assert len(old) == len(written) - len(new)
    (folder / "privacy.json").write_text(json.dumps(old))
    assert run_findings(folder).privacy == run_findings(tables / "pixels").privacy
    assert run_findings(folder).privacy.neighbour == "subject"
    (folder / "privacy.json").write_text(json.dumps(written | {"neighbour": "site"}))
    with pytest.raises(InputError, match=r"privacy\.json is not a valid file of a run"):
        run_findings(folder)
