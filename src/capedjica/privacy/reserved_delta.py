r"""The part of delta reserved for deviations from ideal continuous Gaussian noise.

Noise lies on a grid and comes from a pseudo-random stream. Of every delta, the fraction ``RESERVED_DELTA`` is
not spent on mu: one half of it covers the grid, the other half the stream. A release that may use the share
:math:`\mu_i^2 / \mu^2` of a budget may use the same share of each half, so any rule that keeps the sum of the
:math:`\mu_i^2` below :math:`\mu^2` keeps both halves from being exceeded, even with adaptively chosen shares
(docs/concepts/privacy.md, section 2).

**The grid** adds to delta at every epsilon (:func:`capedjica.securesum.discrete_gaussian.grid_delta`).

**The stream** keeps everything drawn within a total-variation distance :math:`\rho` of ideal random numbers
(:func:`capedjica.securesum.noise.total_variation_bound`). This has two consequences. First, there is an
exactly differentially private procedure with ideal random numbers whose outcome equals that of the real
procedure except with probability :math:`\rho`, independently of epsilon. Second, with the distributions
:math:`P, Q` of two neighbours and their ideal counterparts :math:`P', Q'`,

.. math:: P(E) \le P'(E) + \rho \le e^\varepsilon Q'(E) + \delta + \rho
          \le e^\varepsilon Q(E) + \delta + (1 + e^\varepsilon) \rho ,

so the real procedure itself satisfies the inequality with :math:`(1 + e^\varepsilon) \rho` added to delta. No
bound based on :math:`\rho` alone can be much better: an event with :math:`Q(E) = 0` may have
:math:`Q'(E) = \rho`. Up to ``STREAM_EPSILON``, delta includes this term, and a release that needs more is
refused. For a larger epsilon no reserve suffices (:math:`e^{100} > 10^{43}`). In that case only the first
statement is claimed, :math:`\rho` itself is kept below the reserve, and the result says so.
"""

from __future__ import annotations

import math
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy import validate

RESERVED_DELTA: Final = 1e-6
# The largest epsilon at which delta includes the contribution of the stream.
STREAM_EPSILON: Final = 10.0


def stream_delta(distance: float, epsilon: float) -> float:
    r"""Return the term (1 + e^epsilon) rho that a stream at total-variation distance rho adds to delta."""
    validate.nonnegative("epsilon", epsilon)
    if not distance:
        return 0.0
    return min(1.0, distance + math.exp(min(0.0, epsilon + math.log(distance))))


def difference(delta: float) -> float:
    """Return the largest probability with which the numbers drawn may differ from ideal random numbers."""
    return delta * RESERVED_DELTA / 2


def check_reserve(epsilon: float, delta: float, share: float, grid: float, distance: float) -> None:
    """Refuse a release that would use more of a budget's reserve than its share of the budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    share : float
        Fraction of the budget's mu^2 that is charged.
    grid : float
        The grid's contribution to delta.
    distance : float
        Total-variation distance of the numbers drawn from ideal random numbers.

    Raises
    ------
    InputError
        If either half of the reserve is insufficient.
    """
    half = delta * RESERVED_DELTA / 2 * share
    stream = stream_delta(distance, epsilon) if epsilon <= STREAM_EPSILON else distance
    if grid > half:
        raise InputError(f"delta {delta:g} is too small: rounding to a grid adds {grid:.2g} to it")
    if stream > half:
        raise InputError(
            f"delta {delta:g} is too small: the pseudo-random stream of the noise adds {stream:.2g} to it"
        )
