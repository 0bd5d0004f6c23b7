"""The number of components by the edge of the noise, on data whose number is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.utility.guided import again, terms_of
from benchmarks.utility.shared.figures import INK, PLAIN
from benchmarks.utility.shared.problems import FloatArray, Problem, Size, synthetic
from benchmarks.utility.shared.report import Claim, markdown
from benchmarks.utility.shared.runs import Cell, Options, Row, Task
from benchmarks.utility.spatial import BrainSize, brains
from capedjica.algorithms.ica.maps.component_number import component_number, noise_edge
from capedjica.algorithms.ica.subject_level import SUBSPACE, SubjectMethod
from capedjica.algorithms.svec import unsvec
from capedjica.engines.embedded import EmbeddedStudy
from capedjica.report.pictures.figures import COLOURS

NUMBERS: Final = (10, 20, 40)
EPSILONS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
# Beyond the truth, as a part of it.
ROOM: Final = 1.5
# How far from the truth a number may be.
NEAR: Final = 2
TITLE: Final = "The number of components, told by the edge of the noise"
SYNTHETIC: Final = "synthetic, M = 1,024"
BRAINS: Final = "simulated brains, M = 300"
# Of noise, to tell what theory lets through.
DRAWS: Final = 200
FOUND: Final = "found"
NONE: Final = "not determinable"


def visible(mean: FloatArray, n_true: int, maximum: int, noise: float) -> int:
    r"""Return how many directions of a mean projector without noise would stand out of it by theory.

    With heights h above the bulk, those of :math:`h > \tau \sqrt K` come to lie at the eigenvalues of

    .. math:: \operatorname{diag}(h + \tau^2 K / h) + \tau \, s s' \circ G, \quad s^2 = 1 - \tau^2 K / h^2,

    with G of the Gaussian orthogonal ensemble (Capitaine, Donati-Martin and Féral 2009): many of about the
    same height spread, and the lowest of them are the first to drown. Returned is how many of them pass the
    edge in 19 of 20 draws.
    """
    values = np.linalg.eigvalsh(mean)[::-1]
    size, spread = len(values), noise / math.sqrt(2)
    heights = values[:maximum] - float(np.median(values[n_true:]))
    heights = heights[heights > spread * math.sqrt(size)]
    places, shares = heights + spread**2 * size / heights, np.sqrt(1 - spread**2 * size / heights**2)
    rng, edge = np.random.default_rng(0), noise_edge(size - len(heights), spread)
    counts = []
    for _ in range(DRAWS):
        square = rng.standard_normal((len(heights), len(heights)))
        noisy = np.diag(places) + spread * np.outer(shares, shares) * (square + square.T) / math.sqrt(2)
        counts.append(np.count_nonzero(np.linalg.eigvalsh(noisy) > edge))
    return int(np.quantile(counts, 0.05, method="lower"))


def rows_of(setting: str, n_true: int, draws: int, epsilons: Sequence[float], quick: bool) -> list[Row]:
    """Release the mean projector of one study as the default method does, several times."""
    problem = _problem(setting, n_true, quick)
    maximum, sizes = round(ROOM * n_true), problem.sizes
    # A method of the numbers in the basis, which are what a problem holds.
    open_number = partial(SubjectMethod, n_kept(problem), maximum, problem.scan_length, auto=True)
    kept = {
        name: list(open_number().site(scans)(SUBSPACE, b"", b"")) for name, scans in problem.features.items()
    }
    mean = unsvec(np.mean([row[0] for rows in kept.values() for row in rows], axis=0))
    sites = {name: partial(again, rows) for name, rows in kept.items()}
    made = []
    for epsilon in epsilons:
        terms = terms_of(epsilon)
        method = open_number(noise=terms.mean_noise(list(sizes.values())))
        shown: int | None = None
        for draw in range(draws):
            study = EmbeddedStudy("utility", sizes, sites, method.stages(), terms)
            study.mean(SUBSPACE)
            (released,) = study.released
            number = component_number(released, maximum, auto=True)
            shown = visible(mean, n_true, maximum, released.noise) if shown is None else shown
            told = FOUND if number.recoverable is not None and not number.more else NONE
            made.append(_row(setting, sum(sizes.values()), told, epsilon, n_true, draw, number.found, shown))
    return made


def _row(
    setting: str, people: int, told: str, epsilon: float, n_true: int, draw: int, found: int, shown: int
) -> Row:
    reference, near = f"R = {n_true}", int(abs(found - n_true) <= NEAR)
    return Row(
        setting,
        people,
        told,
        "cape",
        epsilon,
        reference,
        draw,
        0.0,
        0.0,
        0,
        0.0,
        number=found,
        visible=shown,
        near=near,
    )


def n_kept(problem: Problem) -> int:
    """Return K."""
    return len(problem.mixing) if problem.basis is None else len(problem.basis)


def _problem(setting: str, n_true: int, quick: bool) -> Problem:
    if setting == SYNTHETIC:
        full = Size(n_components=n_true, n_timepoints=150, noise=1.0)
        return synthetic(11, Size(96, n_true, 60, 12) if quick else full)
    tiny, brain = BrainSize(32, n_true, (40, 60), 12.0, n_waves=60), BrainSize(300, n_true, (100, 140), 10.0)
    return brains(11, tiny if quick else brain, keep=False)[0]


def tasks(options: Options) -> list[Task]:
    """Return one task for each kind of data and number."""
    numbers, epsilons = ((4,), (3.0, 30.0)) if options.quick else (NUMBERS, EPSILONS)
    return [
        Task(rows_of, (setting, number, options.seeds, epsilons, options.quick))
        for setting in (SYNTHETIC, BRAINS)
        for number in numbers
    ]


def _truth(cell: Cell) -> int:
    return int(cell.reference.removeprefix("R = "))


def summary(cells: Sequence[Cell]) -> str:
    """Say how often the number is right where theory lets all components through."""
    allowed = [cell for cell in cells if (cell.visible or 0) >= _truth(cell)]
    hidden = [cell for cell in cells if (cell.visible or 0) < _truth(cell)]
    unsaid = [cell for cell in hidden if cell.method == NONE]
    claimed = [cell for cell in cells if cell.method == FOUND]
    return (
        f"Where theory lets all components stand out of the noise, the number found is within {NEAR} of the "
        f"truth in {_near(allowed)} of {_runs(allowed)} runs. Elsewhere 'not determinable', or 'at least' "
        f"so many, is said in {_runs(unsaid)} of {_runs(hidden)} runs. A number is claimed, and no trace of "
        f"more, in {_runs(claimed)} runs, and off by more than {NEAR} in "
        f"{_runs(claimed) - _near(claimed)} of them. The maximum is {ROOM:g} times the truth. Theory: "
        "eigenvalues of the mean projector without noise, the "
        "level from which on they stand out (Baik, Ben Arous and Péché 2005), and how those of about the "
        "same height spread (Capitaine, Donati-Martin and Féral 2009). It is one of few directions among "
        "many, and too hopeful where a third of all is common (40 of 121)."
    )


def _runs(cells: Sequence[Cell]) -> int:
    return sum(cell.n_rows for cell in cells)


def _near(cells: Sequence[Cell]) -> int:
    return round(sum(cell.n_rows * (cell.near or 0.0) for cell in cells))


def tables(cells: Sequence[Cell]) -> str:
    """Return what was found beside what theory lets through."""
    lines = [
        [
            cell.setting,
            cell.reference,
            f"{cell.epsilon:g}",
            f"{cell.visible:.0f}",
            f"{cell.number:.1f}",
            "a number" if cell.method == FOUND else "not determinable, or at least so many",
            str(cell.n_rows),
        ]
        for cell in sorted(cells, key=lambda cell: (cell.setting, _truth(cell), cell.epsilon or 0.0))
    ]
    headings = ["data", "truth", "ε", "visible by theory", "found (mean)", "said", "runs"]
    return markdown([headings, ["---"] * len(headings), *lines])


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw the number found over epsilon."""
    drawing = Figure(figsize=(9.0, 4.6), layout="constrained")
    drawing.suptitle(TITLE, fontsize=11, color=INK)
    settings = sorted({cell.setting for cell in cells})
    axes = np.atleast_1d(drawing.subplots(1, len(settings), sharey=True))
    for axis, setting in zip(axes, settings, strict=True):
        _draw(axis, [cell for cell in cells if cell.setting == setting])
        axis.set_title(setting, fontsize=10, color=INK)
    axes[0].set_ylabel("components found (dashes: the truth)")
    handles = {
        name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    drawing.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return drawing


def _draw(axis: Axes, cells: Sequence[Cell]) -> None:
    for number, colour in zip(sorted({_truth(cell) for cell in cells}), COLOURS, strict=False):
        axis.axhline(number, color=colour, linewidth=0.8, linestyle="--")
        for told, marker in ((FOUND, "o"), (NONE, "x")):
            own = [cell for cell in cells if _truth(cell) == number and cell.method == told]
            said = "a number is claimed" if told == FOUND else "not determinable, or at least"
            heights = [cell.number or 0.0 for cell in own]
            axis.plot(
                [cell.epsilon or 0.0 for cell in own],
                heights,
                marker,
                color=colour,
                fillstyle="none",
                label=f"R = {number}, {said}",
            )
    epsilons = sorted({cell.epsilon for cell in cells if cell.epsilon is not None})
    axis.set(xscale="log", xlabel="total ε of all stages (δ = 1e-5)", xticks=epsilons)
    axis.xaxis.set_major_formatter(PLAIN)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.spines[["top", "right"]].set_visible(False)


NUMBER: Final = Claim(TITLE, tasks, summary, figure, lambda cell: cell.setting, tables=tables)
