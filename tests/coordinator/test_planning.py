"""A plan shows what a run releases, at the run's noise; its other answers answer."""

import dataclasses
import io
import json
import math
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from capedjica.algorithms.ica.paper_method import PaperMethod
from capedjica.algorithms.pca import PSD_SPREAD
from capedjica.coordinator.planning import plan as planning
from capedjica.coordinator.planning.paper_accounts import paper_noise
from capedjica.coordinator.planning.plan import plan_paper_noise, plan_study, sketch, spread_subjects
from capedjica.coordinator.planning.plan_text import show_plan
from capedjica.data import FeatureTable
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.privacy import Cape, gaussian_epsilon, gaussian_mu, paper
from capedjica.privacy.neighbour import RESERVED_DELTA
from capedjica.privacy.wording import round_up
from capedjica.study.analyses import IcaTable
from capedjica.study.study_file import PrivacyTable, Study
from tests.support.drafts import apart, draft
from tests.support.small_study import make_study

DELTA = 1e-5 * (1 - RESERVED_DELTA)


def sketched(subjects=(256,) * 4, analysis=None, **privacy):
    ica, scans = apart({"n_components": 20, "n_features": 900, "scan_length": 250} | (analysis or {}))
    terms = PrivacyTable(**{"epsilon": 2.0, "reserve": 0.0} | privacy)
    return sketch(subjects, IcaTable(**ica), FeatureTable(**scans), terms)


def papers(subjects=(256,) * 4, **privacy):
    return sketched(subjects, {"method": "paper"}, **privacy)


# What a run does


@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"masking": "paper", "reserve": 0.0},
        {"mechanism": "conventional"},
        {"mechanism": "local"},
        {"mechanism": "pooled"},
        {"mechanism": "none", "epsilon": None},
        {"n_colluding": 2},
    ],
    ids=str,
)
def test_the_plan_is_what_the_run_does(tmp_path, privacy):
    study = make_study(tmp_path, iterations=3, **privacy)
    plan = plan_study(study)
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    done = json.loads((tmp_path / "run" / "privacy.json").read_text())
    labels = [release["label"] for release in done["releases"]]
    planned = [stage for stage in plan.stages for _ in range(stage.n_releases)]
    if study.contract.mechanism == "none":
        # Whitening is repeated until nothing is left to be whitened, and costs nothing.
        planned = [stage for stage in plan.stages for _ in range(labels.count(stage.name))]
    assert labels == [stage.name for stage in planned]
    for release, stage in zip(done["releases"], planned, strict=True):
        assert release["noise"] == pytest.approx(stage.noise, rel=1e-7)
        if stage.noise:
            assert all(release["noise"] != pytest.approx(f * stage.noise, rel=0.2) for f in (0.7, 1.3))
        mus = [math.inf if mu is None else mu for mu in release["mu"].values()]
        assert max(mus) == pytest.approx(stage.mu, rel=1e-7)
    for site in plan.sites:
        spent = done["sites"].get(site.name, {"spent_epsilon": 0})["spent_epsilon"]
        # A curator is trusted with more than the guarantee, so the ledgers of sites charge infinity.
        expected = math.inf if study.contract.mechanism == "pooled" else site.epsilon
        assert (math.inf if spent is None else spent) == pytest.approx(expected, rel=1e-5)


def test_budgets_of_their_own_are_planned_as_they_are_run(tmp_path):
    study = make_study(tmp_path, iterations=3)
    own = [
        msgspec.structs.replace(site, epsilon=e)
        for site, e in zip(study.content.sites, (2, 5, 9, 10), strict=True)
    ]
    study = Study(msgspec.structs.replace(study.content, sites=tuple(own)))
    plan = plan_study(study)
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "run")
    done = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [site.budget for site in plan.sites] == [2, 5, 9, 10]
    for site in plan.sites:
        assert done["sites"][site.name]["spent_epsilon"] == pytest.approx(site.epsilon, rel=1e-5)
        assert site.epsilon < site.budget
    assert plan.budget == 10
    assert plan.epsilon["exact"] == pytest.approx(max(site.epsilon for site in plan.sites), rel=1e-12)


