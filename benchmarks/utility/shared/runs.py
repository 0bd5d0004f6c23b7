"""Analyses, scored against a truth, one row each; on both cores."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.utility.shared.problems import FloatArray, Problem
from capedjica.algorithms.ica.maps.networks import mixing_of
from capedjica.algorithms.ica.subject_level import SubjectMethod
from capedjica.mechanisms.contract import MechanismName
from capedjica.metrics import matched_map_correlation, normalized_gain_index


@dataclass(frozen=True)
class Row:
    """One analysis compared with one reference.

    Attributes
    ----------
    setting : str
        Which data.
    n_subjects : int
        M.
    method, mechanism : str
        What was computed, and how means were made private.
    epsilon : float or None
        Total epsilon of all stages at delta = 1e-5; None without privacy.
    reference : str
        What the maps are compared with.
    seed : int
        Of the data; privacy noise has none.
    gain_index, map_correlation : float
        Normalized gain index (0 best; NaN of what is no analysis), and mean absolute correlation of matched
        maps (1 best).
    n_iter : int
        Iterations made.
    seconds : float
        Wall clock, on one of two busy cores unless the benchmark is about time.
    moved, unsupported, untold : int, optional
        Guided by a template: how many networks moved, how many the data do not support, and of how many that
        cannot be told.
    number, visible, near : int, optional
        Components found by the noise's edge, those that theory lets stand out of it, and whether the number
        is that of the truth or near it.
    """

    setting: str
    n_subjects: int
    method: str
    mechanism: str
    epsilon: float | None
    reference: str
    seed: int
    gain_index: float
    map_correlation: float
    n_iter: int
    seconds: float
    moved: int | None = None
    unsupported: int | None = None
    untold: int | None = None
    number: int | None = None
    visible: int | None = None
    near: int | None = None


Fit = Callable[[], tuple[FloatArray, int]]


def gain(unmixing: FloatArray, mixing: FloatArray) -> float:
    """Return the gain index of an (R, D) unmixing matrix, its rows scaled to sources of unit variance."""
    product = unmixing @ mixing
    return normalized_gain_index(product / np.linalg.norm(product, axis=1, keepdims=True))


def compared(
    setting: str,
    n_subjects: int,
    method: str,
    mechanism: str,
    epsilon: float | None,
    seed: int,
    fit: Fit,
    references: dict[str, FloatArray],
) -> list[Row]:
    """Run an analysis and compare its maps with the mixing matrix of each reference."""
    start = time.perf_counter()
    unmixing, n_iter = fit()
    seconds = time.perf_counter() - start
    maps = mixing_of(unmixing).T
    return [
        Row(
            setting,
            n_subjects,
            method,
            mechanism,
            epsilon,
            reference,
            seed,
            gain(unmixing, mixing),
            matched_map_correlation(maps, mixing.T),
            n_iter,
            seconds,
        )
        for reference, mixing in references.items()
    ]


def subject_rows(
    setting: str,
    problem: Problem,
    seed: int,
    cells: Iterable[tuple[MechanismName, float | None]],
    kind: type[SubjectMethod] = SubjectMethod,
    method: str = "subject",
) -> list[Row]:
    """Analyse a problem by the default method, or a kind of it, for every mechanism and epsilon."""
    rows = []
    for mechanism, epsilon in cells:
        fit = _fit(problem, epsilon, mechanism, kind)
        size, truth = len(problem.scans), {"truth": problem.mixing}
        rows += compared(setting, size, method, mechanism, epsilon, seed, fit, truth)
    return rows


def _fit(problem: Problem, epsilon: float | None, mechanism: MechanismName, kind: type[SubjectMethod]) -> Fit:
    return lambda: problem.analyse(epsilon, mechanism, kind)


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    seeds: int = 5
    quick: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Task:
    """Some rows to be made, in a process of their own."""

    function: Callable[..., list[Row]]
    arguments: tuple[object, ...]


def run_all(
    tasks: Sequence[Task],
    title: str,
    console: Console,
    alone: bool = False,
    kept: Callable[[Sequence[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Make all rows: in as many processes of one thread as there are cores, or ``alone`` in this one.

    ``kept`` is handed all rows so far, in order, whenever a task has come to its end.
    """
    results = (task.function(*task.arguments) for task in tasks) if alone else _in_processes(tasks)
    made: list[Row] = []
    for rows in track(results, title, total=len(tasks), console=console):
        made = sorted([*made, *rows], key=_order)
        kept(made)
    return made


def _in_processes(tasks: Sequence[Task]) -> Iterator[list[Row]]:
    # Inherited by the processes, which start anew.
    os.environ["NUMBA_NUM_THREADS"] = "1"
    for name in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        waiting: list[Future[list[Row]]] = [pool.submit(task.function, *task.arguments) for task in tasks]
        for done in as_completed(waiting):
            yield done.result()


def _order(row: Row) -> tuple[str, int, str, str, float, str, int]:
    return (
        row.setting,
        row.n_subjects,
        row.method,
        row.mechanism,
        row.epsilon or 0.0,
        row.reference,
        row.seed,
    )


@dataclass(frozen=True)
class Cell:
    """Means over seeds, with standard errors (NaN from a single seed)."""

    setting: str
    n_subjects: int
    method: str
    mechanism: str
    epsilon: float | None
    reference: str
    gain_index: float
    gain_error: float
    map_correlation: float
    map_error: float
    n_iter: float
    seconds: float
    n_rows: int
    moved: float | None = None
    unsupported: float | None = None
    untold: float | None = None
    number: float | None = None
    visible: float | None = None
    near: float | None = None


def averaged(rows: Iterable[Row]) -> list[Cell]:
    """Return the means over seeds, in the order of the rows."""
    groups: dict[tuple[str, int, str, str, float | None, str], list[Row]] = defaultdict(list)
    for row in rows:
        key = (row.setting, row.n_subjects, row.method, row.mechanism, row.epsilon, row.reference)
        groups[key].append(row)
    return [_cell(key, group) for key, group in groups.items()]


def _cell(key: tuple[str, int, str, str, float | None, str], group: list[Row]) -> Cell:
    gains, maps = [row.gain_index for row in group], [row.map_correlation for row in group]
    return Cell(
        *key,
        fmean(gains),
        standard_error(gains),
        fmean(maps),
        standard_error(maps),
        fmean(row.n_iter for row in group),
        float(np.median([row.seconds for row in group])),
        len(group),
        *(_mean_count([getattr(row, name) for row in group]) for name in _COUNTS),
    )


_COUNTS: Final = ("moved", "unsupported", "untold", "number", "visible", "near")


def _mean_count(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return fmean(known) if known else None


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; NaN of a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
