"""Group comparison: against ordinary least squares, with site effects, hostile rows and missing values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capedjica.algorithms.glm.analysis import (
    DESIGN_LABEL,
    EFFECTS_LABEL,
    LEADING,
    PRIOR_CORRELATION,
    PRODUCTS_LABEL,
    GroupComparisonAnalysis,
    _DesignMoments,
    attenuation,
)
from capedjica.algorithms.glm.design import Column, Design
from capedjica.algorithms.glm.power import (
    clipped_variance,
    minimum_detectable_effect,
    site_weights,
    standard_error,
    variances_are_worth_releasing,
)
from capedjica.algorithms.state import pack
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.errors import InputError, ProtocolError

GROUP = Column("group", "category", levels=("c", "p"))
AGE = Column("age", low=-1.0, high=1.0)
SIZES = {"north": 60, "south": 41, "west": 80}


def simulate(chance, sizes=None, d=4, beta=0.0, correlation=0.4, effect_of_age=0.3, site=0.5, odds=0.5):
    """Return designs and outcomes of every site: group and age correlated, site effects, unit variance."""
    designs, outcomes = {}, {}
    for name, size in (sizes or SIZES).items():
        group = np.where(chance.random(size) < odds, 1.0, -1.0)
        group[:2] = -1.0, 1.0
        age = correlation * group + np.sqrt(1 - correlation**2) * chance.standard_normal(size)
        noise = np.sqrt(1 - effect_of_age**2) * chance.standard_normal((size, d))
        designs[name] = np.column_stack([group, np.clip(age / 2.5, -1, 1)])
        common = site * chance.standard_normal(d)
        outcomes[name] = common + np.outer(group, np.full(d, beta)) + effect_of_age * age[:, None] + noise
    return designs, outcomes


def analysis_of(designs, d=4, mode="private", **more):
    sizes = {name: len(design) for name, design in designs.items()}
    groups = None
    if mode == "public-groups":
        groups = {name: (int((x[:, 0] < 0).sum()), int((x[:, 0] > 0).sum())) for name, x in designs.items()}
    design = Design(GROUP, (AGE,), mode, groups)
    return GroupComparisonAnalysis(design, (1.0,) * d, sizes, largest_adjustment=1.0, **more)


def study_of(analysis, designs, outcomes, **terms):
    rows = {name: analysis.rows(name, designs[name], outcomes[name]) for name in designs}
    return EmbeddedStudy.of("t", analysis, rows, in_process(**terms))


def least_squares(designs, outcomes):
    """Return the coefficients of the contrast with a column for every site."""
    sites = np.concatenate([np.full(len(x), place) for place, x in enumerate(designs.values())])
    dummies = (sites[:, None] == np.arange(len(designs))).astype(float)
    table = np.hstack([np.vstack(list(designs.values())), dummies])
    return np.linalg.lstsq(table, np.vstack(list(outcomes.values())), rcond=None)[0][0]


@pytest.mark.parametrize("mode", ["private", "public-groups"])
def test_without_noise_it_agrees_with_least_squares(mode):
    """Adjustment is by pairs, so chance imbalance stays: the two differ by less than a standard error."""
    designs, outcomes = simulate(np.random.default_rng(0), dict.fromkeys(SIZES, 500), beta=0.3)
    analysis = analysis_of(designs, mode=mode, clip=100.0)
    found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
    expected = least_squares(designs, outcomes)
    assert np.abs(found.effects - expected).max() < 2 * found.standard_errors.max()
    assert found.standard_errors == pytest.approx(1 / np.sqrt(1500 * 0.84), rel=0.12)
    assert (found.noise == 0).all()
    assert found.p_values.max() < 1e-6


def test_without_covariates_and_noise_it_is_least_squares():
    designs, outcomes = simulate(np.random.default_rng(1), beta=0.2, correlation=0.0)
    designs = {name: x[:, :1] for name, x in designs.items()}
    analysis = replace(analysis_of(designs, clip=100.0), design=Design(GROUP))
    found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
    assert found.effects == pytest.approx(least_squares(designs, outcomes), abs=1e-4)


def test_site_effects_vanish():
    designs, outcomes = simulate(np.random.default_rng(2), site=0.0)
    moved = {name: y + place for place, (name, y) in enumerate(outcomes.items())}
    analysis = analysis_of(designs, clip=100.0)
    one, other = (
        analysis.estimate(study_of(analysis, designs, own, mechanism="none")) for own in (outcomes, moved)
    )
    assert one.effects == pytest.approx(other.effects, abs=1e-4)
    assert one.standard_errors == pytest.approx(other.standard_errors, rel=1e-4)


def test_units_of_outcomes_and_contrast():
    """A number's effect is per unit of the number, in the outcome's own units."""
    chance = np.random.default_rng(3)
    dose = {name: chance.uniform(0, 10, 400) for name in SIZES}
    column = Column("dose", low=0, high=10)
    designs = {name: column.encode(0)[0] + values[:, None] / 5 for name, values in dose.items()}
    outcomes = {
        name: 0.7 * values[:, None] / 50 + chance.normal(0, 0.1, (400, 1)) for name, values in dose.items()
    }
    sizes = dict.fromkeys(SIZES, 400)
    analysis = GroupComparisonAnalysis(Design(column), (50.0,), sizes, clip=10.0)
    found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
    assert found.effects[0] == pytest.approx(0.7, abs=4 * found.standard_errors[0])


def test_a_pair_is_in_one_row():
    """Replacing one person changes one row of every release, and no other."""
    designs, outcomes = simulate(np.random.default_rng(4))
    analysis = analysis_of(designs)
    rows = analysis.rows("south", designs["south"], outcomes["south"])
    state = pack(gamma=[0.4], width=[1.5])
    for person in (0, 1, 17, 40):
        changed = rows.copy()
        changed[person, LEADING:] *= -0.3
        for stage in range(3):
            here, there = (
                np.vstack(list(analysis.site(list(own))(stage, b"", state if stage == 2 else b"")))
                for own in (rows, changed)
            )
            assert (np.abs(here - there).max(axis=1) > 0).sum() <= 1


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (7, LEADING + 2 + 4), elements=st.floats(allow_nan=True, width=64)))
def test_hostile_rows_stay_within_what_queries_declare(rows):
    designs, _ = simulate(np.random.default_rng(5))
    for mode in ("private", "public-groups"):
        analysis = analysis_of(designs, mode=mode)
        state = pack(gamma=[0.4], width=[1.5])
        for number, stage in enumerate(analysis.stages()):
            last = stage.query.label == EFFECTS_LABEL
            made = np.vstack(list(analysis.site(list(rows))(number, b"", state if last else b"")))
            assert made.shape == (7, stage.query.row_size)
            if stage.query.spread < 2:
                # Positive semidefinite, or not negative: what the spread of sqrt(2) rests on.
                assert np.isfinite(made).all() or not np.isfinite(rows).all() or np.abs(rows).max() > 1e100
                diagonal = made[:, [0, 2]] if made.shape[1] == 3 else made
                assert (np.nan_to_num(diagonal) >= 0).all()


def test_missing_people_do_not_bias_errors_or_effects():
    chance = np.random.default_rng(6)
    sizes = dict.fromkeys(SIZES, 600)
    designs, outcomes = simulate(chance, sizes, beta=0.1)
    for name in designs:
        designs[name][chance.random(600) < 0.1, 1] = np.nan
    for mode in ("private", "public-groups"):
        analysis = analysis_of(designs, mode=mode, clip=100.0)
        found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
        assert found.effects == pytest.approx(0.1, abs=0.12)
        assert found.standard_errors == pytest.approx(1 / np.sqrt(1620 * 0.84), rel=0.12)


def far_from_their_centre_with_patients_missing(chance):
    """Outcomes with a mean of 0.5 at every site and no effect; 15% of the patients have no age."""
    designs, outcomes = simulate(chance, dict.fromkeys(SIZES, 600), correlation=0.0, site=0.0)
    for name, design in designs.items():
        design[(design[:, 0] > 0) & (chance.random(600) < 0.15), 1] = np.nan
        outcomes[name] += 0.5
    return designs, outcomes


@pytest.mark.parametrize(("mode", "missing"), [("private", 0.0), ("public-groups", 0.2)])
def test_missing_patients_do_not_bring_the_mean_outcome_into_effects(mode, missing):
    """Of 20 effects without noise, the mean: it was 0.04 and more when missing rows counted as zeros."""
    chance, effects = np.random.default_rng(14), []
    for _ in range(5):
        designs, outcomes = far_from_their_centre_with_patients_missing(chance)
        analysis = analysis_of(designs, mode=mode, clip=100.0, missing=missing)
        found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
        effects.extend(found.effects)
    # The standard error of one is 0.025, and outcomes are independent: five errors.
    assert abs(np.mean(effects)) < 5 * 0.025 / np.sqrt(20)


def test_public_groups_whose_rows_may_be_missing_cost_noise_for_the_imbalance():
    designs, _ = simulate(np.random.default_rng(15))
    plain, careful = (analysis_of(designs, mode="public-groups", missing=part) for part in (0.0, 0.2))
    assert plain.imbalance == 0
    # Half of the people are in a group; a fifth of it is missing.
    assert careful.imbalance == pytest.approx(0.2 / 2 / (1 - 0.2 / 2), rel=0.05)
    ratio = careful.effects_query.sensitivity() / plain.effects_query.sensitivity()
    largest = max(plain.largest_factor(name) for name in SIZES)
    assert ratio == pytest.approx(1 + careful.imbalance / (largest + 2))


def test_stated_variances_are_the_largest_of_those_that_covariates_may_leave():
    """(4): linear in what covariates explain, so the larger of its ends; private groups count both."""
    analysis = analysis_of(simulate(np.random.default_rng(16))[0], mode="public-groups")
    adjustment = replace(analysis.no_adjustment, left=np.array([0.05]))
    for sampling in (0.01, 0.05, 0.2):
        ends = [sampling, (1 - 0.3**2) * sampling + 0.3**2 * 0.05]
        assert sampling + analysis.confounding(adjustment, sampling) == pytest.approx(max(ends))
    private = analysis_of(simulate(np.random.default_rng(16))[0])
    assert private.confounding(adjustment, 0.2) == pytest.approx(0.3**2 * 0.05)


def test_a_covariate_at_one_end_of_its_range_is_adjusted_for_by_its_centre():
    """Ages around 22 in a range to 60: scores are clipped unless the typical age is said."""
    chance, n, left = np.random.default_rng(17), 4000, []
    groups = dict.fromkeys(SIZES, (n // 2, n // 2))
    for center in (None, 22.0):
        column = Column("age", low=10, high=60, center=center)
        design = Design(GROUP, (column,), "public-groups", groups)
        designs, outcomes = {}, {}
        for name in groups:
            group = np.repeat([-1.0, 1.0], n // 2)
            age = 22 + 8 * (0.4 * group + np.sqrt(0.84) * chance.standard_normal(n))
            designs[name] = np.column_stack([group, [column.encode(one)[0] for one in age]])
            outcomes[name] = (age[:, None] - 22) / 16
        analysis = GroupComparisonAnalysis(
            design, (1.0,), dict.fromkeys(groups, n), clip=100.0, largest_adjustment=0.8
        )
        found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
        left.append(abs(found.effects[0]))
    # Unadjusted it is 0.2.
    assert left[0] > 0.05
    assert left[1] < 0.03


def test_a_row_that_cannot_be_read_changes_nobody_elses():
    designs, outcomes = simulate(np.random.default_rng(13))
    analysis = analysis_of(designs)
    rows = list(analysis.rows("west", designs["west"], outcomes["west"]))
    broken = [*rows[:6], "no numbers", *rows[7:]]
    state = pack(gamma=[0.4], width=[1.5])
    for stage in range(3):
        here, there = (
            np.vstack(list(analysis.site(own)(stage, b"", state if stage == 2 else b"")))
            for own in (rows, broken)
        )
        assert np.delete(here, 6, axis=0).tolist() == np.delete(there, 6, axis=0).tolist()


def test_a_contrast_that_never_varies_is_not_estimated():
    designs, outcomes = simulate(np.random.default_rng(7))
    for design in designs.values():
        design[:, 0] = 1.0
    analysis = analysis_of(designs)
    found = analysis.estimate(study_of(analysis, designs, outcomes, epsilon=5.0))
    if not found.estimable:
        assert np.isnan(found.effects).all()
        assert np.isinf(found.intervals).all()
    nothing = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
    assert not nothing.estimable


@pytest.mark.parametrize("mode", ["private", "public-groups"])
def test_z_values_have_variance_one_through_the_whole_path(mode):
    """Of null data: 160 studies of 8 outcomes; passes at the right scale of errors, fails at 0.7 and 1.3.

    The spread was 0.966 on average over 240 studies, with a standard deviation of 0.022 for 160: all three
    hold from 0.86 to 1.118, five of these to either side or more (false alarms below 1e-5).
    """
    chance, z = np.random.default_rng(8), []
    for _ in range(160):
        designs, outcomes = simulate(chance, d=8)
        analysis = analysis_of(designs, d=8, mode=mode)
        found = analysis.estimate(study_of(analysis, designs, outcomes, epsilon=12.0))
        z.extend(found.statistics)
    spread = float(np.std(z))

    def holds(scale):
        return 0.86 < spread / scale < 1.16

    assert holds(1.0)
    assert not holds(0.7)
    assert not holds(1.3)


def test_stages_share_the_budget_and_public_variances_save_one():
    designs, _ = simulate(np.random.default_rng(9))
    stages = analysis_of(designs).stages()
    assert [stage.query.size for stage in stages] == [5, 3, 5]
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    public = analysis_of(designs, mode="public-groups", release_variances=False).stages()
    assert [stage.query.size for stage in public] == [1, 1, 4]
    assert sum(stage.share for stage in public) == pytest.approx(1)
    alone = replace(analysis_of(designs), design=Design(GROUP), release_variances=False)
    assert [stage.query.size for stage in alone.stages()] == [5]


def test_bad_states_and_stages_are_refused():
    designs, outcomes = simulate(np.random.default_rng(10))
    analysis = analysis_of(designs)
    site = analysis.site(list(analysis.rows("west", designs["west"], outcomes["west"])))
    with pytest.raises(ProtocolError):
        site(2, b"", b"nonsense")
    with pytest.raises(ProtocolError):
        site(3, b"", b"")
    groups = dict.fromkeys(SIZES, (1, 1))
    with pytest.raises(InputError, match="must add up to the number of subjects of every site"):
        GroupComparisonAnalysis(Design(GROUP, (), "public-groups", groups), (1.0,), SIZES)


def test_power_falls_with_noise_and_rises_with_people():
    designs, _ = simulate(np.random.default_rng(11))
    analysis = analysis_of(designs)
    effects = [minimum_detectable_effect(analysis, in_process(epsilon=eps)) for eps in (0.5, 1.0, 5.0)]
    assert effects[0] > effects[1] > effects[2]
    exact = standard_error(analysis, in_process(mechanism="none"), group_variance=1.0)
    assert exact == pytest.approx(np.sqrt(clipped_variance(4, 1.6) / 181))
    large = replace(analysis, sizes={name: 10 * size for name, size in SIZES.items()})
    assert variances_are_worth_releasing(large, in_process(epsilon=10.0))
    assert not variances_are_worth_releasing(analysis, in_process(epsilon=0.1))


def test_unbalanced_sites_get_less_weight_where_noise_rules():
    groups = {"north": (50, 50), "south": (50, 50), "west": (95, 5)}
    sizes = dict.fromkeys(groups, 100)
    analysis = GroupComparisonAnalysis(Design(GROUP, (), "public-groups", groups), (1.0,) * 4, sizes)
    noisy = site_weights(analysis, in_process(epsilon=0.5))
    assert noisy["west"] < 0.6
    assert noisy["north"] == 1.0
    assert site_weights(analysis, in_process(epsilon=1e4))["west"] > noisy["west"]


def test_attenuation_is_that_of_simulation():
    y = np.random.default_rng(12).standard_normal((20_000, 10))
    factor = np.minimum(1, 2.5 / np.linalg.norm(y, axis=1)).mean()
    assert attenuation(10, 2.5) == pytest.approx(factor, abs=0.005)
    assert attenuation(10, 1e3) == 1.0


def moments_of(covariance, noise):
    return _DesignMoments.of(
        covariance[0, 0], covariance[0, 1:], noise / np.sqrt(2), covariance[1:, 1:], noise
    )


@pytest.mark.parametrize("covariance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_what_adjustment_leaves_is_counted(covariance, noise):
    """True covariances up to the prior's: the mean square of what is left is at most what errors count."""
    chance, truth = np.random.default_rng(11), np.array([[1.0, 0.0], [0.0, 0.8]])
    truth[0, 1] = truth[1, 0] = covariance * 0.4 * np.sqrt(0.8)
    left, counted = [], []
    for _ in range(3000):
        own = moments_of(truth + noise / np.sqrt(2) * chance.standard_normal() * (1 - np.eye(2)), noise)
        left.append((truth[0, 1] - 0.6 * own.gz[0]) ** 2)
        counted.append(own.left(0.6, own.largest_gz)[0])
    assert np.mean(left) == pytest.approx(own.left(0.6, truth[0, 1:])[0], rel=0.15, abs=1e-5)
    assert np.mean(left) <= 1.05 * np.mean(counted)


