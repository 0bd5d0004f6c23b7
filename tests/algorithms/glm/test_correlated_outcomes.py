"""A public correlation of the outcomes: less noise, with the same guarantee and the same effects."""

import numpy as np
import pytest

from capedjica.algorithms.glm.analysis import EFFECTS_LABEL, GroupComparisonAnalysis
from capedjica.algorithms.glm.design import Column, Design
from capedjica.algorithms.glm.power import standard_error
from capedjica.engines.embedded import EmbeddedStudy, in_process

SIZE = 6
ALIKE = np.full((SIZE, SIZE), 0.6) + 0.4 * np.eye(SIZE)
GROUPS = {"a": (20, 20), "b": (12, 8)}
SINGULAR = np.ones((SIZE, SIZE))


def comparison(correlation, mode="public-groups", clip=None):
    groups = GROUPS if mode == "public-groups" else None
    design = Design(Column("dx", "category", levels=("0", "1")), (), mode, groups)
    sizes = {name: sum(own) for name, own in GROUPS.items()}
    return GroupComparisonAnalysis(design, (1.0,) * SIZE, sizes, clip=clip, correlation=correlation)


def rows(analysis, seed=0, factor=1.0):
    rng = np.random.default_rng(seed)
    own = {}
    for name, (first, second) in GROUPS.items():
        group = rng.permutation(np.repeat([-1.0, 1.0], [first, second]))[:, np.newaxis]
        own[name] = analysis.rows(name, group, factor * rng.standard_normal((len(group), SIZE)))
    return own


def estimate(analysis, own, epsilon):
    mechanism = "none" if epsilon is None else "cape"
    return analysis.estimate(
        EmbeddedStudy.of("c", analysis, own, in_process(epsilon=epsilon, mechanism=mechanism))
    )


def test_noise_is_that_of_the_square_root_of_the_correlation():
    values = np.linalg.eigvalsh(ALIKE)
    assert comparison(ALIKE).noise_factor == pytest.approx(np.sqrt(values).sum() / SIZE)
    assert comparison(None).noise_factor == 1


def test_independent_outcomes_stay_as_they_are():
    plain, own = comparison(None), np.random.default_rng(0).standard_normal((5, SIZE))
    same = comparison(np.eye(SIZE))
    np.testing.assert_allclose(same.shaped(own), plain.shaped(own))
    np.testing.assert_allclose(same.noise_factors, 1)


def test_planned_errors_are_smaller():
    terms = in_process(epsilon=1.0)
    assert standard_error(comparison(ALIKE), terms) < 0.98 * standard_error(comparison(None), terms)


@pytest.mark.parametrize("mode", ["private", "public-groups"])
@pytest.mark.parametrize("correlation", [ALIKE, SINGULAR])
def test_effects_without_noise_or_clipping_are_the_same(mode, correlation):
    plain = comparison(None, mode, clip=100.0)
    shaped = comparison(correlation, mode, clip=100.0)
    one, two = (estimate(own, rows(own), None) for own in (plain, shaped))
    np.testing.assert_allclose(one.effects, two.effects, atol=1e-4)
    np.testing.assert_allclose(one.statistics, two.statistics, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mode", ["private", "public-groups"])
@pytest.mark.parametrize("correlation", [ALIKE, SINGULAR])
def test_no_row_is_longer_than_declared(mode, correlation):
    analysis = comparison(correlation, mode)
    stage = [stage.query.label for stage in analysis.stages()].index(EFFECTS_LABEL)
    own = rows(analysis)["a"]
    for place, value in enumerate((1e3, 1e150, 1e308, np.inf, np.nan)):
        own[place, -SIZE:] = value
        own[place + 5, -1] = -value
    released = np.vstack(list(analysis.site(list(own))(stage, b"", analysis.no_adjustment.state)))
    finite = released[np.isfinite(released).all(axis=1)]
    assert len(finite) >= len(own) - 6
    lengths = np.linalg.norm(finite[:, 2:], axis=1)
    assert lengths.max() <= analysis.effects_query.clip * (1 + 1e-12)


def test_stated_noise_is_that_of_the_effects():
    analysis = comparison(ALIKE)
    own = rows(analysis, factor=0.0)
    found = [estimate(analysis, own, 2.0) for _ in range(150)]
    effects = np.array([one.effects for one in found])
    np.testing.assert_allclose(effects.std(axis=0), found[0].noise, rtol=0.25)
    # The noise of alike outcomes is alike, too.
    between = np.corrcoef(effects.T)[np.triu_indices(SIZE, 1)].mean()
    covariance = analysis.unshaped(analysis.unshaped(np.eye(SIZE)))
    expected = (covariance / np.diag(covariance).mean())[np.triu_indices(SIZE, 1)].mean()
    assert between == pytest.approx(expected, abs=0.12)
