"""ABIDE, all sites private, guided by networks of other people: published coordinates of other laboratories.

A template has one map for each named network, the sum of Gaussians of standard deviation `WIDTH` around its
published coordinates, at the centres of the 200 regions. The coordinates ship with nilearn: Seitzman et al.
2020 (named after their preprint of 2018) and Dosenbach et al. 2010. Nothing was tuned on these templates.

``examples/cc200_centres.csv`` has the centres of mass of the regions in MNI space (mm), by the labels of the
CC200 atlas (Craddock et al. 2012) of the Preprocessed Connectomes Project (Craddock et al. 2013). Whether
they are in the order of the columns of the data is seen in the data: mirrored regions correlate, and
correlations fall with distance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import ROOT
from benchmarks.utility.abide import TANH, Sites, everybody
from benchmarks.utility.guided import (
    EPSILONS,
    EXACT_OWN,
    EXACT_TANH,
    EXTERNAL,
    HARMLESS,
    QUICK_EPSILONS,
    UNGUIDED,
    difference,
    guided_by,
    harm_said,
    label,
    pick,
    problem_of,
    rows_of,
    scores_figure,
    settings_of,
    split_table,
    template_of,
)
from benchmarks.utility.shared.problems import FloatArray
from benchmarks.utility.shared.report import Claim, markdown
from benchmarks.utility.shared.runs import Cell, Options, Row, Task
from capedjica.algorithms.ica.template import Template
from capedjica.errors import InputError

TITLE: Final = "Guided by networks of other people: ABIDE, all sites private"
CENTRES: Final = ROOT / "examples" / "cc200_centres.csv"
SEITZMAN: Final = "Seitzman 2018"
DOSENBACH: Final = "Dosenbach 2010"
# Standard deviation of a blob, in mm: a region of the atlas with its 200 or so voxels of 27 mm^3 has a radius
# of 11 mm.
WIDTH: Final = 10.0
# Networks with fewer coordinates are left out.
FEWEST: Final = 5
QUICK_NETWORKS: Final = 4
BEST_MATCH: Final = "best match in the pooled ICA"
ORDER: Final = "order of the regions"
MIRRORED: Final = "mirrored regions"
SHIFTED: Final = "mirrored regions, columns shifted by one"
# In mm: how far a region may be from the mirror image of another, and from the midline it must be.
MIRROR_DISTANCE: Final = 8.0
LATERAL: Final = 15.0
DISTANCES: Final = (0, 20, 40, 60, 80, 100, 200)


def centres(n_regions: int) -> FloatArray:
    """Return the centres of the first regions (D, 3), in mm."""
    table = np.loadtxt(CENTRES, delimiter=",", skiprows=1)
    if n_regions > len(table):
        raise InputError(f"the scans have {n_regions} regions; expected the {len(table)} of the CC200 atlas")
    return table[:n_regions, 2:5]


def published(source: str) -> dict[str, FloatArray]:
    """Return the coordinates (n, 3) of each network, the largest network first."""
    from nilearn import datasets

    fetch = {SEITZMAN: datasets.fetch_coords_seitzman_2018, DOSENBACH: datasets.fetch_coords_dosenbach_2010}
    found = fetch[source]()
    positions, names = np.asarray(found["rois"], dtype=np.float64), np.asarray(found["networks"], dtype=str)
    counts = Counter(str(name) for name in names if name != "unassigned")
    return {name: positions[names == name] for name, count in counts.most_common() if count >= FEWEST}


def blobs(networks: dict[str, FloatArray], positions: FloatArray) -> Template:
    """Return the template of networks, at the positions (D, 3) of regions."""
    gaps = [positions[:, None] - coordinates for coordinates in networks.values()]
    maps = [np.exp(-np.sum(gap**2, axis=2) / (2 * WIDTH**2)).sum(axis=1) for gap in gaps]
    return Template.of(np.array(maps), tuple(networks))


def match_rows(setting: str, template: Template, mixing: FloatArray, n_subjects: int) -> list[Row]:
    """Return the correlation of each network with the map of the reference that is most like it."""
    both = np.corrcoef(np.vstack([template.maps, mixing.T]))
    best = np.abs(both[: template.n_networks, template.n_networks :]).max(axis=1)
    row = partial(_beside, setting, n_subjects, reference=BEST_MATCH)
    return [row(name, value=float(value)) for name, value in zip(template.names, best, strict=True)]


def _beside(setting: str, n_subjects: int, method: str, reference: str, value: float) -> Row:
    """Return a correlation that is of no analysis, and has no gain index."""
    return Row(setting, n_subjects, method, "none", None, reference, 0, float("nan"), value, 0, 0.0)


def mean_correlation(sites: Sites) -> FloatArray:
    """Return the mean correlation matrix of everybody's regions; of empty regions it is 0."""
    scans = [scan.astype(np.float64) for site in sites.values() for scan in site]
    white = (scan / np.where(scan.std(axis=0) > 0, scan.std(axis=0), 1.0) for scan in scans)
    total: FloatArray = np.sum([one.T @ one / len(one) for one in white], axis=0)
    return total / len(scans)