def test_how_far_a_private_contrast_is_adjusted_does_not_follow_the_noise_on_what_is_adjusted_for():
    """Else least is adjusted where noise hides most, and false findings come together."""
    analysis = analysis_of(simulate(np.random.default_rng(0))[0])
    parts = {
        analysis._part(moments_of(np.array([[1.0, cov], [cov, 0.8]]), 0.15), 0.07)
        for cov in (-0.5, -0.1, 0.0, 0.1, 0.3, 0.6)
    }
    assert len(parts) == 1
    assert 0 < parts.pop() < 1


def test_covariances_beyond_the_prior_are_counted_as_the_release_shows_them():
    own = moments_of(np.array([[1.0, 0.8], [0.8, 0.8]]), 0.1)
    assert own.largest_gz[0] == pytest.approx(0.8 - 2 * 0.1 / np.sqrt(2))


def test_a_comparison_of_fewer_sites_uses_their_groups_alone():
    """Without the site that has few patients the denominator is that of the balanced sites."""
    groups = {"north": (50, 50), "south": (50, 50), "west": (81, 9)}
    sizes = {name: sum(one) for name, one in groups.items()}
    analysis = GroupComparisonAnalysis(Design(GROUP, (), "public-groups", groups), (1.0,) * 4, sizes)
    assert analysis.group_moments[0] < 0.85
    assert analysis._among(("north", "south")).group_moments[0] == pytest.approx(1.0)
    assert analysis._among(()) is analysis
    assert analysis._among(("south", "north", "west")) is analysis


