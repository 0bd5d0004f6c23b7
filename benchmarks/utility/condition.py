"""Badly conditioned mixing matrices without noise, against FastICA on the pooled scans."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.utility.shared.figures import INK
from benchmarks.utility.shared.problems import FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared
from benchmarks.utility.synthetic import QUICK, find
from capedjica.report.pictures.figures import COLOURS

NUMBERS: Final = (3.0, 10.0, 50.0, 200.0, 1000.0)
OURS: Final = "capedjica, mechanism none"
FASTICA: Final = "FastICA of scikit-learn, pooled"
METHODS: Final = (OURS, FASTICA)
TITLE: Final = "Condition numbers of the mixing matrix, without noise: 256 subjects, 20 components"


def setting(number: float) -> str:
    """Name the data of a condition number."""
    return f"condition number {number:g}"


def pooled_fastica(problem: Problem, seed: int) -> tuple[FloatArray, int]:
    """Whiten all scans together by PCA, in double precision, then run scikit-learn's FastICA (tanh)."""
    from sklearn.decomposition import FastICA

    pooled = np.concatenate(problem.scans).astype(np.float64)
    values, vectors = np.linalg.eigh(pooled.T @ pooled / len(pooled))
    leading = slice(-problem.n_components, None)
    sphering = vectors[:, leading] / np.sqrt(values[leading])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ica = FastICA(whiten=False, max_iter=500, random_state=seed).fit(pooled @ sphering)
    return problem.pixels(ica.components_ @ sphering.T), int(ica.n_iter_)


def rows_of(size: Size, number: float, seed: int) -> list[Row]:
    """Analyse one study in both ways."""
    problem = synthetic(seed, replace(size, condition=number))
    fits = {
        OURS: partial(problem.analyse, None, "none"),
        FASTICA: partial(pooled_fastica, problem, seed),
    }
    truth = {"truth": problem.mixing}
    return [
        row
        for name, fit in fits.items()
        for row in compared(setting(number), size.n_subjects, name, "none", None, seed, fit, truth)
    ]


def tasks(options: Options) -> list[Task]:
    """Return one task for each condition number and seed."""
    size = QUICK if options.quick else Size(n_subjects=256)
    return [Task(rows_of, (size, number, seed)) for number in NUMBERS for seed in range(options.seeds)]


def summary(cells: Sequence[Cell]) -> str:
    """Say how far both are from the truth at every condition number."""
    parts = []
    for number in NUMBERS:
        ours, other = (find(cells, setting=setting(number), method=name).gain_index for name in METHODS)
        parts.append(f"{ours:.4f} against {other:.4f} at {number:g}")
    return (
        f"Gain index of the default method against that of FastICA, by condition number: {', '.join(parts)}. "
        "Singular values of the mixing matrix fall in equal ratios; both analyse the same numbers, those of "
        "the low-pass basis. With privacy, clips bury components that are far weaker than others: they are "
        "said not to be recoverable (docs/development/research-notes.md)."
    )


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw the gain index and the correlation of maps over the condition number."""
    drawing = Figure(figsize=(9.0, 4.0), layout="constrained")
    drawing.suptitle(TITLE, fontsize=11, color=INK)
    left, right = drawing.subplots(1, 2)
    for method, colour, marker in zip(METHODS, COLOURS, "os", strict=False):
        own = [find(cells, setting=setting(number), method=method) for number in NUMBERS]
        _draw(left, [(cell.gain_index, cell.gain_error) for cell in own], method, colour, marker)
        _draw(right, [(cell.map_correlation, cell.map_error) for cell in own], method, colour, marker)
    left.set(ylabel="normalized gain index (0 is perfect)", ylim=(0, None))
    right.set(ylabel="correlation of matched maps (1 is perfect)", ylim=(None, 1.0002))
    drawing.legend(
        handles=left.get_legend_handles_labels()[0],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
    )
    return drawing


def _draw(axis: Axes, values: Sequence[tuple[float, float]], label: str, colour: str, marker: str) -> None:
    heights, errors = zip(*values, strict=True)
    axis.errorbar(
        NUMBERS,
        heights,
        yerr=np.nan_to_num(errors),
        label=label,
        color=colour,
        marker=marker,
        markersize=4.5,
        capsize=2,
        linewidth=1.5,
    )
    axis.set(xscale="log", xlabel="condition number of the mixing matrix")
    axis.set_xticks(NUMBERS, [f"{number:g}" for number in NUMBERS])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)


CONDITION: Final = Claim(
    title=TITLE,
    tasks=tasks,
    summary=summary,
    figure=figure,
    label=lambda cell: f"{cell.setting}, {cell.method}",
    maps_first=True,
)
