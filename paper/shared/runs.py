"""Runs that several figures share: each is made once, kept on disk, and made in parallel.

A run is a frozen dataclass of its parameters. It is kept under a hash of these and of the code it rests on:
the module that defines it and everything of this repository which that module imports, directly or not. So a
change of the code makes a run anew, a change of a figure does not, and a command that was interrupted goes on
where it was: a run is written whole or not at all, by the process that made it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path("out/paper/runs")
_SOURCES: Final = (ROOT, ROOT / "src")
_OURS: Final = ("paper", "benchmarks", "capedjica")
# The estimated seconds that a kind of run must have behind it before its measured times count for half.
_TRUST: Final = 10.0
# Away from a terminal a line is printed whenever so much more of the work is done.
_LINE_EVERY: Final = 0.05

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run found: numbers by name, arrays by name, and the seconds it took."""

    numbers: Mapping[str, float]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Run(ABC):
    """Parameters of a run; fields that are not compared (where data lie) are not part of what it is."""

    @property
    def kind(self) -> str:
        """Runs of a kind are mistaken in their cost in the same way."""
        return type(self).__name__

    @property
    def needs(self) -> tuple[Run, ...]:
        """Runs that must be made before; they need nothing themselves."""
        return ()

    @property
    @abstractmethod
    def cost(self) -> float:
        """Seconds on a quiet core, estimated."""

    @abstractmethod
    def make(self, kept: Kept) -> Outcome:
        """Make the run; what it needs is kept already."""

    @property
    def key(self) -> str:
        """The hash that it is kept under."""
        what = [type(self).__qualname__, parameters(self), code_hash(type(self).__module__)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def parameters(value: object) -> object:
    """Return what JSON can say of a dataclass: its compared fields, and so those of what is in it."""
    if is_dataclass(value):
        return {f.name: parameters(getattr(value, f.name)) for f in fields(value) if f.compare}
    return [parameters(one) for one in value] if isinstance(value, tuple) else value


# The code a run rests on ----------------------------------------------------------------------------------


@cache
def code_hash(module: str) -> str:
    """Return a hash of the sources that a module rests on."""
    digest = hashlib.sha256()
    for path in sorted(source_files(module)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def source_files(module: str) -> set[Path]:
    """Return the files of this repository that a module consists of and imports, directly or not."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = _file_of(waiting.pop())
        if path is not None and path not in found:
            found.add(path)
            waiting += _imports(path)
    return found


def _file_of(module: str) -> Path | None:
    if module.partition(".")[0] not in _OURS:
        return None
    for base in _SOURCES:
        place = base.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def _imports(path: Path) -> Iterator[str]:
    """Yield the names that a file imports, the packages they are in, and what may be modules of these."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


# What is kept ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A folder of runs that were made."""

    folder: Path

    def _path(self, run: Run) -> Path:
        return self.folder / f"{run.key}.npz"

    def __contains__(self, run: Run) -> bool:
        return self._path(run).exists()

    def load(self, run: Run) -> Outcome:
        """Return what a run found."""
        with np.load(self._path(run), allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            arrays = {name: file[name] for name in file.files if name != "head"}
        return Outcome(head["numbers"], arrays, head["seconds"])

    def store(self, run: Run, outcome: Outcome) -> None:
        """Keep what a run found, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        head = {"run": parameters(run), "numbers": dict(outcome.numbers), "seconds": outcome.seconds}
        draft = self.folder / f".{run.key}.{os.getpid()}.part"
        try:
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, head=np.array(json.dumps(head)), **outcome.arrays)
            draft.replace(self._path(run))
        finally:
            draft.unlink(missing_ok=True)


def make_and_store(run: Run, kept: Kept) -> float:
    """Make a run, keep it, and return the seconds it took."""
    start = time.perf_counter()
    outcome = run.make(kept)
    seconds = time.perf_counter() - start
    kept.store(run, Outcome(outcome.numbers, outcome.arrays, seconds))
    return seconds


# Making many ----------------------------------------------------------------------------------------------


class Clock:
    """Estimates what is left: costs as estimated beforehand, corrected by what runs of a kind took.

    A kind whose runs were estimated at c seconds in all and took t is corrected by (t + trust)/(c + trust).
    """

    def __init__(self, runs: Iterable[Run], n_processes: int) -> None:
        self._waiting = list(runs)
        self._n_processes = n_processes
        self._estimated: dict[str, float] = defaultdict(lambda: _TRUST)
        self._measured: dict[str, float] = defaultdict(lambda: _TRUST)

    def done(self, run: Run, seconds: float) -> None:
        """Learn from a run that was made."""
        self._waiting.remove(run)
        self._estimated[run.kind] += run.cost
        self._measured[run.kind] += seconds

    @property
    def left(self) -> float:
        """Seconds, if all processes stay busy."""
        seconds = (run.cost * self._measured[run.kind] / self._estimated[run.kind] for run in self._waiting)
        return sum(seconds) / self._n_processes


def make_all(runs: Sequence[Run], kept: Kept, console: Console, n_processes: int | None = None) -> None:
    """Make those of the runs that are not kept yet, and before them what they need."""
    first = _missing((need for run in runs if run not in kept for need in run.needs), kept)
    waves = [first, [run for run in _missing(runs, kept) if run not in set(first)]]
    total = sum(map(len, waves))
    if not total:
        return
    n_processes = n_processes or os.cpu_count() or 1
    clock = Clock([run for wave in waves for run in wave], n_processes)
    with _Bar(console, total, clock) as bar:
        for wave in waves:
            for run, seconds in _made(wave, kept, n_processes):
                bar.advance(run, seconds)


def _missing(runs: Iterable[Run], kept: Kept) -> list[Run]:
    return [run for run in dict.fromkeys(runs) if run not in kept]


class _Bar:
    """A bar on a terminal, now and then a line elsewhere."""

    def __init__(self, console: Console, total: int, clock: Clock) -> None:
        self._console, self._total, self._clock = console, total, clock
        self._done, self._printed = 0, -1.0
        columns = (
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            BarColumn(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> _Bar:
        self._progress.start()
        self._task = self._progress.add_task(self._words(), total=self._total)
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, run: Run, seconds: float) -> None:
        """One more is done."""
        self._clock.done(run, seconds)
        self._done += 1
        self._progress.update(self._task, completed=self._done, description=self._words())
        self._line()

    def _words(self) -> str:
        return f"about {_duration(self._clock.left)} left"

    def _line(self) -> None:
        part = self._done / self._total
        due = part == 1 or part >= self._printed + _LINE_EVERY
        if due and not self._console.is_terminal:
            self._printed = part
            self._console.print(f"{self._done}/{self._total} runs, {self._words()}", highlight=False)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _made(runs: Sequence[Run], kept: Kept, n_processes: int) -> Iterator[tuple[Run, float]]:
    """Yield runs with the seconds they took: in order in this process, or from several as they are done."""
    if n_processes == 1:
        yield from ((run, make_and_store(run, kept)) for run in runs)
        return
    _one_thread_each()
    pool = ProcessPoolExecutor(n_processes, get_context("spawn"), initializer=_die_quietly)
    try:
        waiting = {pool.submit(make_and_store, run, kept): run for run in runs}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
    finally:
        # After an error or an interruption only the runs in progress are lost.
        pool.shutdown(cancel_futures=True)


def _one_thread_each() -> None:
    """Set what the processes inherit, which start anew."""
    for name in ("NUMBA", "OMP", "OPENBLAS", "MKL"):
        os.environ[f"{name}_NUM_THREADS"] = "1"


def _die_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
