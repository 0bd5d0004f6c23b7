"""The page of a group comparison: what is said of effects, and what is drawn."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from capedjica.algorithms.analysis import ResultTable
from capedjica.report.findings import Comparison, effects_on_maps, findings_section, pair_matrix

COURSES = ("visual", "motor", "default")
NAMES = tuple(f"{one} - {other}" for one, other in combinations(COURSES, 2))


def compared(effects=(0.5, -0.01, 0.02), error=0.05, **changes):
    effects, errors = np.array(effects), np.full(3, error)
    p = 2 * norm.sf(np.abs(effects) / errors)
    given = {
        "name": "groups",
        "summary": "How 3 numbers differ",
        "article": "3 outcomes were regressed on group",
        "outcome": "connectivity",
        "contrast": "patient against control",
        "names": NAMES,
        "effects": effects,
        "standard_errors": errors,
        "p_values": p,
        "q_values": np.minimum(1.0, 3 * p),
        "low": effects - 1.96 * errors,
        "high": effects + 1.96 * errors,
        "noise": errors / 2,
        "courses": COURSES,
        "table": ResultTable("effects", "Effects", ("outcome", "effect"), [("a", 0.5)]),
    }
    return Comparison(**given | changes)


def test_what_was_found_is_said_with_its_interval():
    found, hidden, methods = findings_section(compared(halved=True)).paragraphs
    assert found.startswith("1 of 3 effects is significant at a false discovery rate of 5%")
    assert "visual - motor +0.5 (95% interval 0.402 to 0.598)" in found
    assert "half the difference" in found
    assert "Privacy noise is 25% of the variance" in hidden
    assert "Group membership was protected" in methods
    assert "was not protected" in findings_section(compared(public_groups=True)).paragraphs[2]


def test_what_noise_could_hide_is_the_effect_of_a_power_of_four_fifths():
    """z of 0.05 / 3, two-sided, and of 0.8: (2.394 + 0.842) 0.05."""
    assert "an effect of 0.162 is found in 80% of studies" in findings_section(compared()).paragraphs[1]


def test_what_was_not_fixed_beforehand_is_called_exploratory():
    assert "fixed before the first release" in findings_section(compared()).paragraphs[-1]
    for effects in ((0.0, 0.01, 0.02), (np.nan,) * 3):
        first, *_, methods = findings_section(compared(effects, exploratory=True)).paragraphs
        assert first.startswith("Exploratory:")
        assert "The comparison is exploratory" in methods


def test_nothing_found_is_no_evidence_of_nothing():
    said = findings_section(compared((0.0, 0.01, 0.02))).paragraphs[0]
    assert said.startswith("None of 3 effects is significant")
    assert "not evidence of no difference" in said


def test_effects_that_cannot_be_estimated_are_not_drawn():
    section = findings_section(compared((np.nan,) * 3))
    assert "No effect can be estimated" in section.paragraphs[0]
    assert not section.figures


def test_pairs_are_drawn_as_a_matrix_and_all_as_a_forest():
    matrix, forest = findings_section(compared()).figures
    assert "Matrix of effects on connectivity between 3 networks" in matrix.alt
    assert "visual - motor +0.5" in forest.alt
    assert len(findings_section(compared(courses=())).figures) == 1
    assert [file.name for file in findings_section(compared()).files] == ["effects.csv", "groups.tsv"]


def test_a_matrix_has_every_pair_twice_and_blocks_on_its_diagonal():
    names = ("within a", "a - b", "within b")
    values, marks = pair_matrix(names, ("a", "b"), np.array([1.0, 2.0, 3.0]), np.array([True, False, False]))
    np.testing.assert_array_equal(values, [[1, 2], [2, 3]])
    np.testing.assert_array_equal(marks, [[True, False], [False, False]])
    assert np.isnan(pair_matrix(("a - b",), ("a", "b"), np.ones(1), np.ones(1, bool))[0]).sum() == 2


def test_effects_are_where_their_networks_are():
    maps = np.array([[1.0, 0.5, 0.0, 0.1], [0.0, -0.2, -2.0, 0.1]])
    assert effects_on_maps(np.array([0.2, -0.4]), maps)[0] == pytest.approx([0.5, 0.5, -1.0, 0.0])