# The guarantee


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(2, 400), min_size=3, max_size=9),
    st.floats(0.1, 20),
    st.sampled_from(["uniform", "paper"]),
    st.sampled_from(["subject", "paper"]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_the_total_is_the_epsilon_asked_for_and_never_more(subjects, epsilon, mask, method, reserve):
    study = sketched(tuple(subjects), {"method": method}, epsilon=epsilon, masking=mask, reserve=reserve)
    plan = plan_study(study)
    total = gaussian_epsilon(gaussian_mu(epsilon, DELTA) * math.sqrt(1 - reserve), DELTA)
    assert plan.epsilon["exact"] == pytest.approx(total, rel=1e-7)
    assert plan.epsilon["exact"] <= epsilon == plan.budget
    assert min(plan.epsilon.values()) >= plan.epsilon["exact"] * (1 - 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(2, 400), min_size=3, max_size=9),
    st.floats(0.1, 20),
    st.sampled_from(["uniform", "paper"]),
)
def test_noise_and_mu_of_each_stage_belong_together(subjects, epsilon, mask):
    """Recompute mu from the printed noise with Cape, every site contributing equally."""
    plan = plan_study(sketched(tuple(subjects), epsilon=epsilon, masking=mask))
    weights = [size / sum(subjects) for size in subjects]
    for stage in plan.stages:
        local = [stage.noise**2 / len(subjects) / w**2 for w in weights]
        masks = math.inf if mask == "uniform" else [len(subjects) * x for x in local]
        shifts = [stage.spread * stage.clip / m for m in subjects]
        assert Cape(masks, local, weights).mu(shifts).max() == pytest.approx(stage.mu, rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(math.log(1e-300), math.log(1e300)),
    st.sampled_from([1e-300, 1e-12, 1e-5, 0.1]),
    st.integers(1, 10**6),
    st.sampled_from(["subject", "paper", "paper's noise"]),
)
def test_every_budget_has_a_plan_or_a_refusal_in_words(log_epsilon, delta, iterations, kind):
    epsilon = math.exp(log_epsilon)
    analysis = {"method": "subject" if kind == "subject" else "paper", "max_iter": iterations}
    try:
        if kind == "paper's noise":
            plan = plan_paper_noise(sketched((40, 3, 10**6), analysis, delta=delta), epsilon)
        else:
            plan = plan_study(sketched((40, 3, 10**6), analysis, delta=delta, epsilon=epsilon))
            assert plan.epsilon["exact"] <= epsilon
    except InputError as error:
        words = str(error)
    else:
        words = json.dumps(plan.as_dict(), allow_nan=False)
    assert words.isprintable()


# The paper's method


def test_the_papers_setting():
    """Golden: M=1024, S=4, R=20, D=900, J=1000, epsilon_i=0.5, delta=1e-5."""
    plan = plan_paper_noise(papers(), 0.5)
    pca, descent = plan.stages
    scale = math.sqrt(2 * math.log(125)) / 0.5 / 1024
    # In units of B_G and B_h, so that the noise of W is 30 and that of b sqrt(30) times this.
    assert descent.noise == pytest.approx(2 * scale, rel=1e-6)
    assert pca.noise == pytest.approx(PSD_SPREAD * scale, rel=1e-6)
    assert plan.epsilon["exact"] == pytest.approx(69.18, abs=0.01)
    assert plan.epsilon["rdp"] == pytest.approx(74.42, abs=0.01)
    assert plan.epsilon_descent["exact"] < plan.epsilon["exact"] <= plan.budget
    assert math.isnan(plan.paper_says["theorem_2_total"])
    assert plan.as_dict()["paper_says"]["theorem_2_total"] is None


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_the_papers_noise_costs_one_joint_release_what_its_two_would_cost(mask):
    """With tau/Delta = sqrt(2 log 125)/epsilon_i for both, the mu^2 of W and b add up to the joint one."""
    plan = plan_paper_noise(papers(masking=mask), 0.5)
    shift = 0.5 / math.sqrt(2 * math.log(125))
    factor = 4 / 3 if mask == "uniform" else 4 / 5 * (1 + 4 / 3)
    assert plan.stages[1].mu ** 2 == pytest.approx(2 * factor * shift**2, rel=1e-6)


