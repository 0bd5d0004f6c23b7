"""Parameters by the names they had before, accepted with a warning, as scikit-learn does it.

The old name stays a parameter whose default is the word "deprecated", so that ``clone``, ``get_params`` and
``set_params`` treat it like any other; what it says is looked at in ``fit``.
"""

from __future__ import annotations

import warnings
from typing import Any, Final, TypeVar

from capedjica.errors import InputError

DEPRECATED: Final = "deprecated"
Value = TypeVar("Value")


def is_given(value: Any) -> bool:
    """Tell whether a parameter was given by its old name."""
    return not (isinstance(value, str) and value == DEPRECATED)


def renamed(old: str, value: Any, new: str, given: Value, default: Value) -> Value:
    """Return a parameter that may be given by its old name or by its new one, but not by both."""
    if not is_given(value):
        return given
    if not (given is default or (isinstance(given, str) and given == default)):
        raise InputError(f"{old} is the old name of {new}: give {new} alone")
    warn_of(old, f"{new}=...")
    result: Value = value
    return result


def warn_of(old: str, instead: str) -> None:
    """Say what to write instead."""
    warnings.warn(f"{old}= is deprecated and will be removed: write {instead}", FutureWarning, stacklevel=2)