def test_weights_of_sites_leave_no_confounding():
    """The scores are orthogonal to the covariate: sites of other weights and balance, without noise."""
    chance, n = np.random.default_rng(4), 4000
    groups = {"north": (n // 2, n // 2), "south": (n // 2, n // 2), "west": (9 * n // 10, n // 10)}
    designs = {}
    for name, (first, second) in groups.items():
        group = np.repeat([-1.0, 1.0], [first, second])
        designs[name] = np.column_stack(
            [group, np.clip(0.05 * group + 0.2 * chance.standard_normal(n), -1, 1)]
        )
    column = Column("age", low=-1.0, high=1.0)
    design = Design(GROUP, (column,), "public-groups", groups)
    analysis = GroupComparisonAnalysis(
        design, (1.0,), dict.fromkeys(groups, n), clip=100.0, weights={"west": 0.5}, largest_adjustment=1.0
    )
    # The outcome is the covariate itself: adjusted for it, there is no effect.
    outcomes = {name: own[:, 1:] for name, own in designs.items()}
    found = analysis.estimate(study_of(analysis, designs, outcomes, mechanism="none"))
    assert abs(found.effects[0]) < 0.01


@pytest.mark.parametrize("largest_score", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
def test_allowance_for_confounding_is_the_mean_square_that_remains(noise, largest_score):
    """With public groups, for any true covariance up to the prior, on average over the noise."""
    designs, _ = simulate(np.random.default_rng(21))
    analysis = replace(analysis_of(designs, mode="public-groups"), largest_adjustment=largest_score)
    chance = np.random.default_rng(22)
    for true in (0.0, 0.15, 0.3):
        stated, remaining = [], []
        for drawn in true + noise * chance.standard_normal(4000):
            moments = _DesignMoments.of(1.0, np.array([drawn]), noise, np.eye(1), 0.0)
            score = 2 * moments.explained_deviation
            adjustment = analysis._adjusted(moments, min(1.0, largest_score / score), 0.0)
            gamma = adjustment.gamma[0] / analysis._design_factors[1]
            stated.append(adjustment.left[0] * adjustment.width**2)
            remaining.append((true - gamma * moments.zz[0, 0]) ** 2 / moments.variances[0])
        error = np.std(np.subtract(stated, remaining)) / np.sqrt(len(stated))
        assert np.mean(stated) > np.mean(remaining) - 3 * error
        if not largest_score and noise < 0.1 and true:
            # The noise itself is not counted.
            assert np.mean(stated) < np.mean(remaining) + 3 * error
        if not largest_score and noise > PRIOR_CORRELATION:
            assert np.mean(stated) < PRIOR_CORRELATION**2 * 1.1


@pytest.mark.parametrize("largest_score", [0.0, 1.0])
def test_a_plan_expects_the_confounding_that_noise_leaves_on_average(largest_score):
    designs, _ = simulate(np.random.default_rng(23))
    analysis = replace(analysis_of(designs, mode="public-groups"), largest_adjustment=largest_score)
    noise, chance = {DESIGN_LABEL: 1e-9, PRODUCTS_LABEL: 0.1}, np.random.default_rng(24)
    planned = analysis.expected_adjustment(noise, 1.0, 0.0)
    covariance = np.array([0.8 * analysis._pairs_per_person])
    drawn = [
        analysis._adjust({DESIGN_LABEL: (covariance, 1e-9), PRODUCTS_LABEL: (0.1 * number, 0.1)}, 1.0)
        for number in chance.standard_normal((2000, 1))
    ]
    left = float(np.mean([one.left[0] * one.width**2 for one in drawn]))
    assert planned.left[0] * planned.width**2 == pytest.approx(left, rel=0.1)
