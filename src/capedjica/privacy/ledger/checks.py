"""Validation of the ledger's arguments; errors name the parameter and never show a secret."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any, Final

from capedjica.errors import InputError

HASH_BYTES: Final = 32
MAX_MESSAGE_BYTES: Final = 1 << 29
_MAX_TEXT: Final = 500


def secret_or_hash(name: str, value: Any) -> bytes:
    """Return ``value`` if it is exactly 32 bytes."""
    if not isinstance(value, bytes) or len(value) != HASH_BYTES:
        raise InputError(f"{name} must be {HASH_BYTES} bytes, got {_size(value)}")
    return value


def natural(name: str, value: Any) -> int:
    """Return ``value`` as a non-negative integer that fits into the file."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {type(value).__name__}") from None
    if not 0 <= number < 1 << 63:
        raise InputError(f"{name} must lie between 0 and 2^63 - 1, got {number}")
    return number


def text(name: str, value: Any) -> str:
    """Return ``value`` if it is one printable line."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
        raise InputError(f"{name} must be one line of 1 to {_MAX_TEXT} printable characters")
    return value


def participants(values: Collection[str]) -> tuple[str, ...]:
    """Return the names of the sites in alphabetical order."""
    names = () if isinstance(values, str) else tuple(sorted(text("participants", v) for v in values))
    if not names or len(set(names)) != len(names):
        raise InputError("participants must be a non-empty collection of distinct site names")
    return names


def message(value: Any) -> bytes:
    """Return ``value`` if it is bytes of a size that can be stored."""
    if not isinstance(value, bytes) or len(value) > MAX_MESSAGE_BYTES:
        raise InputError(
            f"a message must be bytes of length at most {MAX_MESSAGE_BYTES}, got {_size(value)}; "
            "nothing was sent"
        )
    return value


def _size(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
