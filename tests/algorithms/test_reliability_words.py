"""The grade of a map and its words: one threshold, one wording, and nothing said that is not known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.algorithms.reliability import GRADES, RELIABLE, Reliability, grade, rounded


@pytest.mark.parametrize(
    ("stability", "expected"),
    [
        (1.0, "good"),
        (0.9, "good"),
        (np.nextafter(0.9, 0), "fair"),
        (0.7, "fair"),
        (np.nextafter(0.7, 0), "poor"),
        (0.0, "poor"),
        (-0.2, "poor"),
        (math.nan, "poor"),
    ],
)
def test_grades(stability, expected):
    assert grade(stability) == expected
    assert Reliability(1, np.array([stability])).grades == [expected]


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_higher_stability_never_has_a_worse_grade(one, other):
    order = [*GRADES, "poor"]
    low, high = sorted((one, other))
    assert order.index(grade(high)) <= order.index(grade(low))


@given(st.floats(0, 1))
def test_what_is_shown_never_looks_better_than_its_grade(stability):
    """0.899 is fair: shown as 0.90 it would look good. Up to the millionth that binary fractions need."""
    shown = float(rounded(stability))
    assert shown <= stability + 1e-8
    assert shown > stability - 0.01
    assert grade(shown) == grade(stability) or abs(stability - shown) < 1e-8


def test_runs_of_good_maps_say_what_is_predicted():
    found = Reliability(3, np.array([0.97, 0.912, 0.95]))
    assert found.banner == ""
    assert found.headline == "3 networks"
    assert found.prediction == (
        "Reliability: 3 good. The predicted correlation of these maps with those of another run with fresh "
        "noise is 0.94 (worst: map 2, 0.91)."
    )
    assert found.mark(1) == "stability 0.91, good"


def test_fair_maps_are_not_said_to_come_again():
    """Two runs of such a study correlate by 0.80, the worst map by 0.75: not the same."""
    found = Reliability(2, np.array([0.85, 0.75]))
    assert found.banner == ""
    assert "Reliability: 2 fair." in found.prediction
    assert "is 0.80 (worst: map 2, 0.75)" in found.prediction
    assert "same" not in found.prediction


@pytest.mark.parametrize(
    ("stability", "banner", "headline"),
    [
        ([0.1, 0.2], "none of the 2 maps should be presented as a network", "2 maps, none of them reliable,"),
        ([0.95, 0.2, 0.3], "maps 2 and 3 of 3 should not be presented", "3 maps, one of them reliable,"),
        ([0.95, 0.2, 0.8], "map 2 of 3 should not be presented as a network", "3 maps, 2 of them reliable,"),
    ],
)
def test_poor_maps_are_warned_of_and_no_networks(stability, banner, headline):
    found = Reliability(len(stability), np.array(stability))
    assert banner in found.banner
    assert found.banner.startswith("Not reliable: ")
    assert found.headline == headline
    assert "network" not in found.headline
    assert [found.poor(index) for index in range(len(stability))] == [one < RELIABLE for one in stability]


def test_of_maps_that_are_not_recoverable_nothing_is_predicted():
    """Their stability of 0 is a mark: another run may well correlate with them."""
    none = Reliability(2, np.zeros(2))
    assert none.prediction == ("Reliability: 2 poor. Nothing is predicted of maps that are not recoverable.")
    assert none.mark(0) == "not recoverable, poor"
    assert "none of the 2 maps should be presented as a network" in none.banner
    some = Reliability(3, np.array([0.9, 0.0, 0.8]))
    assert "another run with fresh noise is 0.85. Nothing is predicted" in some.prediction
    assert "0.00" not in some.prediction
    assert some.mark(2) == "stability 0.80, fair"


def test_without_noise_nothing_is_said_of_noise():
    found = Reliability(2, np.array([1.0, 1.0]), noisy=False)
    assert (found.banner, found.prediction, found.mark(0)) == ("", "", "")
    buried = Reliability(2, np.array([1.0, 0.0]), noisy=False)
    assert "too weak compared with others" in buried.banner
    assert "noise" not in buried.banner + buried.prediction


def test_what_cannot_be_told_is_said_not_to_be_known():
    found = Reliability(2)
    assert "is unknown" in found.banner
    assert found.prediction == found.mark(0) == ""
    assert not found.poor(0)
    assert Reliability(2, noisy=False).banner == ""


def test_of_a_template_the_difference_is_graded_and_its_maps_stay_networks():
    words = Reliability(3, np.array([0.0, 0.95, 0.5]), of_difference=True)
    assert words.banner == "Only 1 of 3 maps differs reliably from the template: read the others as its own."
    assert words.headline == "3 networks"
    assert not any(words.poor(index) for index in range(3))
    assert words.mark(0) == "difference from the template: stability 0.00, poor"
    assert "correlation of their differences from the template" in words.prediction


def test_a_template_that_nobody_left_says_so_and_one_without_noise_says_nothing():
    assert Reliability(2, np.zeros(2), of_difference=True).banner.startswith("No map differs reliably")
    assert Reliability(2, np.zeros(2), noisy=False, of_difference=True).banner == ""
