"""The slow, exact discrete Gaussian: rational arithmetic and fair coins only, the oracle of the fast one.

Follows Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy" (2020), whose Bernoulli
factory needs no value of the exponential function. It shares no code with the fast sampler.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from fractions import Fraction

from capedjica.errors import InputError

RandomBits = Callable[[int], int]


class ExactNoise:
    """Exact samplers built on a source of random bits.

    Parameters
    ----------
    random_bits : callable, optional
        ``random_bits(n)`` returns a uniform integer of ``n`` bits; the operating system's by default.
    """

    def __init__(self, random_bits: RandomBits = secrets.randbits) -> None:
        self._random_bits = random_bits

    def below(self, bound: int) -> int:
        """Draw a uniform integer of [0, bound), by rejection."""
        while True:
            candidate = self._random_bits(bound.bit_length())
            if candidate < bound:
                return candidate

    def bernoulli(self, probability: Fraction) -> bool:
        """Flip a coin of rational probability."""
        return self.below(probability.denominator) < probability.numerator

    def bernoulli_exp_minus(self, gamma: Fraction) -> bool:
        """Flip a coin of probability exp(-gamma), gamma >= 0 (Algorithm 1 of the paper)."""
        whole, rest = divmod(gamma, 1)
        return all(self._bernoulli_exp_minus_unit(Fraction(1)) for _ in range(whole)) and (
            self._bernoulli_exp_minus_unit(rest)
        )

    def _bernoulli_exp_minus_unit(self, gamma: Fraction) -> bool:
        """Flip the same coin for gamma in [0, 1]: Bernoulli(gamma / k) first fails at an odd k."""
        trial = 1
        while self.bernoulli(gamma / trial):
            trial += 1
        return trial % 2 == 1

    def discrete_laplace(self, scale: int) -> int:
        """Draw k with probability proportional to exp(-|k| / scale) (Algorithm 2)."""
        while True:
            rest = self.below(scale)
            if not self.bernoulli_exp_minus(Fraction(rest, scale)):
                continue
            whole = 0
            while self.bernoulli_exp_minus(Fraction(1)):
                whole += 1
            magnitude = rest + scale * whole
            negative = self._random_bits(1)
            if magnitude or not negative:
                return -magnitude if negative else magnitude

    def discrete_gaussian(self, sigma: float | Fraction) -> int:
        """Draw k with probability proportional to exp(-k^2 / (2 sigma^2)) (Algorithm 3)."""
        if not 0 < sigma < float("inf"):
            raise InputError(f"sigma must be a positive finite number, got {sigma!r}")
        variance = Fraction(sigma) ** 2
        scale = int(sigma) + 1
        while True:
            candidate = self.discrete_laplace(scale)
            gap = abs(candidate) - variance / scale
            if self.bernoulli_exp_minus(gap**2 / (2 * variance)):
                return candidate
