"""System calls that Python's standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

LINUX: Final = sys.platform == "linux"

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# As wide as a register: for an int, the kernel would read leftover bits in the upper half.
_Word: Final = ctypes.c_long


def call(function: str, *arguments: int | ctypes.Structure | ctypes.Array[Any]) -> int:
    """Call a function of the C library and return its result; raise OSError if it fails."""
    words = [_Word(one) if isinstance(one, int) else ctypes.byref(one) for one in arguments]
    answer = int(getattr(_LIBC, function)(*words))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return answer


def prctl(option: int, *arguments: int) -> int:
    """Query or change an attribute of this process; unused arguments are zero, as some options require."""
    return call("prctl", option, *arguments, *[0] * (4 - len(arguments)))


def n_threads() -> int:
    """Return the number of threads of this process; restrictions of one thread do not apply to others."""
    return len(list(Path("/proc/self/task").iterdir()))


def in_child(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked process and return its result, or the text of its error."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Other threads do not exist in the child, which needs none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer_and_end(work, writing)
    os.close(writing)
    with open(reading, "rb") as answer:
        said = answer.read().decode("utf-8", "replace")
    status = os.waitpid(child, 0)[1]
    return said if status == 0 else said or "the process ended without a result"


def _answer_and_end(work: Callable[[], str], writing: int) -> None:
    """Write the result of ``work`` to a pipe, and exit without running the parent's exit handlers."""
    code = 1
    try:
        os.write(writing, work().encode("utf-8", "replace"))
        code = 0
    except Exception as error:
        os.write(writing, str(error).encode("utf-8", "replace"))
    finally:
        os._exit(code)
