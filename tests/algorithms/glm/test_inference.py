"""Corrections for many tests against independent implementations and simulation."""

import numpy as np
import pytest
from scipy import stats

from capedjica.algorithms.glm import inference


def test_q_values_are_those_of_scipy():
    p = np.random.default_rng(0).uniform(size=40) ** 2
    assert inference.benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))
    assert inference.benjamini_yekutieli(p) == pytest.approx(stats.false_discovery_control(p, method="by"))
    assert inference.bonferroni(p).tolist() == np.minimum(1, 40 * p).tolist()


def test_simultaneous_intervals_are_between_single_ones_and_bonferroni():
    df, d = np.full(10, 1e6), 10
    single = inference.two_sided_quantile(0.95, df)[0]
    careful = inference.simultaneous_quantile(0.95, df, None)[0]
    assert careful == pytest.approx(stats.norm.isf(0.05 / 2 / d), rel=1e-3)
    one = np.full((d, d), 0.99) + 0.01 * np.eye(d)
    assert single <= inference.simultaneous_quantile(0.95, df, one)[0] < careful
    independent = inference.simultaneous_quantile(0.95, df, np.eye(d))[0]
    assert independent == pytest.approx(stats.norm.isf((1 - 0.95 ** (1 / d)) / 2), rel=0.02)


def test_the_global_test_holds_its_level():
    chance = np.random.default_rng(1)
    correlation = 0.5 + 0.5 * np.eye(5)
    z = chance.multivariate_normal(np.zeros(5), correlation, 4000)
    p = 2 * stats.norm.sf(np.abs(z))
    joint = np.mean([inference.global_p(*one, correlation) < 0.05 for one in zip(z, p, strict=True)])
    # Of 4,000 with p 0.05: four standard deviations are 0.014.
    assert abs(joint - 0.05) < 0.014
    assert np.mean([inference.global_p(*one, None) < 0.05 for one in zip(z, p, strict=True)]) < 0.064


def test_intervals_of_selected_effects_hold_their_false_coverage_rate():
    chance = np.random.default_rng(2)
    rates = []
    for _ in range(400):
        truth = np.where(np.arange(50) < 10, 2.5, 0.0)
        seen = truth + chance.standard_normal(50)
        selected = inference.benjamini_hochberg(2 * stats.norm.sf(np.abs(seen))) <= 0.05
        level = inference.selected_level(0.95, int(selected.sum()), 50)
        ends = inference.intervals(seen, np.ones(50), inference.two_sided_quantile(level, np.full(50, 1e6)))
        outside = (truth < ends[:, 0]) | (truth > ends[:, 1])
        rates.append((outside & selected).sum() / max(1, selected.sum()))
    assert np.mean(rates) < 0.06


def test_shrunken_effects_are_nearer_to_the_truth():
    chance = np.random.default_rng(3)
    truth = chance.normal(0, 0.7, 30)
    seen = truth + chance.standard_normal((200, 30))
    shrunk = np.array([inference.shrunken(one, np.ones(30)) for one in seen])
    assert ((shrunk - truth) ** 2).mean() < 0.7 * ((seen - truth) ** 2).mean()


def test_what_cannot_be_estimated_is_said_to_be_anywhere():
    ends = inference.intervals(np.array([np.nan, 1.0]), np.array([np.inf, 0.5]), 2.0)
    assert ends.tolist() == [[-np.inf, np.inf], [0.0, 2.0]]
    assert inference.two_sided_p(np.array([np.nan]), np.array([5.0])).tolist() == [1.0]
