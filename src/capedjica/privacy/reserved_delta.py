r"""The part of delta that is held back for what the mathematics of Gaussians leaves out.

Noise lies on a grid and comes from a pseudo-random stream. Of every delta, ``RESERVED_DELTA`` is not spent on
mu: one half of it covers the grid, the other half the stream. A release that may use the share
:math:`\mu_i^2 / \mu^2` of a budget may use the same share of each half, so whatever keeps the sum of the
:math:`\mu_i^2` below :math:`\mu^2` keeps both halves from being overdrawn, adaptively chosen shares included
(docs/concepts/privacy.md, section 2).

**The grid** adds to delta at every epsilon (:func:`capedjica.securesum.discrete_gaussian.grid_delta`).

**The stream** keeps everything drawn within a total-variation distance :math:`\rho` of ideal random numbers
(:func:`capedjica.securesum.noise.total_variation_bound`). Two things follow. First, there is a procedure with
ideal random numbers, exactly differentially private, whose outcome is that of the real one except with
probability :math:`\rho`; this is independent of epsilon. Second, with the laws :math:`P, Q` of two neighbours
and their ideals :math:`P', Q'`,

.. math:: P(E) \le P'(E) + \rho \le e^\varepsilon Q'(E) + \delta + \rho
          \le e^\varepsilon Q(E) + \delta + (1 + e^\varepsilon) \rho ,

so the real one satisfies the inequality itself with :math:`(1 + e^\varepsilon) \rho` more. No bound that
knows only :math:`\rho` can do much better: an event with :math:`Q(E) = 0` may have :math:`Q'(E) = \rho`.
Up to ``STREAM_EPSILON`` delta includes this, and what would need more is refused. Beyond it no reserve
suffices (:math:`e^{100} > 10^{43}`); there the first statement is what is claimed, :math:`\rho` itself is
held below the reserve, and a result says so.
"""

from __future__ import annotations

import math
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy import validate

RESERVED_DELTA: Final = 1e-6
# The largest epsilon at which delta includes what the stream adds to it.
STREAM_EPSILON: Final = 10.0


def stream_delta(distance: float, epsilon: float) -> float:
    r"""Return what a stream at total-variation distance :math:`\rho` adds to delta: (1 + e^epsilon) rho."""
    validate.nonnegative("epsilon", epsilon)
    if not distance:
        return 0.0
    return min(1.0, distance + math.exp(min(0.0, epsilon + math.log(distance))))


def difference(delta: float) -> float:
    """Return the probability with which what was drawn may differ from ideal random numbers, at most."""
    return delta * RESERVED_DELTA / 2


def check_reserve(epsilon: float, delta: float, share: float, grid: float, distance: float) -> None:
    """Refuse what would use more of a budget's reserve than its share of the budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    share : float
        Part of its mu^2 that is charged.
    grid : float
        What the grid adds to delta.
    distance : float
        How far what is drawn is from ideal random numbers.

    Raises
    ------
    InputError
        If either half of the reserve does not suffice.
    """
    half = delta * RESERVED_DELTA / 2 * share
    stream = stream_delta(distance, epsilon) if epsilon <= STREAM_EPSILON else distance
    if grid > half:
        raise InputError(f"delta {delta:g} is too small: rounding to a grid adds {grid:.2g} to it")
    if stream > half:
        raise InputError(
            f"delta {delta:g} is too small: the pseudo-random stream of the noise adds {stream:.2g} to it"
        )
