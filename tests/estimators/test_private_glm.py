"""``private_glm`` and ``GroupComparison`` as users call them."""

import numpy as np
import pytest

from capedjica import GroupComparison, PrivacyBudget, private_glm
from capedjica.errors import InputError

BOUNDS = {"group": ["control", "patient"], "age": (18, 80)}
PUBLIC = {"bounds": BOUNDS, "center": 10.0, "scale": 2.0}


class Frame(dict):
    """As much of a data frame as is needed: keys, and columns by name."""


def cohort(effect=0.0, sizes=(60, 50, 70), d=3, seed=0):
    chance, Y, design = np.random.default_rng(seed), {}, {}
    for place, size in enumerate(sizes):
        group = chance.random(size) < 0.5
        Y[f"s{place}"] = (
            10 + place + 2 * chance.standard_normal((size, d)) + effect * np.where(group, 1, -1)[:, None]
        )
        labels = np.where(group, "patient", "control").tolist()
        design[f"s{place}"] = Frame(group=labels, age=chance.uniform(20, 70, size))
    return Y, design


@pytest.mark.parametrize("mode", ["private", "public-groups"])
def test_effects_are_in_the_outcomes_units_and_covered(mode):
    Y, design = cohort(1.0, sizes=(400, 300, 500))
    result = private_glm(Y, design, "group", epsilon=8.0, clip=8.0, mode=mode, names="abc", **PUBLIC)
    assert result.names_ == ("a", "b", "c")
    assert result.effects_ == pytest.approx(1.0, abs=5 * result.standard_errors_.max())
    assert (result.noise_ < result.standard_errors_).all()
    assert result.intervals_.shape == (3, 2)
    assert (result.p_values_ <= result.q_values_ + 1e-15).all()
    assert result.privacy_.epsilon == 8.0
    assert bool(result.privacy_.not_covered) == (mode == "public-groups")


def test_pandas_and_lists_are_accepted():
    pandas = pytest.importorskip("pandas")
    Y, design = cohort()
    frames = {name: pandas.DataFrame(dict(table)) for name, table in design.items()}
    one = private_glm(Y, frames, "group", epsilon=5.0, insecure_noise_seed=1, **PUBLIC)
    other = private_glm(
        list(Y.values()), list(design.values()), "group", 5.0, insecure_noise_seed=1, **PUBLIC
    )
    assert one.effects_.shape == other.effects_.shape
    assert not one.privacy_.private


def test_a_budget_is_charged_once_and_refuses_more():
    Y, design = cohort()
    budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    private_glm(Y, design, "group", epsilon=0.9, budget=budget, **PUBLIC)
    with pytest.raises(Exception, match="budget"):
        private_glm(Y, design, "group", epsilon=0.9, budget=budget, **PUBLIC)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contrast": "diagnosis"}, "bounds must contain the range or the levels of column 'diagnosis'"),
        (
            {"bounds": {"group": ["control", "ill"]}},
            "site s0, row .*: column 'group' has a value that is neither",
        ),
        ({"bounds": BOUNDS | {"iq": (50, 150)}}, "column 'iq' is missing"),
        ({"scale": [1.0, 2.0]}, "scale must be one finite number, or 3"),
        ({"scale": 0.0}, "scale must be greater than 0"),
        ({"center": "high"}, "center must contain 3 numbers"),
        ({"clip": -1.0}, "clip must be a finite number above 0"),
        ({"mode": "open"}, "mode must be"),
        ({"names": ["a"]}, "names must contain 3"),
        ({"correlation": np.eye(2)}, "correlation must be a symmetric"),
        ({"epsilon": None}, "epsilon must be given"),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(change, words):
    Y, design = cohort()
    budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    given = {"contrast": "group", "epsilon": 1.0, "budget": budget} | PUBLIC | change
    with pytest.raises(InputError, match=words):
        private_glm(Y, design, **given)
    assert "0 calls" in str(budget) or "nothing" in str(budget) or budget.spent_epsilon == 0


def test_designs_that_do_not_fit_are_refused():
    Y, design = cohort()
    with pytest.raises(InputError, match="a table for each of the sites"):
        private_glm(Y, {"s0": design["s0"]}, "group", 1.0, **PUBLIC)
    with pytest.raises(InputError, match="must have 60 values, one per subject; got 3"):
        private_glm(Y, design | {"s0": {"group": ["control"] * 3}}, "group", 1.0, **PUBLIC)
    with pytest.raises(InputError, match="a data frame or a dict of columns"):
        private_glm(Y, design | {"s0": 3}, "group", 1.0, **PUBLIC)
    design["s0"]["group"][0] = None
    with pytest.raises(InputError, match="with public groups every value of 'group'"):
        private_glm(Y, design, "group", 1.0, mode="public-groups", **PUBLIC)


def test_group_comparison_of_scans():
    chance, X, design = np.random.default_rng(3), {}, {}
    for site in "abc":
        group = chance.random(80) < 0.5
        louder = np.where(group, 1.6, 1.0)
        X[site] = [chance.standard_normal((60, 4)) * [one, 1, 1, 1] for one in louder]
        design[site] = {"group": np.where(group, 1, -1)}
    X["a"][0] = np.full((60, 4), np.nan)
    comparison = GroupComparison(
        outcome="amplitudes", contrast="group", bounds={"group": (-1, 1)}, center=0.0, scale=0.2, epsilon=20.0
    )
    comparison.fit(X, design)
    assert comparison.effects_.shape == (4,)
    assert comparison.p_values_[0] < 0.01
    assert comparison.effects_[0] > 0 > comparison.effects_[1:].max()
    own = GroupComparison(
        outcome=lambda scan: scan.std(axis=0)[:2],
        contrast="group",
        bounds={"group": (-1, 1)},
        center=1.0,
        scale=0.3,
        epsilon=20.0,
    ).fit(X, design)
    assert own.effects_.shape == (2,)
    with pytest.raises(InputError, match="outcome must be a function or one of"):
        GroupComparison(
            outcome="beauty", contrast="group", bounds={"group": (-1, 1)}, center=0.0, scale=1.0, epsilon=1.0
        ).fit(X, design)


@pytest.mark.parametrize(
    ("outcome", "options", "names"),
    [
        ("blocks", {"groups": ["a", "a", "b"]}, ("within a", "a - b")),
        ("band-power", {"bands": [(0.0, 0.25)]}, ("1, 0 to 0.25", "2, 0 to 0.25", "3, 0 to 0.25")),
        ("partial-connectivity", {"shrinkage": 0.3}, ("1 - 2", "1 - 3", "2 - 3")),
    ],
)
def test_outcomes_with_options_of_their_own(outcome, options, names):
    chance = np.random.default_rng(4)
    X = {site: [chance.standard_normal((40, 3)) for _ in range(20)] for site in "ab"}
    design = {site: {"group": np.tile([-1, 1], 10)} for site in "ab"}
    common = {"contrast": "group", "bounds": {"group": (-1, 1)}, "center": 0.0, "scale": 1.0, "epsilon": 20.0}
    assert GroupComparison(outcome=outcome, **options, **common).fit(X, design).names_ == names
    with pytest.raises(InputError, match="groups is only for outcome 'blocks'"):
        GroupComparison(outcome="spectra", groups=["a", "a", "b"], **common).fit(X, design)
    with pytest.raises(InputError, match="requires networks"):
        GroupComparison(outcome="loadings", **common).fit(X, design)
