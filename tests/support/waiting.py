"""Conditions that are awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def wait_for(condition: Callable[[], _Value], seconds: float = 60.0) -> _Value:
    """Return what a condition returns once it holds; fail if it does not within so many seconds."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "this did not happen in time"
        time.sleep(0.01)
    return found
