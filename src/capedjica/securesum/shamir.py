"""Shamir's secret sharing over the integers modulo a 257-bit prime.

A secret a_0 of 32 bytes is the value at zero of a random polynomial f(x) = a_0 + a_1 x + ... of degree t - 1;
the share of the holder at the point x >= 1 is f(x). Any t shares recover it by Lagrange's formula

    a_0 = sum_i w_i f(x_i)  mod p,        w_i = prod_{j != i} x_j / (x_j - x_i)  mod p,

and t - 1 shares are equally compatible with every secret. The prime p = 2^256 + 297 is the smallest above
2^256, so every string of 32 bytes is a valid secret. Python's integers are an order of magnitude faster than
field arithmetic written in Python. The weights depend only on which sites answered and are cached for each
set.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import mul
from typing import Final

from capedjica.errors import InputError, ProtocolError

PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
# 16 bytes more than the prime: the reduction modulo p is within p/2^392 < 2^-135 of uniform.
_COEFFICIENT_BYTES: Final = 49
# Coefficients between two reductions modulo p.
_CHUNK: Final = 64


def split(
    secret: bytes | bytearray,
    threshold: int,
    points: Sequence[int],
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> dict[int, bytes]:
    """Return one share of ``secret`` for each point; any ``threshold`` of them recover it.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        Number of shares that recover the secret, at most the number of points.
    points : sequence of int
        Distinct evaluation points, each at least 1.
    random_bytes : callable
        Source of the coefficients; anything but the default is for test vectors only.
    """
    if len(secret) != SECRET_BYTES:
        raise InputError(f"a shared secret must have {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise InputError(f"threshold must lie between 1 and the {len(points)} points, got {threshold}")
    _check_points(points)
    width = _COEFFICIENT_BYTES
    size = width * (threshold - 1)
    pool = random_bytes(size)
    random = [int.from_bytes(pool[i : i + width]) % PRIME for i in range(0, size, width)]
    return evaluate([int.from_bytes(secret), *random], points)


def evaluate(coefficients: Sequence[int], points: Sequence[int]) -> dict[int, bytes]:
    """Return the encoded values at ``points`` of a polynomial, given with its constant term first."""
    descending = coefficients[::-1]
    chunks = [descending[i : i + _CHUNK] for i in range(0, len(descending), _CHUNK)]
    return {point: _evaluate(chunks, point).to_bytes(SHARE_BYTES) for point in points}


def _evaluate(chunks: Iterable[Sequence[int]], point: int) -> int:
    """Return the value at one point of a polynomial, given in chunks with the highest coefficient first.

    Points are small, so the value grows by a few bits per coefficient, and a reduction after each would take
    longer than it saves; without any, the work would grow with the square of the number of coefficients.
    """
    value = 0
    for chunk in chunks:
        for coefficient in chunk:
            value = value * point + coefficient
        value %= PRIME
    return value


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret recovered from all ``shares`` (a mapping from point to share).

    Inconsistent shares give a wrong secret or, if the result does not fit into 32 bytes, a ProtocolError.
    The caller must check the result against a commitment.
    """
    weights = lagrange_weights(tuple(shares))
    value: int = sum(map(mul, weights, decode_shares(shares.values()))) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise ProtocolError("the shares do not belong to one secret")
    return value.to_bytes(SECRET_BYTES)


def decode_shares(shares: Iterable[bytes]) -> list[int]:
    """Return the field elements that shares encode; refuse malformed shares."""
    encoded = list(shares)
    values = list(map(int.from_bytes, encoded))
    if set(map(len, encoded)) - {SHARE_BYTES} or max(values, default=0) >= PRIME:
        raise ProtocolError(f"a share must be {SHARE_BYTES} bytes and below the prime 2^256 + 297")
    return values


@lru_cache(maxsize=128)
def lagrange_weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights w_i that turn values at ``points`` into the value at zero."""
    _check_points(points)
    return tuple(_lagrange_weight(point, points) for point in points)


def _lagrange_weight(point: int, points: tuple[int, ...]) -> int:
    numerator, denominator = 1, 1
    for other in points:
        if other != point:
            numerator *= other
            denominator *= other - point
    return numerator * pow(denominator, -1, PRIME) % PRIME


def _check_points(points: Sequence[int]) -> None:
    if not points or min(points) < 1 or len(set(points)) != len(points):
        raise InputError("the points of a secret sharing must be distinct integers of at least 1")
