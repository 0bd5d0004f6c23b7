"""Methods and mechanisms at equal total epsilon, every stage accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.utility.shared.figures import INK, draw_series, mark_usable
from benchmarks.utility.shared.problems import FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared, subject_rows
from benchmarks.utility.synthetic import QUICK
from capedjica import CapeDJICA, PaperOptions
from capedjica.mechanisms.contract import MechanismName

SIZES: Final = (256, 1024)
EPSILONS: Final = (1.0, 3.0, 10.0, 30.0, 100.0)
MECHANISMS: Final[tuple[MechanismName, ...]] = ("cape", "conventional", "local")
# Below this an estimate is worth comparing: a random unmixing matrix has about 0.35.
COMPARABLE: Final = 0.25
TITLE: Final = "Methods at equal total ε: synthetic, 4 sites, 20 components"
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "paper": {"method": "paper"},
    "paper, rate 1": {"method": "paper", "paper_options": PaperOptions(learning_rate=1.0)},
    "dp-djica": {"method": "dp-djica"},
}


def fit_other(
    problem: Problem, parameters: dict[str, Any], epsilon: float, max_iter: int | None
) -> tuple[FloatArray, int]:
    """Fit one of the other methods, in the public basis too, which helps them."""
    model = CapeDJICA(
        problem.n_components,
        epsilon,
        max_iter=max_iter,
        random_state=0,
        scan_length=problem.scan_length,
        **parameters,
    )
    model.fit({name: list(scans) for name, scans in problem.features.items()})
    return problem.pixels(model.unmixing_), model.n_iter_


def rows_of(size: Size, seed: int, epsilons: Sequence[float], max_iter: int | None) -> list[Row]:
    """Analyse one study by every method."""
    problem = synthetic(seed, size)
    rows = [
        row
        for mechanism in MECHANISMS
        for row in subject_rows("synthetic", problem, seed, [(mechanism, epsilon) for epsilon in epsilons])
    ]
    for name, parameters in OTHERS.items():
        for epsilon in epsilons:
            fit = partial(fit_other, problem, parameters, epsilon, max_iter)
            truth = {"truth": problem.mixing}
            rows += compared("synthetic", size.n_subjects, name, "cape", epsilon, seed, fit, truth)
    return rows


def tasks(options: Options) -> list[Task]:
    """Return one task for each size and seed."""
    if options.quick:
        return [Task(rows_of, (QUICK, seed, (3.0, 30.0), 10)) for seed in range(options.seeds)]
    sizes = [Size(n_subjects) for n_subjects in sorted(SIZES, reverse=True)]
    return [Task(rows_of, (size, seed, EPSILONS, None)) for size in sizes for seed in range(options.seeds)]


def label(cell: Cell) -> str:
    """Name what is compared."""
    return cell.method if cell.method != "subject" else f"subject, {cell.mechanism}"


def factors(cells: Sequence[Cell]) -> dict[tuple[int, float], float]:
    """Return how much larger the best other gain index is, for each size and epsilon where it counts."""
    result = {}
    for ours in (cell for cell in cells if label(cell) == "subject, cape"):
        assert ours.epsilon is not None
        same = [
            cell
            for cell in cells
            if (cell.n_subjects, cell.epsilon) == (ours.n_subjects, ours.epsilon) and cell is not ours
        ]
        best = min(cell.gain_index for cell in same)
        if min(best, ours.gain_index) < COMPARABLE:
            result[ours.n_subjects, ours.epsilon] = best / ours.gain_index
    return result


def summary(cells: Sequence[Cell]) -> str:
    """Say by what factor the default is better than the best of the others."""
    found = factors(cells)
    each = ", ".join(f"{factor:.1f} (M = {m:,}, ε = {epsilon:g})" for (m, epsilon), factor in found.items())
    verdict = "better than" if all(factor > 1 for factor in found.values()) else "NOT always better than"
    own = [cell for cell in cells if cell.method.startswith(("paper", "dp-djica"))]
    best = min(own, key=lambda cell: cell.gain_index)
    return (
        f"Wherever any method is below {COMPARABLE}, `subject` with cape is {verdict} every other; the gain "
        f"index of the best other is larger by a factor of {each}. The paper's method and dp-djica come to "
        f"{best.gain_index:.3f} at best ({best.method}, M = {best.n_subjects:,}, ε = {best.epsilon:g}). All "
        "work in the same public basis, which the paper's methods do not have of themselves; rate 1 is a "
        "learning rate some 200 times the paper's own 0.015 / ln R."
    )


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw the gain index over epsilon, one panel for each size."""
    sizes = sorted({cell.n_subjects for cell in cells})
    drawing = Figure(figsize=(9.0, 4.4), layout="constrained")
    drawing.suptitle(TITLE, fontsize=11, color=INK)
    axes = np.atleast_1d(drawing.subplots(1, len(sizes), sharey=True))
    for axis, size in zip(axes, sizes, strict=True):
        own = [cell for cell in cells if cell.n_subjects == size]
        draw_series(axis, own, label, lambda cell: (cell.gain_index, cell.gain_error))
        mark_usable(axis)
        axis.set_title(f"{size:,} subjects", fontsize=10, color=INK)
    axes[-1].set_ylabel("" if len(sizes) > 1 else axes[-1].get_ylabel())
    handles = axes[0].get_legend_handles_labels()[0]
    drawing.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return drawing


METHODS: Final = Claim(
    title=TITLE,
    tasks=tasks,
    summary=summary,
    figure=figure,
    label=lambda cell: f"M = {cell.n_subjects:,}, {label(cell)}",
)
