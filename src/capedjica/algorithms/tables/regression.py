r"""Logistic regression by gradient descent on private means.

A subject with features x and label y in {0, 1} has :math:`\tilde x = (x, 1)`, the 1 for the intercept, and at
the public weights w the logistic loss :math:`\log(1 + e^{w'\tilde x}) - y\,w'\tilde x`, whose gradient is

.. math:: g_m = (\sigma(w'\tilde x_m) - y_m)\, \tilde x_m .                                          (1)

Each iteration requests the mean of g over subjects, each g clipped to the norm C, and takes one step

.. math:: w \leftarrow w - \rho (\bar g + \lambda w_0), \qquad w_0 = w \text{ with intercept } 0 .      (2)

Two gradients of norm C can point in opposite directions, so replacing one of M subjects moves the mean by at
most 2C/M: a spread of 2. Features are clipped to a public bound B. This is not needed for privacy; it bounds
the gradient by :math:`\sqrt{B^2 + 1}` and the curvature of the loss by :math:`(B^2 + 1)/4`, hence the default
:math:`\rho = 4 / (B^2 + 1)`, at which the loss never increases in the absence of noise and clipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy.special import expit

from capedjica.algorithms.analysis import Means, Progress, Result, ResultTable
from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.rows import batches, clip_rows, named, public_array
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.tools.arrays import FloatArray, Scan


def largest_gradient(feature_bound: float) -> float:
    """Return sqrt(B^2 + 1), which no gradient exceeds: a larger C clips nothing."""
    return math.hypot(feature_bound, 1.0)


def default_clip(feature_bound: float) -> float:
    """Return C = sqrt(B^2 + 1) / 3: noise is proportional to C, and most gradients are much smaller."""
    return largest_gradient(feature_bound) / 3


def default_learning_rate(feature_bound: float) -> float:
    """Return rho = 4 / (B^2 + 1), one over the largest curvature of the loss."""
    return 4 / largest_gradient(feature_bound) ** 2


def gradient_query(n_features: int, clip: float) -> Query:
    """Return the query of a subject's clipped gradient (1)."""
    return Query("gradient of the logistic loss", n_features + 1, clip)


def extend(features: FloatArray, feature_bound: float) -> FloatArray:
    """Return the features clipped to the bound, with a 1 for the intercept."""
    return np.insert(clip_rows(features, feature_bound), features.shape[1], 1.0, axis=1)


def probability(extended: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the predicted probability of label 1."""
    with np.errstate(all="ignore"):
        return np.asarray(expit(extended @ weights))


def person_gradients(extended: FloatArray, labels: FloatArray, state: bytes) -> Iterator[FloatArray]:
    """Return the gradient (1) of each subject at the public state, in batches; the release clips them."""
    weights = public_array(state, "weights", (extended.shape[1],))

    def gradients(part: slice) -> FloatArray:
        excess = probability(extended[part], weights) - labels[part]
        return excess[:, np.newaxis] * extended[part]

    return map(gradients, batches(*extended.shape))


@dataclass
class LogisticDescent:
    """Aggregator side of logistic regression: the public weights, and their update after each mean.

    Parameters
    ----------
    n_features : int
        Number of features.
    learning_rate : float
        rho.
    l2 : float
        lambda, which shrinks the weights (not the intercept) towards zero.
    """

    n_features: int
    learning_rate: float
    l2: float = 0.0
    weights: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.weights = np.zeros(self.n_features + 1)

    @property
    def state(self) -> bytes:
        """Public state at which the next gradients are computed."""
        return pack(weights=self.weights)

    def update(self, mean: FloatArray) -> None:
        """Take the step (2) along the mean gradient."""
        penalty = self.l2 * np.append(self.weights[:-1], 0.0)
        self.weights = self.weights - self.learning_rate * (mean + penalty)


@dataclass(frozen=True, eq=False)
class Weights(Result):
    """Weight of each feature, and the intercept."""

    coefficients: FloatArray
    intercept: float
    names: Sequence[str] = ()

    def arrays(self) -> Mapping[str, FloatArray]:
        """Return the weights, the intercept last."""
        return {"weights": np.append(self.coefficients, self.intercept)}

    def tables(self) -> Sequence[ResultTable]:
        """Return a row for each weight."""
        names = [*named(self.names, len(self.coefficients)), "(intercept)"]
        rows = list(zip(names, [*map(float, self.coefficients), self.intercept], strict=True))
        caption = "Weights of the logistic model: change in the log odds of label 1 per unit of a feature."
        return (ResultTable("weights", caption, ("feature", "weight"), rows, "bars"),)


@dataclass(frozen=True)
class LogisticOfRows:
    """Logistic regression on rows whose last number is the label, 0 or 1; rows with other labels are zero.

    Parameters
    ----------
    n_features : int
        Number of features, without the label.
    feature_bound : float
        B, a public bound on the norm of the features.
    clip : float, optional
        C, the largest norm of a gradient.
    max_iter : int
        Number of steps J.
    learning_rate : float, optional
        rho.
    l2 : float
        lambda.
    names : tuple of str
        Names of the features.
    """

    n_features: int
    feature_bound: float
    clip: float | None = None
    max_iter: int = 30
    learning_rate: float | None = None
    l2: float = 0.0
    names: tuple[str, ...] = ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the single query, which is repeated in every step."""
        clip = default_clip(self.feature_bound) if self.clip is None else self.clip
        return (Stage(gradient_query(self.n_features, clip), self.max_iter),)

    def site(self, subjects: Sequence[Scan]) -> Statistics:
        """Return the gradient of every subject at the current weights."""
        rows = np.asarray(subjects, dtype=np.float64)
        labels = np.where(np.isin(rows[:, -1], (0.0, 1.0)), rows[:, -1], np.nan)
        return partial(_at_weights, extend(rows[:, :-1], self.feature_bound), labels)

    def estimate(self, means: Means, progress: Progress | None = None) -> Weights:
        """Run the descent."""
        rate = self.learning_rate or default_learning_rate(self.feature_bound)
        descent = LogisticDescent(self.n_features, rate, self.l2)
        for iteration in range(1, self.max_iter + 1):
            descent.update(means.mean(0, descent.state))
            if progress is not None:
                progress(descent.weights, iteration)
        weights = descent.weights
        return Weights(weights[:-1], float(weights[-1]), self.names, n_iter=self.max_iter)


def _at_weights(
    extended: FloatArray, labels: FloatArray, stage: int, published: bytes, state: bytes
) -> Iterable[FloatArray]:
    return person_gradients(extended, labels, state)
