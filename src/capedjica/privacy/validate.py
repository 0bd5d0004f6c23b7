"""Validation of numerical parameters; every error names the parameter and the value in one line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray


def real(name: str, value: Any) -> float:
    """Return ``value`` as a float that is not NaN; refuse strings, even those that Python could parse."""
    if isinstance(value, str | bytes):
        raise InputError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InputError(f"{name} must be a number below 1.8e308, got a larger number") from None
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, got {value!r}") from None
    if math.isnan(number):
        raise InputError(f"{name} must be a number, got nan")
    return number


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a finite float above 0."""
    number = real(name, value)
    if not 0 < number < math.inf:
        raise InputError(f"{name} must be a finite number above 0, got {value}")
    return number


def nonnegative(name: str, value: Any) -> float:
    """Return ``value`` as a float of at least 0 (infinity allowed)."""
    number = real(name, value)
    if number < 0:
        raise InputError(f"{name} must be at least 0, got {value}")
    return number


def probability(name: str, value: Any) -> float:
    """Return ``value`` as a float strictly between 0 and 1."""
    number = real(name, value)
    if not 0 < number < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value}")
    return number


def count(name: str, value: Any, minimum: int = 1) -> int:
    """Return ``value`` as an integer of at least ``minimum``; as for ``range``, 3.0 is not an integer."""
    real(name, value)
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise InputError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices, and suggest the closest one."""
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}{meant}")


def per_site(name: str, values: ArrayLike, n_sites: int) -> FloatArray:
    """Return one non-negative value per site; a single number is used for all sites."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number or an array of numbers, got {values!r}") from None
    if array.ndim > 1 or array.size not in (1, n_sites):
        raise InputError(
            f"{name} must contain one value, or one for each of the {n_sites} sites; got {array.size}"
        )
    array = np.broadcast_to(array.reshape(-1), (n_sites,)).copy()
    bad = np.flatnonzero(np.isnan(array) | (array < 0))
    if bad.size:
        raise InputError(f"{name} must be at least 0, got {array[bad[0]]} for site {bad[0]}")
    return array


def positive_per_site(name: str, values: ArrayLike, n_sites: int) -> FloatArray:
    """Return one finite value above 0 per site; a single number is used for all sites."""
    array = per_site(name, values, n_sites)
    bad = np.flatnonzero((array == 0) | np.isinf(array))
    if bad.size:
        raise InputError(f"{name} must be finite and above 0, got {array[bad[0]]} for site {bad[0]}")
    return array


def weights(values: ArrayLike) -> FloatArray:
    """Return site weights that are at least 0 and add up to 1."""
    size = np.size(values)
    if size == 0:
        raise InputError("weights must contain one value per site, got none")
    array = per_site("weights", values, size)
    total = math.fsum(array)
    if not abs(total - 1) <= 1e-9:
        raise InputError(f"weights must add up to 1, got a sum of {total:.12g}")
    return array


def colluding(value: int | str, n_sites: int) -> int:
    """Return S_C, the number of sites that may collude with the aggregator.

    ``"third"`` is max(1, ceil(S/3) - 1): the paper's bound, and never less than 1, because a single
    curious site knows its own noise and reads the result.
    """
    if value == "third":
        value = max(1, math.ceil(n_sites / 3) - 1)
    if isinstance(value, str):
        raise InputError(f"n_colluding must be a whole number or 'third', got {value!r}")
    number = count("n_colluding", value, minimum=0)
    if number >= n_sites:
        raise InputError(f"n_colluding must be less than the number of sites, {n_sites}; got {number}")
    return number
