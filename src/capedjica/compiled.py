"""Compilation of numerical kernels with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(function: _Kernel, **options: Any) -> _Kernel:
    """Compile a kernel that releases the interpreter lock, with numba's ``options``.

    The machine code is cached on disk if a cache directory is writable.
    """
    try:
        return cast(_Kernel, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # raised by numba when no cache directory is writable
        return cast(_Kernel, numba.njit(nogil=True, **options)(function))