def mirror_pairs(positions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the indices of regions on the left, and of those nearest to their mirror images."""
    left = np.flatnonzero(positions[:, 0] < -LATERAL)
    mirrored = positions[left] * [-1, 1, 1]
    gaps = np.linalg.norm(mirrored[:, None] - positions, axis=2)
    near = gaps.min(axis=1) < MIRROR_DISTANCE
    return left[near], gaps.argmin(axis=1)[near]


def order_rows(sites: Sites, positions: FloatArray) -> list[Row]:
    """Return mean correlations of mirrored regions, and of pairs of regions by distance."""
    correlations = mean_correlation(sites)
    row = partial(_beside, ORDER, sum(map(len, sites.values())), reference=ORDER)
    left, right = mirror_pairs(positions)
    shifted = np.roll(correlations, 1, axis=(0, 1))
    rows = [
        row(MIRRORED, value=float(correlations[left, right].mean())),
        row(SHIFTED, value=float(shifted[left, right].mean())),
    ]
    first, second = np.triu_indices(len(positions), 1)
    gaps = np.linalg.norm(positions[first] - positions[second], axis=1)
    for least, most in pairwise(DISTANCES):
        between = (gaps >= least) & (gaps < most)
        value = float(correlations[first, second][between].mean())
        rows.append(row(_between(least, most), value=value))
    return rows


def _between(least: int, most: int) -> str:
    return f"{least} to {most} mm"


def external_rows(
    folder: Path, source: str, epsilons: Sequence[float], draws: int, most_networks: int | None = None
) -> list[Row]:
    """Analyse everybody, guided by published networks and unguided."""
    sites = everybody(folder)
    positions = centres(next(iter(sites.values()))[0].shape[1])
    template = blobs(dict(list(published(source).items())[:most_networks]), positions)
    problem = problem_of(sites, template.n_networks)
    setting = f"{source}, {template.n_networks} networks"
    rows = rows_of(setting, problem, {EXTERNAL: template}, epsilons, draws)
    return [*rows, *match_rows(setting, template, problem.mixing, len(problem.scans))]


def order_task(folder: Path) -> list[Row]:
    """Check the order of the regions in the data of a folder."""
    sites = everybody(folder)
    return order_rows(sites, centres(next(iter(sites.values()))[0].shape[1]))


def tasks(options: Options) -> list[Task]:
    """Return one task for each source of networks, and the check of the order of regions."""
    folder = options.folder
    assert folder is not None
    epsilons = QUICK_EPSILONS if options.quick else EPSILONS
    most = QUICK_NETWORKS if options.quick else None
    return [
        *(
            Task(external_rows, (folder, source, epsilons, options.seeds, most))
            for source in (SEITZMAN, DOSENBACH)
        ),
        Task(order_task, (folder,)),
    ]


def _sources(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of analyses."""
    return [cell for cell in cells if cell.reference not in (BEST_MATCH, ORDER)]


def tables(cells: Sequence[Cell]) -> str:
    """Return for each source what was reached and how well it fits, then the order of the regions."""
    parts = []
    for setting in settings_of(_sources(cells)):
        matches = _listed("network", pick(cells, setting=setting, reference=BEST_MATCH))
        parts.append(
            f"{split_table(pick(_sources(cells), setting=setting), setting)}\n\nCorrelation with the most "
            f"similar map of the pooled tanh ICA:\n\n{matches}"
        )
    order = _listed("pairs of regions", pick(cells, setting=ORDER))
    return "\n\n".join([*parts, f"## {ORDER.capitalize()}\n\n{order}"])


def _listed(heading: str, cells: Sequence[Cell]) -> str:
    lines = [[cell.method, f"{cell.map_correlation:.3f}"] for cell in cells]
    return markdown([[heading, "correlation"], ["---"] * 2, *lines])


def setting_said(cells: Sequence[Cell], setting: str) -> str:
    """Say what one source of networks brings."""
    own = pick(cells, setting=setting)
    matches = [cell.map_correlation for cell in pick(own, reference=BEST_MATCH)]
    alone = pick(own, method=template_of(EXTERNAL))[0]
    guided = pick(own, method=guided_by(EXTERNAL), mechanism="cape")
    free = {cell.epsilon: cell for cell in pick(own, method=UNGUIDED)}
    exact = pick(own, method=guided_by(EXTERNAL), mechanism="none")[0]
    said = ", ".join(
        f"{_scores(cell)} at ε = {cell.epsilon:g} (unguided {_scores(free[cell.epsilon])}"
        + (", its gain index lower" if difference(free[cell.epsilon], cell).upper < 0 else "")
        + ")"
        for cell in guided
    )
    harms = "; ".join(harm_said(own, name, TANH) for name in (EXTERNAL, EXACT_OWN, EXACT_TANH))
    return (
        f"**{setting}.** Its networks correlate with the most similar maps of the pooled ICA by "
        f"{min(matches):.2f} to {max(matches):.2f} (mean {np.mean(matches):.2f}). Template alone "
        f"{_scores(alone)}; guided {said}; without privacy guided {_scores(exact)}, unguided "
        f"{_scores(free[None])}. Upper 95% bound of the gain index less the template's, at most {HARMLESS} "
        f"wanted: {harms}."
    )


def _scores(cell: Cell) -> str:
    return f"{cell.map_correlation:.3f} / {cell.gain_index:.3f}"


def summary(cells: Sequence[Cell]) -> str:
    """Say what templates of other people bring, and whether regions are where the table says."""
    order = {cell.method: cell.map_correlation for cell in pick(cells, setting=ORDER)}
    near, far = (order[_between(*edges)] for edges in (DISTANCES[:2], DISTANCES[-2:]))
    parts = [setting_said(cells, setting) for setting in settings_of(_sources(cells))]
    return (
        "Correlation of matched maps / gain index, distance from the pooled non-private tanh ICA with as "
        f"many components. Templates: Gaussians of standard deviation {WIDTH:g} mm around published "
        f"coordinates; networks with fewer than {FEWEST} coordinates are left out.\n\n"
        + "\n\n".join(parts)
        + f"\n\n**Order of the regions.** Mirrored regions correlate by {order[MIRRORED]:.2f}, by "
        f"{order[SHIFTED]:.2f} if the columns are shifted by one; near regions by {near:.2f}, distant ones "
        f"by {far:.2f}."
    )


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw both scores over epsilon for each source."""
    return scores_figure(_sources(cells), f"{TITLE}\ndotted: the template alone", {})


GUIDED_EXTERNAL: Final = Claim(TITLE, tasks, summary, figure, label, needs_folder=True, tables=tables)