def test_the_papers_noise_can_be_run():
    """The split of the budget and the epsilon that are found give the method that has this noise."""
    study = papers()
    method, contract = paper_noise(study.analysis, study.contract, 0.5)
    assert isinstance(method, PaperMethod)
    assert contract.stages == method.stages()
    assert contract.epsilon == (plan_paper_noise(study, 0.5).budget,) * 4


def test_what_the_papers_formulas_say_of_its_setting():
    """By hand, from tau/Delta = sqrt(2 log 125)/0.5: J = 1000 of each gradient, rho = 0.015/ln 20."""
    says, ratio2, log = plan_paper_noise(papers(), 0.5).paper_says, 8 * math.log(125), math.log(1e5)
    a = 2 * 1000 / ratio2
    assert says["rdp_corrected_output_only"] == pytest.approx(a / 2 + math.sqrt(2 * a * log))
    printed = says["moments_as_printed"]
    assert printed**2 / (2 * a) - printed + a / 8 == pytest.approx(log, rel=1e-5)
    rho2 = (0.015 / math.log(20)) ** 2
    a = sum(1000 / (rho2 * ratio2 * 2 * clip / 1024) for clip in (30, math.sqrt(30)))
    assert says["rdp_as_printed"] == pytest.approx(a / 2 + math.sqrt(2 * a * log))


def test_theorem_2_is_theorem_1_at_its_share_of_delta():
    plan = plan_study(papers((50,) * 30, epsilon=0.5))
    each = plan.paper_says["theorem_1_per_release"]
    tau, per_release = plan.stages[1].noise * 1500 / 2, 1e-5 / 2000
    assert paper.cape_delta(each, tau, 30, 30, 9) == pytest.approx(per_release, rel=1e-6)
    assert plan.paper_says["theorem_2_total"] == pytest.approx(2000 * each)


def test_only_the_papers_method_has_the_papers_accounts():
    for study in (sketched(), sketched(analysis={"image_shape": (30, 30)})):
        plan = plan_study(study)
        assert plan.paper_says == plan.epsilon_descent == {}
    with pytest.raises(InputError, match="is only for the method 'paper'"):
        plan_paper_noise(sketched(), 0.5)
    pooled = plan_study(papers(mechanism="pooled"))
    assert pooled.paper_says == {}
    assert pooled.epsilon_descent["exact"] < pooled.epsilon["exact"]


# What if


def test_paper_masks_cost_what_the_comparison_says():
    uniform, masked = papers(), papers(masking="paper")
    says = plan_paper_noise(uniform, 0.5).comparison["cape, paper masks"]
    assert plan_paper_noise(masked, 0.5).budget == pytest.approx(says["epsilon_at_equal_noise"])
    noise = [plan_study(study).stages[1].noise for study in (uniform, masked)]
    assert (noise[1] / noise[0]) ** 2 == pytest.approx(says["variance_at_equal_epsilon"])
    assert says["variance_at_equal_epsilon"] == pytest.approx(1.4)


def test_comparison_is_what_the_mechanisms_cost():
    plan = plan_study(sketched())
    mu = gaussian_mu(2.0, DELTA)
    assert plan.comparison["cape, uniform masks"]["epsilon_at_equal_noise"] == pytest.approx(2.0)
    for name, factor in {"pooled": 3 / 4, "conventional": 3, "local, largest site": 12}.items():
        row = plan.comparison[name]
        assert row["variance_at_equal_epsilon"] == pytest.approx(factor)
        assert row["epsilon_at_equal_noise"] == pytest.approx(gaussian_epsilon(mu * math.sqrt(factor), DELTA))


@pytest.mark.parametrize("mechanism", ["pooled", "conventional", "local"])
def test_comparison_with_unequal_sites_and_budgets_is_that_of_plans_of_their_own(mechanism):
    content = draft(privacy={"reserve": 0.1}, site_1=0.5, site_3=4.0)
    plan = plan_study(Study(content))
    other = msgspec.structs.replace(
        content, privacy=msgspec.structs.replace(content.privacy, mechanism=mechanism)
    )
    theirs = plan_study(Study(other))
    row = plan.comparison["local, largest site" if mechanism == "local" else mechanism]
    for mine, its in zip(plan.stages, theirs.stages, strict=True):
        assert (its.noise / mine.noise) ** 2 == pytest.approx(row["variance_at_equal_epsilon"])


