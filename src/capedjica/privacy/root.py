"""Roots of continuous functions, by the method of Brent (1973, chapter 4).

It takes the same steps as ``scipy.optimize.brentq`` and returns the same number to the last bit. Loading
``scipy.optimize`` takes longer than most commands, all of which need a root or two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

SMALLEST_RTOL: Final = 4 * float(np.finfo(float).eps)
MOST_STEPS: Final = 500


def root(
    function: Callable[[float], float], low: float, high: float, xtol: float, rtol: float = SMALLEST_RTOL
) -> float:
    """Return a root of a function with different signs at both ends of an interval.

    Parameters
    ----------
    function : callable
        A continuous function.
    low, high : float
        The interval.
    xtol, rtol : float
        Largest absolute and relative errors; both are added.
    """
    before, f_before, now, f_now = low, float(function(low)), high, float(function(high))
    if 0 in (f_before, f_now):
        return now if f_before else before
    if not (f_before < 0 < f_now or f_now < 0 < f_before):
        raise ValueError(f"the function has no root between {low:g} and {high:g}")
    other, f_other, last_step, step = before, f_before, 0.0, 0.0
    for _ in range(MOST_STEPS):
        if f_before != 0 and f_now != 0 and (f_before < 0) != (f_now < 0):
            other, f_other = before, f_before
            last_step = step = now - before
        if abs(f_other) < abs(f_now):
            before, now, other = now, other, now
            f_before, f_now, f_other = f_now, f_other, f_now
        tolerance, half = (xtol + rtol * abs(now)) / 2, (other - now) / 2
        if f_now == 0 or abs(half) < tolerance:
            return now
        tried = math.inf
        if abs(last_step) > tolerance and abs(f_now) < abs(f_before):
            tried = _interpolated(before, f_before, now, f_now, other, f_other)
        good = 2 * abs(tried) < min(abs(last_step), 3 * abs(half) - tolerance)
        last_step, step = (step, tried) if good else (half, half)
        before, f_before = now, f_now
        now += step if abs(step) > tolerance else math.copysign(tolerance, half)
        f_now = float(function(now))
    raise ValueError(f"no root found between {low:g} and {high:g}")


def _interpolated(
    before: float, f_before: float, now: float, f_now: float, other: float, f_other: float
) -> float:
    """Return the step to the root of a line or of an inverse parabola; infinite if it has none."""
    if before == other:
        return -f_now * (now - before) / (f_now - f_before)
    first, second = (f_before - f_now) / (before - now), (f_other - f_now) / (other - now)
    divisor = second * first * (f_other - f_before)
    return -f_now * (f_other * second - f_before * first) / divisor if divisor else math.inf
