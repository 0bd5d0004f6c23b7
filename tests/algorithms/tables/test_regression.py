"""Gradients of the logistic loss: right, bounded, and one person's alone."""

import math

import numpy as np
import pytest

from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.regression import (
    LogisticDescent,
    default_clip,
    default_learning_rate,
    extend,
    gradient_query,
    largest_gradient,
    person_gradients,
)
from capedjica.errors import ProtocolError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 3))
Y = (RNG.random(50) < 0.4).astype(float)
W = np.array([0.3, -1.2, 0.7, 0.1])
BOUND = 2.0


def gradients(X, y, weights=W, bound=BOUND):
    return np.concatenate(list(person_gradients(extend(X, bound), y, pack(weights=weights))))


def loss(weights):
    scores = extend(X, BOUND) @ weights
    return np.mean(np.logaddexp(0, scores) - Y * scores)


def test_the_mean_gradient_is_the_derivative_of_the_loss():
    step = 1e-6
    numerical = [(loss(W + step * e) - loss(W - step * e)) / (2 * step) for e in np.eye(4)]
    assert gradients(X, Y).mean(axis=0) == pytest.approx(numerical, abs=1e-8)


def test_no_gradient_exceeds_the_bound_which_is_reached():
    longest = np.array([[1e3, 0.0, 0.0], [0.0, -1e3, 0.0]])
    norms = np.linalg.norm(gradients(longest, np.array([1.0, 1.0]), -50 * np.array([1, -1, 0, 0.0])), axis=1)
    assert (norms <= largest_gradient(BOUND) * (1 + 1e-12)).all()
    assert norms == pytest.approx(math.hypot(BOUND, 1))
    assert default_clip(BOUND) < largest_gradient(BOUND)


def test_two_people_can_be_twice_the_clip_apart():
    """So a spread below 2 would be a false guarantee here."""
    query = gradient_query(3, largest_gradient(BOUND))
    x = np.array([[2.0, 0, 0]])
    one = gradients(x, np.array([1.0]), -60 * np.eye(4)[0])
    other = gradients(x, np.array([0.0]), 60 * np.eye(4)[0])
    assert np.linalg.norm(one - other) == pytest.approx(2 * query.clip)
    assert query.spread == 2.0


def test_the_loss_never_rises_at_the_default_rate():
    descent = LogisticDescent(3, default_learning_rate(BOUND))
    losses = [loss(descent.weights)]
    for _ in range(200):
        descent.update(gradients(X, Y, descent.weights).mean(axis=0))
        losses.append(loss(descent.weights))
    assert (np.diff(losses) < 1e-15).all()
    assert losses[-1] < losses[0]


def test_the_penalty_spares_the_intercept():
    descent = LogisticDescent(2, learning_rate=0.5, l2=0.1)
    descent.weights = np.array([1.0, -2.0, 3.0])
    descent.update(np.array([0.2, 0.0, -0.4]))
    assert descent.weights == pytest.approx([1 - 0.5 * 0.3, -2 + 0.5 * 0.2, 3 + 0.5 * 0.4])


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_person_spoils_nobody_else(broken):
    spoilt = X.copy()
    spoilt[7, 1] = broken
    rows = gradients(spoilt, Y)
    assert not np.isfinite(rows[7]).all()
    others = np.arange(50) != 7
    assert (rows[others] == gradients(X, Y)[others]).all()


def test_absurd_features_and_weights_raise_no_warning():
    huge = np.full((4, 3), 1e200)
    assert gradients(huge, np.ones(4), np.full(4, 1e308)).shape == (4, 4)


@pytest.mark.parametrize(
    "state",
    [b"", b"\xff", pack(weights=np.zeros(3)), pack(w=np.zeros(4)), pack(weights=np.zeros(4), more=0)],
)
def test_a_wrong_state_is_refused_before_any_data_is_touched(state):
    with pytest.raises(ProtocolError, match="public state"):
        person_gradients(extend(X, BOUND), Y, state)