def test_subjects_needed_reach_their_epsilon_at_the_same_noise():
    mu = gaussian_mu(2.0, DELTA) * 1024
    for row in plan_study(sketched()).subjects_needed:
        assert gaussian_epsilon(mu / row["subjects"], DELTA) <= row["epsilon"] * (1 + 1e-9)
        assert gaussian_epsilon(mu / (row["subjects"] - 1), DELTA) > row["epsilon"]


def test_one_more_site_equals_planning_with_it():
    plan = plan_study(sketched())
    more = plan.one_more_site
    larger = plan_study(sketched((256,) * 5, n_colluding=1))
    assert more["noise_at_equal_epsilon"] == pytest.approx(larger.stages[0].noise / plan.stages[0].noise)
    at_equal_noise = sketched((256,) * 5, n_colluding=1, epsilon=more["epsilon_at_equal_noise"])
    assert plan_study(at_equal_noise).stages[0].noise == pytest.approx(plan.stages[0].noise)


def test_one_more_site_has_a_name_of_its_own():
    content = draft()
    first = msgspec.structs.replace(
        content.sites[0], name="site-5", card=content.sites[0].card.replace("site-1", "site-5", 2)
    )
    card = first.card.replace("capedjica-site-5", "capedjica-site-1")
    sites = (msgspec.structs.replace(first, card=card), *content.sites[1:])
    plan = plan_study(Study(msgspec.structs.replace(content, sites=sites)))
    assert plan.one_more_site["subjects_added"] == 25


def test_more_colluders_cost_more_and_match_a_plan_of_their_own():
    plan = plan_study(sketched((50,) * 10))
    epsilons = [row["epsilon"] for row in plan.colluding]
    assert epsilons == sorted(epsilons)
    for row in plan.colluding:
        other = plan_study(sketched((50,) * 10, n_colluding=row["n_colluding"], epsilon=row["epsilon"]))
        assert other.stages[0].noise == pytest.approx(plan.stages[0].noise)
        assert 2 * row["least_threshold"] > 10 + row["n_colluding"] >= 2 * (row["least_threshold"] - 1)
        assert row["default_threshold_allows"] == (row["n_colluding"] <= 3)


# Words


def test_two_sites_are_told_that_they_gain_nothing():
    plan = plan_study(sketched((50, 50)))
    assert "there is no gain" in plan.warnings[0]
    assert plan.comparison["conventional"]["variance_at_equal_epsilon"] == pytest.approx(1)


def test_a_plan_without_colluding_sites_is_warned_of_curious_ones():
    plan = plan_study(sketched((50,) * 4, n_colluding=0))
    assert "does NOT hold against any other site" in plan.warnings[0]
    (one,) = [row for row in plan.colluding if row["n_colluding"] == 1]
    assert plan.curious_site_epsilon == pytest.approx(one["epsilon"], rel=1e-5)
    assert plan.as_dict()["curious_site_epsilon"] > plan.budget
    assert plan_study(sketched((50,) * 4, n_colluding=1)).curious_site_epsilon is None
    assert plan.colluding[0]["n_colluding"] == 0
    assert plan.colluding[0]["epsilon"] == pytest.approx(2.0)


def test_plans_that_protect_nobody_say_so():
    plan = plan_study(sketched(mechanism="none", epsilon=None))
    assert plan.warnings == ["NOT PRIVATE: no noise is added, so no participant is protected."]
    assert plan.budget == math.inf
    assert [stage.noise for stage in plan.stages] == [0.0] * len(plan.stages)
    assert plan.comparison == plan.one_more_site == {}
    assert plan.as_dict()["budget"] is None
    assert "trusted curator" in plan_study(sketched(mechanism="pooled")).warnings[0]
    seeded = plan_study(sketched(insecure_noise=True))
    assert "comes from a seed" in seeded.warnings[0]
    costs = [seeded.budget, seeded.subject_epsilon, *seeded.epsilon.values()]
    costs += [one for stage in seeded.stages for one in (stage.mu, stage.epsilon)]
    costs += [one for site in seeded.sites for one in (site.budget, site.epsilon)]
    assert costs == [math.inf] * len(costs)
    assert seeded.comparison == seeded.one_more_site == seeded.paper_says == {}
    assert seeded.stages[0].noise > 0


