r"""Charges, their sum, and caps on the sum.

A release that shifts the adversary's view by mu standard deviations costs :math:`\mu^2`. Charges add up, even
if the cost of each release is chosen after seeing the earlier ones, as long as a cap on the sum
is checked before each release (a privacy filter: docs/concepts/privacy.md, section 2). A cap
:math:`(\epsilon, \delta)` is therefore a cap on :math:`\sum_i \mu_i^2`, at the largest :math:`\mu` whose
exact curve :math:`\delta(\epsilon)` stays below it. Charges are rounded up and caps are rounded down, so
rounding in this module never understates the sum; the curve itself is accurate to 1e-11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from capedjica.privacy import validate
from capedjica.privacy.gaussian import gaussian_epsilon, gaussian_mu
from capedjica.privacy.wording import short

_ABSURD_MU: Final = 1e6


def charge(mu: float) -> float:
    r"""Return :math:`\mu^2` rounded up; infinity for a release without privacy."""
    mu = validate.nonnegative("mu", mu)
    square = mu * mu
    if square == math.inf or Fraction(square) >= Fraction(mu) ** 2:
        return square
    return math.nextafter(square, math.inf)


def total(charges: Sequence[float]) -> float:
    """Return the correctly rounded sum of the charges; infinity if it exceeds the range of a double."""
    try:
        return math.fsum(charges)
    except OverflowError:
        return math.inf


def epsilon_of(mu2: float, delta: float) -> float:
    r"""Return the epsilon at ``delta`` of charges that add up to :math:`\mu^2`.

    For absurdly large charges, requested by mistake, return the upper bound
    :math:`\epsilon = \mu^2/2 + 40\mu`, for which
    :math:`\delta(\epsilon) \le \Phi(-\epsilon/\mu + \mu/2) = \Phi(-40)`, less than any double above 0.
    """
    mu = math.nextafter(math.sqrt(mu2), math.inf) if mu2 else 0.0
    return gaussian_epsilon(mu, delta) if mu < _ABSURD_MU else mu2 / 2 + 40 * mu


@dataclass(frozen=True, slots=True)
class Cap:
    r"""The largest (epsilon, delta) that may be spent; ``mu2`` is the same cap as a sum of charges.

    Parameters
    ----------
    epsilon, delta : float
        Finite epsilon above 0, delta strictly between 0 and 1.
    """

    epsilon: float
    delta: float
    mu2: float = field(init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {short(self.delta, 3)}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", validate.probability("delta", self.delta))
        mu = gaussian_mu(self.epsilon, self.delta)
        square = mu * mu
        down = square if Fraction(square) <= Fraction(mu) ** 2 else math.nextafter(square, 0.0)
        object.__setattr__(self, "mu2", down)
