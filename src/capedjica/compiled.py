"""How a kernel becomes machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(function: _Kernel, **options: Any) -> _Kernel:
    """Compile a kernel that runs without the interpreter lock, with numba's ``options``.

    The machine code is kept on disk where some cache directory can be written.
    """
    try:
        return cast(_Kernel, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # what numba raises when no cache directory is writable
        return cast(_Kernel, numba.njit(nogil=True, **options)(function))
