r"""capeDJICA (Algorithm 4 of the paper): Infomax by natural gradient on private means.

Iteration j requests one mean over subjects, the combined gradients of W and b, each in units of its clip:
:math:`[\bar G_m / B_G, \bar h_m / B_h]`, a vector of norm at most sqrt(2). The noise is the same on all
coordinates, so the noise on the gradients of W and b is proportional to B_G and B_h, as in the paper, and one
release costs as much as the paper's two in total.

The safeguards are those of Baker et al. 2018, based on Bell and Sejnowski's Infomax as implemented in EEGLAB:

- if an entry of W exceeds 1e8, restart with W = I at 0.9 times the rate;
- if the squared change of W exceeds 1e9, continue at 0.8 times the rate;
- if the step turns by more than 60 degrees against the last one that did, continue at 0.9 times the rate;
- stop when the squared change of W falls below 1e-6, or after J iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from capedjica.algorithms.kernels import PackedSubjects, infomax_statistics
from capedjica.algorithms.state import pack
from capedjica.mechanisms.contract import Query
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray

Mean = Callable[[bytes], FloatArray]

B_G: Final = 30.0
B_H: Final = math.sqrt(30.0)
MAX_WEIGHT: Final = 1e8
BLOW_UP: Final = 1e9
TOLERANCE: Final = 1e-6
TURN: Final = 60.0
_RESTART_RATE, _BLOW_UP_RATE, _TURN_RATE = 0.9, 0.8, 0.9


def default_learning_rate(n_components: int) -> float:
    """Return rho = 0.015 / ln R, the paper's choice; it is undefined for a single component."""
    return 0.015 / math.log(validate.count("n_components", n_components, minimum=2))


def gradient_query(n_components: int) -> Query:
    """Return the query of a subject's combined gradients, each in units of its clip."""
    return Query("gradients of W and b", n_components * (n_components + 1), math.sqrt(2))


def subject_gradients(
    packed: PackedSubjects, W: FloatArray, b: FloatArray, clip_g: float = B_G, clip_h: float = B_H
) -> FloatArray:
    """Return one row per subject: mean clipped gradients of W and b, each in units of its clip."""
    rows = infomax_statistics(packed, W, b, clip_g, clip_h)
    size = packed.n_features
    rows[:, : size * size] /= clip_g
    rows[:, size * size :] /= clip_h
    return rows


@dataclass
class Infomax:
    """Aggregator side of Algorithm 4: the public state, and its update after each mean.

    Parameters
    ----------
    n_components : int
        R.
    learning_rate : float
        Initial rho, which safeguards may lower.
    clip_g, clip_h : float
        B_G and B_h.
    tolerance : float
        Squared change of W at which to stop.
    """

    n_components: int
    learning_rate: float
    clip_g: float = B_G
    clip_h: float = B_H
    tolerance: float = TOLERANCE
    W: FloatArray = field(init=False)
    b: FloatArray = field(init=False)
    change: float = field(init=False, default=math.inf)
    n_restarts: int = field(init=False, default=0)
    _turned: FloatArray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.W, self.b = np.eye(self.n_components), np.zeros(self.n_components)
        self.change, self._turned = math.inf, None

    @property
    def state(self) -> bytes:
        """Public state at which the next gradients are computed."""
        return pack(W=self.W, b=self.b)

    @property
    def converged(self) -> bool:
        """Whether the last change of W was below the tolerance."""
        return self.change < self.tolerance

    def update(self, mean: FloatArray) -> None:
        """Take one step along the mean gradients."""
        size = self.n_components
        step_w = self.learning_rate * self.clip_g * mean[: size * size].reshape(size, size)
        step_b = self.learning_rate * self.clip_h * mean[size * size :]
        self.move(step_w, step_b)

    def move(self, step_w: FloatArray, step_b: FloatArray) -> None:
        """Change W and b by these steps, then apply the safeguards."""
        W = self.W + step_w
        if not np.abs(W).max() <= MAX_WEIGHT:
            self.learning_rate *= _RESTART_RATE
            self.n_restarts += 1
            self._reset()
            return
        self.W, self.b, self.change = W, self.b + step_b, float(np.sum(step_w**2))
        self._slow_down_in_turns(step_w)
        if self.change > BLOW_UP:
            self.learning_rate *= _BLOW_UP_RATE

    def _slow_down_in_turns(self, step: FloatArray) -> None:
        """Lower the rate, and store the step, if it is over 60 degrees away from the last one stored."""
        if self._turned is None:
            self._turned = step
            return
        lengths = np.linalg.norm(step) * np.linalg.norm(self._turned)
        cosine = float(np.sum(step * self._turned) / lengths) if lengths else 1.0
        if math.degrees(math.acos(min(1.0, max(-1.0, cosine)))) > TURN:
            self.learning_rate *= _TURN_RATE
            self._turned = step


def descend(
    infomax: Infomax, mean: Mean, n_iterations: int, progress: Callable[[Infomax, int], None] | None = None
) -> int:
    """Iterate until convergence, at most ``n_iterations`` times; return the number of iterations."""
    for iteration in range(1, n_iterations + 1):
        infomax.update(mean(infomax.state))
        if progress is not None:
            progress(infomax, iteration)
        if infomax.converged:
            return iteration
    return n_iterations
