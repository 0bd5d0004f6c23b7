r"""Number and lengths of the rotations of joint ICA, from noise that is known.

The mean :math:`m_i` of the rotation statistic responds to the angles :math:`\theta_* - \theta_i` that are
left by a factor h, and has noise of standard deviation :math:`\nu` on each of n numbers:

.. math:: m_i = h\,(\theta_* - \theta_i) + \nu\,\epsilon_i .                                            (1)

A rotation by :math:`m_i / h` would be a Newton step. With rotations by :math:`m_j / (h j)`, W is the average
of j estimates with noise :math:`\nu / h` each (Robbins and Monro 1951). As J rotations share one budget,
:math:`\nu^2` grows with J, and the noise on that average is the same for every J. But equation (1) holds for
small angles only, so later estimates are better: the first third of the rotations are Newton steps, and the
others average with weights that increase,

.. math:: \theta_{i+1} - \theta_i = \frac{3}{(2 j + 1)(h + d)}\,m_i, \qquad j = i - J/3 ,               (2)

which has 1.7 times the variance of equal weights from the start. If few rotations are noisy, too, the start
is part of the average: with variance p of its angles, that is a damping of :math:`d = \nu_J^2 / (p h)`, for
the noise :math:`\nu_J` of one rotation with the whole budget. There is none up to a noise (`LOUD`) at which
it would cost data with a bad start more than it gains for others.

The response h differs between data: 0.11 on ABIDE, 0.35 on synthetic data of the paper's model. Rotations
show it: by (1), with g the factor of (2),

.. math:: E\,\langle m_i - m_{i+1},\, m_i \rangle = n \nu^2 + g\,h\,E\,\lVert m_i \rVert^2 ,            (3)

which is computed from what was published, and thus free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from capedjica.tools.arrays import FloatArray

FEWEST_ROTATIONS: Final = 4
MOST_ROTATIONS: Final = 32
# Number of rotations, relative to the noise of one with the whole rotation budget.
PER_NOISE: Final = 0.08
# Noise of one rotation with the whole budget above which rotations are damped; damping per squared noise.
LOUD: Final = 0.007
DAMPING: Final = 4000.0
# Response of the mean to an angle before anything is known of it, and its range.
RESPONSE: Final = 0.25
RESPONSES: Final = (0.1, 0.5)
# Weight of the former, in means of pure noise.
PRIOR_MEANS: Final = 2.0


def suitable_rotations(noise: float) -> int:
    """Return the number of rotations for the noise of one with the whole rotation budget, above 0."""
    return max(FEWEST_ROTATIONS, round(min(PER_NOISE / noise, MOST_ROTATIONS)))


class RotationSteps:
    """The rotations of one run, each from the mean that was measured before it.

    Parameters
    ----------
    n_rotations : int
        Their number J.
    noise : float
        Standard deviation of the noise on one with the whole rotation budget.

    Attributes
    ----------
    turns : list of float
        Rotation angles per unit of each mean so far.
    response : float
        Estimate of h, equation (3).
    """

    def __init__(self, n_rotations: int, noise: float) -> None:
        self.turns: list[float] = []
        self.response = RESPONSE
        self._n_full = round(n_rotations / 3)
        self._damping = DAMPING * max(0.0, noise**2 - LOUD**2)
        self._explained = self._energy = 0.0
        self._last: FloatArray | None = None

    def angles(self, mean: FloatArray, noise: float) -> FloatArray:
        """Return the angles to rotate by, for a mean with this noise on each of its numbers."""
        if self._last is not None:
            self._learn(self._last, mean, noise)
        self._last = mean
        number = max(1, len(self.turns) + 1 - self._n_full)
        averaging = 3 / (2 * number + 1) / (self.response + self._damping)
        self.turns.append(min(averaging, 1 / (RESPONSE + self._damping)))
        return self.turns[-1] * mean

    def _learn(self, last: FloatArray, mean: FloatArray, noise: float) -> None:
        """Estimate the response by equation (3) from all means so far."""
        pure = mean.size * noise**2
        self._explained += (float(np.sum((last - mean) * last)) - pure) / self.turns[-1]
        self._energy += float(np.sum(last**2))
        known = PRIOR_MEANS * pure
        estimate = (self._explained + known * RESPONSE) / (self._energy + known)
        self.response = float(np.clip(estimate, *RESPONSES))


def angle_errors(noise: Sequence[float], turns: Sequence[float], response: float) -> tuple[float, float]:
    """Return the fraction of initial angle errors left by the rotations, and the spread due to noise.

    ``turns`` are the angles per unit of a mean.
    """
    kept, variance = 1.0, 0.0
    for one, turn in zip(noise, turns, strict=True):
        left = 1 - min(1.0, turn * response)
        kept, variance = left * kept, left**2 * variance + (turn * one) ** 2
    return kept, math.sqrt(variance)
