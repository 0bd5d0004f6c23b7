"""Synthetic studies with known truth: sizes, observation noise, many components, no basis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.utility.shared.figures import epsilon_figure
from benchmarks.utility.shared.problems import Size, synthetic
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, subject_rows
from capedjica.mechanisms.contract import MechanismName

QUICK: Final = Size(n_subjects=64, n_components=4, n_timepoints=80, image_side=12)
QUICK_EPSILONS: Final = (3.0, 30.0)


def rows_of(setting: str, size: Size, seed: int, epsilons: Sequence[float]) -> list[Row]:
    """Analyse one study without privacy, and with cape and a trusted curator at every epsilon."""
    cells: list[tuple[MechanismName, float | None]] = [("none", None)]
    cells += [("cape", epsilon) for epsilon in epsilons]
    cells += [("pooled", epsilon) for epsilon in epsilons]
    return subject_rows(setting, synthetic(seed, size), seed, cells)


def tasks_of(setting: str, sizes: Sequence[Size], epsilons: Sequence[float], options: Options) -> list[Task]:
    """Return one task for each seed and size, the largest first."""
    if options.quick:
        first = sizes[0]
        sizes = [replace(QUICK, noise=first.noise, with_basis=first.with_basis, maps=first.maps)]
        epsilons = QUICK_EPSILONS
    ordered = sorted(sizes, key=lambda size: -size.n_subjects)
    return [
        Task(rows_of, (setting, size, seed, epsilons)) for size in ordered for seed in range(options.seeds)
    ]


def find(cells: Sequence[Cell], **wanted: object) -> Cell:
    """Return the one cell with these attributes."""
    matching = [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]
    assert len(matching) == 1, f"{len(matching)} cells with {wanted}"
    return matching[0]


def summary(opening: str, cells: Sequence[Cell]) -> str:
    """Say how far cape is from a trusted curator and from no privacy, at the largest size."""
    size = 1024 if any(cell.n_subjects == 1024 for cell in cells) else max(cell.n_subjects for cell in cells)
    own = [cell for cell in cells if cell.n_subjects == size]
    free = find(own, mechanism="none").gain_index
    private = [cell for cell in own if cell.mechanism == "cape"]
    curator = {cell.epsilon: cell.gain_index for cell in own if cell.mechanism == "pooled"}
    gains = ", ".join(
        f"{cell.gain_index:.3f} at ε = {cell.epsilon:g} ({curator[cell.epsilon]:.3f})" for cell in private
    )
    maps = ", ".join(f"{cell.map_correlation:.3f}" for cell in private)
    ratios = [cell.gain_index / curator[cell.epsilon] for cell in private]
    return (
        f"{opening} With {size:,} subjects the gain index is {gains}; in brackets that of a trusted curator "
        "who sees all scans and adds the least noise. Not having to trust anybody multiplies it by "
        f"{min(ratios):.2f} to {max(ratios):.2f}; without privacy it is {free:.3f}. The gain index says how "
        "well sources are told apart; the maps also carry the noise of the subspace, and their correlation "
        f"with the truth is {maps} at the same ε."
    )


def _series(cell: Cell) -> str:
    return f"M = {cell.n_subjects:,}, {cell.mechanism}"


def _size(cell: Cell) -> str:
    return f"M = {cell.n_subjects:,}"


def _claim(title: str, opening: str, sizes: Sequence[Size], epsilons: Sequence[float], setting: str) -> Claim:
    return Claim(
        title=title,
        tasks=partial(tasks_of, setting, sizes, epsilons),
        summary=partial(summary, opening),
        figure=lambda cells: epsilon_figure(cells, title, _size),
        label=_series,
    )


SYNTHETIC: Final = _claim(
    "Synthetic studies: 4 sites, 900 pixels, 20 components, 250 time points",
    "Twice the subjects do about as well at half the ε.",
    [Size(n_subjects) for n_subjects in (128, 256, 512, 1024, 2048)],
    (0.5, 0.7, 1.0, 2.0, 3.0, 5.0, 10.0),
    "synthetic",
)
NOISE: Final = _claim(
    "Synthetic studies with observation noise as strong as the signal",
    "White noise in every pixel, as strong as the signal, costs little.",
    [Size(noise=1.0)],
    (1.0, 2.0, 3.0, 5.0),
    "noise 1",
)
SCATTERED: Final = replace(
    _claim(
        "Synthetic studies with maps that are not compact, and noise as strong as the signal",
        "Each map has three blobs of either sign, anywhere: the free start by varimax knows less of them.",
        [Size(noise=1.0, maps="scattered")],
        (0.5, 1.0, 2.0, 3.0, 5.0, 10.0),
        "scattered",
    ),
    maps_first=True,
)
COMPONENTS: Final = _claim(
    "Synthetic studies with 50 components",
    "Fifty components are 2.5 times the vectors to protect and six times the angles to find.",
    [Size(n_components=50)],
    (1.0, 2.0, 3.0, 5.0),
    "50 components",
)
NO_BASIS: Final = _claim(
    "Synthetic studies without a public basis: 900 features of which nothing is known",
    "Without image_shape the subspace is sought among 900 directions instead of 121.",
    [Size(with_basis=False)],
    (1.0, 2.0, 3.0, 5.0),
    "no basis",
)
