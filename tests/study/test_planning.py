"""The planner's numbers follow from the privacy core, and its answers answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, gaussian_epsilon, gaussian_mu, paper
from capedjica.privacy.statement import round_up
from capedjica.study.planning import (
    Setting,
    paper_stages,
    plan_for_epsilon,
    plan_for_noise,
    spread_subjects,
)

PAPER = Setting(subjects=(256,) * 4)


def test_total_is_the_epsilon_asked_for_and_never_more():
    for epsilon in (0.1, 1.0, 2.0, 30.0):
        for mask in ("uniform", "paper"):
            total = plan_for_epsilon(Setting(subjects=(26, 175, 60, 31), mask=mask), epsilon).epsilon["exact"]
            assert epsilon * (1 - 1e-9) < total <= epsilon


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(2, 400), min_size=3, max_size=9),
    st.floats(0.1, 20),
    st.sampled_from(["uniform", "paper"]),
)
def test_noise_and_mu_of_each_stage_belong_together(subjects, epsilon, mask):
    """Recompute mu from the printed noise with Cape, every site contributing equally."""
    setting = Setting(subjects=tuple(subjects), mask=mask)
    for stage in plan_for_epsilon(setting, epsilon).stages:
        local = [stage.noise**2 / len(subjects) / w**2 for w in setting.weights]
        masks = math.inf if mask == "uniform" else [len(subjects) * x for x in local]
        cape = Cape(masks, local, setting.weights)
        shifts = [stage.spread * stage.clip / m for m in subjects]
        assert cape.mu(shifts).max() == pytest.approx(stage.mu, rel=1e-9)


def test_the_papers_setting():
    """Golden: M=1024, S=4, R=20, D=900, J=1000, epsilon_i=0.5, delta=1e-5."""
    plan = plan_for_noise(PAPER, 0.5)
    w = plan.stages[1]
    assert w.noise == pytest.approx(60 / 1024 / 0.5 * math.sqrt(2 * math.log(125)))
    assert plan.epsilon["exact"] == pytest.approx(69.18, abs=0.01)
    assert plan.epsilon["rdp"] == pytest.approx(74.42, abs=0.01)
    assert plan.epsilon_gradient["exact"] < plan.epsilon["exact"]
    assert plan.stages[0].noise == pytest.approx(math.sqrt(2) / 1024 / 0.5 * math.sqrt(2 * math.log(125)))
    assert math.isnan(plan.paper_says["theorem_2_total"])
    assert plan.as_dict()["paper_says"]["theorem_2_total"] is None


def test_what_the_papers_formulas_say_of_its_setting():
    """By hand, from tau/Delta = sqrt(2 log 125)/0.5: J = 1000 of each gradient, rho = 0.015/ln 20."""
    says, ratio2, log = plan_for_noise(PAPER, 0.5).paper_says, 8 * math.log(125), math.log(1e5)
    a = 2 * 1000 / ratio2
    assert says["rdp_corrected_output_only"] == pytest.approx(a / 2 + math.sqrt(2 * a * log))
    printed = says["moments_as_printed"]
    assert printed**2 / (2 * a) - printed + a / 8 - log == pytest.approx(0, abs=1e-9)
    rho2 = (0.015 / math.log(20)) ** 2
    a = sum(1000 / (rho2 * ratio2 * 2 * clip / 1024) for clip in (30, math.sqrt(30)))
    assert says["rdp_as_printed"] == pytest.approx(a / 2 + math.sqrt(2 * a * log))


def test_one_subject_can_move_each_statistic_as_far_as_is_planned_for():
    """Opposite vectors of norm C are 2C apart; second moments of orthogonal samples of norm 1, sqrt 2."""
    pca, of_w, of_b = paper_stages(PAPER)
    first, second = np.eye(2)
    assert pca.clip == np.linalg.norm(np.outer(first, first)) == 1
    moved = np.linalg.norm(np.outer(first, first) - np.outer(second, second))
    assert pca.spread * pca.clip == pytest.approx(moved)
    assert (of_w.spread, of_w.clip, of_b.spread, of_b.clip) == (2, 30, 2, math.sqrt(30))
    assert [stage.n_values for stage in (pca, of_w, of_b)] == [900 * 901 // 2, 400, 20]


def test_paper_masks_cost_what_the_comparison_says():
    uniform, masked = PAPER, replace(PAPER, mask="paper")
    says = plan_for_noise(uniform, 0.5).comparison["cape, paper masks"]
    assert plan_for_noise(masked, 0.5).epsilon["exact"] == pytest.approx(says["epsilon_at_equal_noise"])
    noise = [plan_for_epsilon(setting, 2.0).stages[1].noise for setting in (uniform, masked)]
    assert (noise[1] / noise[0]) ** 2 == pytest.approx(says["variance_at_equal_epsilon"])
    assert says["variance_at_equal_epsilon"] == pytest.approx(1.4)


def test_both_directions_agree():
    there = plan_for_noise(PAPER, 0.5)
    shares = [s.n_releases * s.mu**2 for s in there.stages]
    back = plan_for_epsilon(PAPER, there.epsilon["exact"])
    assert sum(shares) == pytest.approx(sum(s.n_releases * s.mu**2 for s in back.stages))


def test_comparison_is_what_the_mechanisms_cost():
    plan = plan_for_epsilon(PAPER, 2.0)
    mu = gaussian_mu(2.0, 1e-5)
    assert plan.comparison["cape, uniform masks"]["epsilon_at_equal_noise"] == pytest.approx(2.0)
    for name, factor in {"pooled": 3 / 4, "conventional": 3, "local, largest site": 12}.items():
        row = plan.comparison[name]
        assert row["variance_at_equal_epsilon"] == pytest.approx(factor)
        assert row["epsilon_at_equal_noise"] == pytest.approx(gaussian_epsilon(mu * math.sqrt(factor), 1e-5))


def test_subjects_needed_reach_their_epsilon_at_the_same_noise():
    plan = plan_for_epsilon(PAPER, 2.0)
    for row in plan.subjects_needed:
        scaled = gaussian_mu(2.0, 1e-5) * 1024 / row["subjects"]
        assert gaussian_epsilon(scaled, 1e-5) <= row["epsilon"] * (1 + 1e-9)
        fewer = gaussian_mu(2.0, 1e-5) * 1024 / (row["subjects"] - 1)
        assert gaussian_epsilon(fewer, 1e-5) > row["epsilon"]


def test_one_more_site_equals_planning_with_it():
    plan = plan_for_epsilon(PAPER, 2.0)
    larger = Setting(subjects=(256,) * 5, n_colluding=1)
    noise = plan_for_epsilon(larger, 2.0).stages[0].noise / plan.stages[0].noise
    assert plan.one_more_site["noise_at_equal_epsilon"] == pytest.approx(noise)
    assert plan_for_epsilon(larger, plan.one_more_site["epsilon_at_equal_noise"]).stages[
        0
    ].noise == pytest.approx(plan.stages[0].noise)


def test_more_colluders_cost_more_and_match_a_plan_of_their_own():
    plan = plan_for_epsilon(Setting(subjects=(50,) * 10), 2.0)
    epsilons = [row["epsilon"] for row in plan.colluding]
    assert epsilons == sorted(epsilons)
    for row in plan.colluding:
        other = plan_for_epsilon(Setting(subjects=(50,) * 10, n_colluding=row["n_colluding"]), row["epsilon"])
        assert other.stages[0].noise == pytest.approx(plan.stages[0].noise)
        assert 2 * row["least_threshold"] > 10 + row["n_colluding"] >= 2 * (row["least_threshold"] - 1)
        assert row["default_threshold_allows"] == (row["n_colluding"] <= 3)


def test_two_sites_are_told_that_they_gain_nothing():
    plan = plan_for_epsilon(Setting(subjects=(50, 50)), 2.0)
    assert "nothing is gained" in plan.warnings[0]
    assert plan.comparison["conventional"]["variance_at_equal_epsilon"] == pytest.approx(1)


def test_a_plan_without_colluding_sites_is_warned_of_curious_ones():
    plan = plan_for_epsilon(Setting(subjects=(50,) * 4, n_colluding=0), 2.0)
    assert "curious site" in plan.warnings[0]
    assert plan.colluding[0]["n_colluding"] == 0
    assert plan.colluding[0]["epsilon"] == pytest.approx(2.0)


def test_theorem_2_is_theorem_1_at_its_share_of_delta():
    plan = plan_for_epsilon(Setting(subjects=(50,) * 30), 0.5)
    each = plan.paper_says["theorem_1_per_release"]
    w = plan.stages[1]
    tau, per_release = w.noise / (w.spread * w.clip / 1500), 1e-5 / 2000
    assert paper.cape_delta(each, tau, 30, 30, 9) == pytest.approx(per_release, rel=1e-6)
    assert plan.paper_says["theorem_2_total"] == pytest.approx(2000 * each)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(math.log(1e-9), math.log(1e9)),
    st.sampled_from([1e-300, 1e-12, 1e-5, 0.1]),
    st.integers(1, 10**9),
    st.sampled_from([plan_for_epsilon, plan_for_noise]),
)
def test_every_budget_has_a_plan(log_epsilon, delta, n_iterations, make):
    setting = Setting(subjects=(40, 3, 10**6), delta=delta, n_iterations=n_iterations)
    epsilon = min(1e9, math.exp(log_epsilon))
    plan = make(setting, epsilon)
    if make is plan_for_epsilon:
        assert plan.epsilon["exact"] <= epsilon
    assert min(plan.epsilon.values()) >= plan.epsilon["exact"] * (1 - 1e-12)


def test_subjects_are_spread_evenly():
    assert spread_subjects([10], 4) == (3, 3, 2, 2)
    assert spread_subjects([5, 6, 7], 3) == (5, 6, 7)


@given(st.floats(1e-12, 1e12), st.integers(2, 6))
def test_rounding_never_understates(value, digits):
    assert float(round_up(value, digits)) >= value * (1 - 1e-15)
    assert float(round_up(value, digits)) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Setting(subjects=(5,)), "sites must be at least 2, got 1"),
        (lambda: Setting(subjects=(5, 0)), "subjects of site 1 must be a whole number of at least 1, got 0"),
        (
            lambda: Setting(subjects=(5, 5), n_components=1),
            "components must be a whole number of at least 2, got 1",
        ),
        (
            lambda: Setting(subjects=(5, 5), n_features=10),
            "components must be at most the features, 10; got 20",
        ),
        (
            lambda: Setting(subjects=(5, 5), n_iterations=0),
            "iterations must be a whole number of at least 1, got 0",
        ),
        (lambda: Setting(subjects=(5, 5), delta=1), "delta must lie strictly between 0 and 1, got 1"),
        (lambda: Setting(subjects=(5, 5), mask="none"), "mask must be 'uniform' or 'paper', got 'none'"),
        (
            lambda: Setting(subjects=(5, 5), n_colluding=2),
            "n_colluding must be less than the number of sites, 2",
        ),
        (lambda: spread_subjects([3], 4), "subjects must be a whole number of at least 4, got 3"),
        (lambda: spread_subjects([3, 4], 3), "subjects must be one number or one per site, 3; got 2 numbers"),
        (lambda: spread_subjects([3], 1), "sites must be a whole number of at least 2, got 1"),
        (lambda: plan_for_epsilon(PAPER, 0), "epsilon must be a finite number above 0, got 0"),
        (lambda: plan_for_noise(PAPER, -1), "epsilon_per_iteration must be a finite number above 0, got -1"),
        (lambda: plan_for_epsilon(PAPER, 1e10), r"epsilon must lie between 1e-09 and 1e\+09, got 1"),
        (lambda: spread_subjects([10**400], 4), "subjects must be a number below 1.8e308"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
