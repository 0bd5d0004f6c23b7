"""Compilation of kernels, and parallel passes over subjects."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any, Final, TypeVar

import numba
from threadpoolctl import ThreadpoolController

from capedjica.compiled import compiled as compile_kernel

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Sums may be reordered for vectorisation. NaN and infinity keep their meaning: the kernels rely on them to
# detect an unusable subject.
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
_PARTS_PER_THREAD: Final = 4


def compiled(function: _Kernel) -> _Kernel:
    """Compile a numerical kernel."""
    return compile_kernel(function, **_OPTIONS)


@cache
def _controller() -> ThreadpoolController:
    # Compiled kernels call the BLAS of SciPy: a controller knows only the libraries loaded before it.
    import scipy.linalg.cython_blas  # noqa: F401

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Limit linear algebra to one thread: the number of threads affects the last bits of a sum.

    On two cores shared with other work, ``capedjica demo`` took 11 s with one thread and 42 s with two (one
    run each). The eigenvectors of 900 features took 0.14 s of processor time with one thread and 2.8 s with
    two; those of 2809 features 4.5 s and 21 s.
    """
    context: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return context


class _NoMemory:
    """Marks an item that ran out of memory while others were processed."""


class InParallel(Iterator[_Result]):
    """``map(function, items)`` with as many threads as cores, in order, a few items ahead of its reader.

    Like ``map``, it continues after an item whose function failed: the failure is raised in its place. An
    item that ran out of memory is tried once more while no other is processed, so that the memory use of one
    item never affects the result of another. Linear algebra is limited to one thread until the last result
    has been returned.
    """

    def __init__(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> None:
        self._function, self._items, self._next = function, items, 0
        self._ahead = 2 * numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self._waiting: deque[tuple[int, Future[_Result | _NoMemory]]] = deque()
        self._open = ExitStack()
        self._open.enter_context(one_thread())
        self._pool = self._open.enter_context(ThreadPoolExecutor(self._ahead // 2))

    def __next__(self) -> _Result:
        while self._next < len(self._items) and len(self._waiting) < self._ahead:
            # Not a method: a job that holds a reference to this object would prevent its deletion.
            job = self._pool.submit(_apply, self._function, self._items, self._next)
            self._waiting.append((self._next, job))
            self._next += 1
        if not self._waiting:
            self._open.close()
            raise StopIteration
        number, first = self._waiting.popleft()
        if isinstance(first.exception() or first.result(), _NoMemory):
            wait([job for _, job in self._waiting])
            first = Future()
            try:
                first.set_result(self._function(self._items[number]))
            except Exception as error:
                first.set_exception(error)
        if not self._waiting and self._next == len(self._items):
            self._open.close()
        result = first.result()
        assert not isinstance(result, _NoMemory)
        return result

    def __del__(self) -> None:
        self._open.close()


def _apply(function: Callable[[_Item], _Result], items: Sequence[_Item], number: int) -> _Result | _NoMemory:
    try:
        return function(items[number])
    except MemoryError:
        # The traceback of the exception would keep all intermediate results in memory.
        return _NoMemory()


def over_subjects(kernel: Callable[[int, int], None], n_subjects: int) -> None:
    """Call ``kernel(first, last)`` on consecutive ranges of subjects, with as many threads as cores.

    This uses plain threads around code that releases the GIL, rather than numba's own parallel loops: those
    terminate the process when two threads enter them at once (workqueue) or after a fork (OpenMP), and a site
    must survive both. ``NUMBA_NUM_THREADS`` limits the number of threads, as in numba. A kernel must not call
    this function itself: the threads are shared by all callers.
    """
    threads = min(numba.config.NUMBA_NUM_THREADS, n_subjects)  # type: ignore[attr-defined]
    if threads <= 1:
        kernel(0, n_subjects)
        return
    parts = min(threads * _PARTS_PER_THREAD, n_subjects)
    edges = [n_subjects * part // parts for part in range(parts + 1)]
    for _ in _pool(threads, os.getpid()).map(kernel, edges[:-1], edges[1:]):
        pass


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return threads that are kept, as starting them takes 0.3 ms; a forked process needs its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"subjects-{process}")
