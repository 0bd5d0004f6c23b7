"""Rotations under noise, in the linear model in which their lengths are derived."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capedjica.algorithms.ica.rotation_steps import (
    DAMPING,
    FEWEST_ROTATIONS,
    LOUD,
    MOST_ROTATIONS,
    RESPONSE,
    RotationSteps,
    angle_errors,
    suitable_rotations,
)

N_ANGLES = 190


def errors(response, n_rotations, noise, start, seed=0):
    """Return the angles that are left, the steps, and the noise of each mean."""
    rng, one = np.random.default_rng(seed), noise * math.sqrt(n_rotations)
    left, steps = np.full(N_ANGLES, start), RotationSteps(n_rotations, noise)
    for _ in range(n_rotations):
        left = left - steps.angles(response * left + one * rng.standard_normal(N_ANGLES), one)
    return left, steps, one


@pytest.mark.parametrize("response", [0.15, 0.25, 0.35])
def test_the_response_is_found(response):
    found = [errors(response, 30, 0.001, 0.1, seed)[1].response for seed in range(20)]
    assert np.mean(found) == pytest.approx(response, rel=0.1)


def test_without_a_signal_the_response_stays_as_it_was():
    """Noise alone must not look like a response: 0 would make steps long, large values make them short."""
    found = [errors(0.0, 12, 0.005, 0.0, seed)[1].response for seed in range(20)]
    assert 0.1 < np.mean(found) < RESPONSE + 0.05


@pytest.mark.parametrize("n_rotations", [6, 12, 24])
def test_more_rotations_cost_nothing(n_rotations):
    """The noise that is left is at most 1.5 times that of one Newton step with the whole budget."""
    noise = 0.004
    left = [errors(0.3, n_rotations, noise, 0.05, seed)[0] for seed in range(20)]
    assert 1.0 < np.sqrt(np.mean(np.square(left))) / (noise / 0.3) < 1.5


def test_a_start_is_left_only_as_far_as_noise_allows():
    quiet, loud = RotationSteps(6, LOUD), RotationSteps(6, 3 * LOUD)
    mean = np.ones(N_ANGLES)
    assert quiet.angles(mean, 0.1) == pytest.approx(mean / RESPONSE)
    assert loud.angles(mean, 0.1) == pytest.approx(mean / (RESPONSE + 8 * DAMPING * LOUD**2))


def test_errors_of_angles_are_those_of_the_model():
    runs = [errors(0.3, 12, 0.004, 0.2, seed) for seed in range(50)]
    kept, spread = angle_errors([runs[0][2]] * 12, runs[0][1].turns, 0.3)
    assert np.std([left for left, *_ in runs]) == pytest.approx(spread, rel=0.1)
    assert np.mean([left for left, *_ in runs]) == pytest.approx(0.2 * kept, abs=0.002)


def test_there_are_fewer_rotations_where_there_is_more_noise():
    counts = [suitable_rotations(noise) for noise in (1e-6, 0.002, 0.01, 0.1, math.inf)]
    assert counts[0] == MOST_ROTATIONS
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == FEWEST_ROTATIONS
