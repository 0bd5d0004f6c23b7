"""Exact comparison of a uniform variate with exp(-x), drawing only as many random bits as needed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

_WORD: Final = 64
# Extra bits carried through the Taylor sum and the squarings, so that the bounds differ by a few units only.
_GUARD_BITS: Final = 32


def exp_minus_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    r"""Return two integers that enclose :math:`2^{bits} e^{-x}`, using integer arithmetic only.

    With :math:`x / 2^h < 1`, the positive series of :math:`e^{x/2^h}` is summed once with every term rounded
    down and once with every term rounded up. The reciprocals enclose :math:`e^{-x/2^h}`, and *h* squarings of
    the enclosure, again rounded outwards, enclose :math:`e^{-x}`.

    Parameters
    ----------
    x : Fraction
        A non-negative rational.
    bits : int
        Number of binary places.

    Returns
    -------
    lower, upper : int
        ``lower <= 2**bits * exp(-x) <= upper``.
    """
    if x > bits:  # exp(-x) < 2^-x < 2^-bits
        return 0, 1
    halvings = int(x).bit_length()
    places = bits + halvings + _GUARD_BITS
    scaled = int(x * (1 << places) / (1 << halvings))
    lower = (1 << 2 * places) // _series_above(scaled + 1, places)
    upper = _ceil_div(1 << 2 * places, _series_below(scaled, places))
    for _ in range(halvings):
        lower, upper = lower * lower >> places, _ceil_shift(upper * upper, places)
    return lower >> places - bits, _ceil_shift(upper, places - bits)


def _series_below(scaled: int, places: int) -> int:
    """Lower bound of ``2**places * exp(scaled / 2**places)``: every term rounded down, the tail omitted."""
    term = total = 1 << places
    order = 0
    while term:
        order += 1
        term = (term * scaled >> places) // order
        total += term
    return total


def _series_above(scaled: int, places: int) -> int:
    """Upper bound: every term rounded up; for an argument <= 1 the tail is at most the last term."""
    term = total = 1 << places
    order = 0
    while term > 1:
        order += 1
        term = _ceil_div(_ceil_shift(term * scaled, places), order)
        total += term
    return total + term


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _ceil_shift(value: int, shift: int) -> int:
    return -(-value >> shift)


class LazyUniform:
    """A uniform variate on [0, 1) of which only the leading bits have been drawn so far.

    Parameters
    ----------
    word : int
        Its first 64 bits.
    next_word : callable
        Returns the next 64 random bits.
    """

    __slots__ = ("_bits", "_next_word", "_value")

    def __init__(self, word: int, next_word: Callable[[], int]) -> None:
        self._value = word
        self._bits = _WORD
        self._next_word = next_word

    def below_exp_minus(self, x: Fraction) -> bool:
        """Return whether the variate is below exp(-x), drawing bits until the comparison is certain."""
        if x == 0:
            return True
        while True:
            lower, upper = exp_minus_bounds(x, self._bits)
            if self._value < lower:
                return True
            if self._value >= upper:
                return False
            self._value = self._value << _WORD | self._next_word()
            self._bits += _WORD

    def __repr__(self) -> str:
        return "LazyUniform(<secret>)"