def test_a_plan_names_what_is_protected():
    study = sketched((50,) * 4)
    contract = dataclasses.replace(study.contract, neighbour="sample", units_per_subject=100)
    plan = planning._plan(study, None, contract)
    mu = max(contract.total_mu.values())
    assert plan.subject_epsilon == pytest.approx(gaussian_epsilon(100 * mu, contract.delta), rel=1e-5)
    out = io.StringIO()
    show_plan(plan, Console(file=out, width=200, color_system=None))
    assert "Each single time point is protected with epsilon 2 " in out.getvalue()
    words = r"a participant with up to 100 time points is protected only with epsilon (\d+)"
    shown = re.search(words, out.getvalue())[1]
    assert plan.subject_epsilon <= float(shown)
    assert plan.as_dict()["setting"]["neighbour"] == "sample"


def test_the_dictionary_is_plain_json():
    plan = plan_study(sketched(analysis={"image_shape": (30, 30)}, masking="paper"))
    result = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert result["setting"] == {
        "analyses": [
            {
                "kind": "ica",
                "name": "ica",
                "share": None,
                "method": "subject",
                "n_components": 20,
                "max_iter": None,
                "template": None,
                "template_sha256": None,
                "template_origin": None,
                "template_source": "",
                "template_names": [],
                "template_systems": [],
                "group_maps": True,
                "max_components": None,
            }
        ],
        "n_features": 900,
        "scan_length": 250,
        "image_shape": [30, 30],
        "n_sites": 4,
        "n_subjects": 1024,
        "subjects": [256] * 4,
        "delta": 1e-5,
        "mechanism": "cape",
        "masking": "paper",
        "n_colluding": 1,
        "threshold": 3,
        "reserve": 0.0,
        "neighbour": "subject",
        "units_per_subject": 1,
        "against": plan.contract.adversary.against,
        "not_against": plan.contract.adversary.not_against,
        "guarantee": plan.contract.guarantee().as_dict(),
    }
    assert result["budget"] == result["subject_epsilon"]
    assert result["budget"] == 2.0
    assert [site["name"] for site in result["sites"]] == ["site-1", "site-2", "site-3", "site-4"]


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
        (lambda: sketched((5,)), "the plan: sites: expected at least 2 sites, got 1"),
        (lambda: sketched((5, 0)), r"sites\[2\].subjects: expected a whole number of at least 1, got 0"),
        (
            lambda: sketched(analysis={"n_features": 10}),
            "analysis.n_components must be at most n_features, 10; got 20",
        ),
        (lambda: sketched(delta=1), "privacy.delta: expected a number below 1, got 1"),
        (lambda: sketched(masking="none"), "privacy.masking: 'none' is not known; known: uniform, paper"),
        (lambda: sketched(analysis={"method": "papre"}), "'papre' is not known; did you mean paper?"),
        (lambda: sketched(n_colluding=4), "n_colluding must be less than the number of sites, 4"),
        (lambda: sketched(epsilon=0), "privacy.epsilon: expected a number of at least 1e-09, got 0"),
        (
            lambda: sketched(epsilon=1e300),
            r"privacy.epsilon: expected a number of at most 1,000,000,000, got 1e\+300",
        ),
        (lambda: spread_subjects([3], 4), "subjects must be a whole number of at least 4, got 3"),
        (
            lambda: spread_subjects([3, 4], 3),
            r"one number or one per site \(3\), got 2 numbers",
        ),
        (lambda: spread_subjects([3], 1), "sites must be a whole number of at least 2, got 1"),
        (lambda: spread_subjects([10**400], 4), "subjects must be a number below 1.8e308"),
        (
            lambda: plan_paper_noise(papers(), -1),
            "epsilon_per_iteration must be a finite number above 0, got -1",
        ),
        (lambda: plan_paper_noise(papers(), 1e-9), "gives a total epsilon of 0 at delta 1e-05, which cannot"),
        (lambda: plan_paper_noise(papers(), 1e300), r"must be between 1e-09 and 1e\+09, got 1e\+300"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
