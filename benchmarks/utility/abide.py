"""ABIDE, the real data: 200 regions, 1,017 people enrolled at 20 unequal sites.

The folder holds ``timeseries.npz``, one (time, 200) array per participant, and ``participants.tsv``; the
series are those that nilearn fetches by ``fetch_abide_pcp(derivatives=["rois_cc200"])``, z-scored. People
with more than five empty regions are not enrolled.

There is no truth. As in the paper the non-private analysis of all data takes its place: PCA of all time
points, then ICA by tanh to convergence, the best of several starts (:func:`pooled_icas`). How far two such
analyses of half of the people each are from it, and from each other, says what a distance means.
"""

from __future__ import annotations

import csv
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.utility.shared.figures import INK, draw_series, mark_usable
from benchmarks.utility.shared.problems import FloatArray, Problem, Scan
from benchmarks.utility.shared.report import Claim
from benchmarks.utility.shared.runs import Cell, Options, Row, Task, compared
from benchmarks.utility.synthetic import find
from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.errors import InputError

MOST_EMPTY: Final = 5
N_COMPONENTS: Final = 20
# What the protocols of the 20 sites say on average, weighted by their people: as public as they are.
SCAN_LENGTH: Final = 195
STARTS: Final = 4
EPSILONS: Final = (1.0, 2.0, 3.0, 5.0, 10.0)
LARGEST_SITES: Final = 10
TITLE: Final = "ABIDE: 200 regions, 20 components, distance from the pooled non-private ICA"
TANH: Final = "pooled tanh ICA"
OWN: Final = "same method, no noise"
OTHER_HALF: Final = "the other half"
HALVES: Final = "halves"
TANH_HALF: Final = "tanh ICA of a half"
SUBJECT_HALF: Final = "subject, a half"
RESTART: Final = "tanh ICA, other starts"
SPLITS: Final = 2

Sites = dict[str, list[Scan]]


def read_abide(folder: Path, keep: Callable[[Mapping[str, str]], bool] = lambda row: True) -> Sites:
    """Return the scans of those enrolled, by site; ``keep`` chooses by the columns of participants.tsv."""
    table, archive = folder / "participants.tsv", folder / "timeseries.npz"
    if not table.exists() or not archive.exists():
        raise InputError(f"{folder} must hold participants.tsv and timeseries.npz")
    sites: Sites = defaultdict(list)
    with open(table, encoding="utf-8", newline="") as file, np.load(archive, allow_pickle=False) as series:
        for row in csv.DictReader(file, delimiter="\t"):
            scan = series[row["participant_id"]].astype(np.float32)
            empty = int(np.count_nonzero(scan.min(axis=0) == scan.max(axis=0)))
            if empty <= MOST_EMPTY and keep(row):
                sites[row["site"].lower()].append(scan - scan.mean(axis=0))
    return dict(sites)


def everybody(folder: Path) -> Sites:
    """Return all who are enrolled."""
    return read_abide(folder)


def controls(folder: Path) -> Sites:
    """Return the control group."""
    return read_abide(folder, lambda row: row["diagnosis"] == "control")


def largest_sites(folder: Path) -> Sites:
    """Return the ten sites with the most people (of fewer sites, the larger half)."""
    sites = read_abide(folder)
    number = min(LARGEST_SITES, len(sites) // 2)
    return dict(sorted(sites.items(), key=lambda site: -len(site[1]))[:number])


GROUPS: Final[dict[str, Callable[[Path], Sites]]] = {
    "all, 20 sites": everybody,
    "controls, 20 sites": controls,
    "10 largest sites": largest_sites,
}


def pooled_icas(scans: Sequence[Scan], n_components: int) -> list[FloatArray]:
    """Return the (R, D) unmixing matrices of tanh ICA on all time points from several starts, the best first.

    Picard-O, which has the fixed points of symmetric FastICA and gets there in fewer iterations (Ablin,
    Cardoso and Gramfort 2018), tries the starts; the best has the smallest E[log cosh]. FastICA of
    scikit-learn goes on from there.
    """
    from picard import picard  # type: ignore[import-untyped]

    pooled = np.concatenate(scans).astype(np.float64)
    values, vectors = np.linalg.eigh(pooled.T @ pooled / len(pooled))
    whitening = vectors[:, -n_components:] / np.sqrt(values[-n_components:])
    white = pooled @ whitening
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Picard's; FastICA says below whether it came to rest
        found = [picard(white.T, whiten=False, tol=1e-5, random_state=start)[1:] for start in range(STARTS)]
    best, *others = sorted(found, key=lambda one: float(np.logaddexp(one[1], -one[1]).sum()))
    return [_fastica(white, best[0]) @ whitening.T, *(other[0] @ whitening.T for other in others)]


def _fastica(white: FloatArray, start: FloatArray) -> FloatArray:
    """Run FastICA with tanh from a start, until no row of W turns by more than 1e-3 radians."""
    from sklearn.decomposition import FastICA

    ica = FastICA(whiten=False, w_init=start, max_iter=1000, tol=5e-7).fit(white)
    unmixing: FloatArray = ica.components_
    return unmixing


def halves(sites: Sites, seed: int) -> tuple[Sites, Sites]:
    """Split the people of every site at random in two."""
    rng = np.random.default_rng(seed)
    orders = {name: rng.permutation(len(scans)) for name, scans in sites.items()}
    first = {name: [sites[name][i] for i in order[: len(order) // 2]] for name, order in orders.items()}
    second = {name: [sites[name][i] for i in order[len(order) // 2 :]] for name, order in orders.items()}
    return first, second


def group_rows(
    folder: Path, group: str, n_components: int, epsilons: Sequence[float], draws: int
) -> list[Row]:
    """Analyse a group of people without noise, and privately with several draws of the noise."""
    sites = GROUPS[group](folder)
    scans = [scan for site in sites.values() for scan in site]
    best, *others = pooled_icas(scans, n_components)
    problem = Problem(sites, pseudo_inverse(best), scan_length=SCAN_LENGTH)
    own = problem.analyse(None, "none")
    references = {TANH: problem.mixing, OWN: pseudo_inverse(own[0])}
    rows = compared(group, len(scans), "subject", "none", None, 0, lambda: own, {TANH: problem.mixing})
    for number, other in enumerate(others):
        fit = partial(_known, other)
        rows += compared(group, len(scans), RESTART, "none", None, number, fit, {TANH: problem.mixing})
    for epsilon in epsilons:
        for draw in range(draws):
            fit = partial(problem.analyse, epsilon)
            rows += compared(group, len(scans), "subject", "cape", epsilon, draw, fit, references)
    return rows


def half_rows(folder: Path, n_components: int, splits: int) -> list[Row]:
    """Compare analyses of halves of the people, without noise, with those of all and with each other."""
    sites = everybody(folder)
    tanh = partial(_pooled, n_components=n_components)
    full_tanh = tanh(sites)
    ours = partial(_ours, mixing=pseudo_inverse(full_tanh))
    full = {TANH: pseudo_inverse(full_tanh), OWN: pseudo_inverse(ours(sites))}
    rows = []
    for split in range(splits):
        parts = halves(sites, split)
        for method, analyse in ((TANH_HALF, tanh), (SUBJECT_HALF, ours)):
            first, second = map(analyse, parts)
            size = sum(map(len, parts[0].values()))
            other = {**full, OTHER_HALF: pseudo_inverse(second)}
            rows += compared(HALVES, size, method, "none", None, 2 * split, partial(_known, first), other)
            rows += compared(HALVES, size, method, "none", None, 2 * split + 1, partial(_known, second), full)
    return rows


def _known(unmixing: FloatArray) -> tuple[FloatArray, int]:
    return unmixing, 0


def _pooled(sites: Sites, n_components: int) -> FloatArray:
    return pooled_icas([scan for site in sites.values() for scan in site], n_components)[0]


def _ours(sites: Sites, mixing: FloatArray) -> FloatArray:
    return Problem(sites, mixing, scan_length=SCAN_LENGTH).analyse(None, "none")[0]


def tasks(options: Options) -> list[Task]:
    """Return one task for each group of people, and one for the halves."""
    folder = options.folder
    assert folder is not None
    n_components, epsilons = (4, (3.0, 30.0)) if options.quick else (N_COMPONENTS, EPSILONS)
    splits = 1 if options.quick else SPLITS
    return [
        *(Task(group_rows, (folder, group, n_components, epsilons, options.seeds)) for group in GROUPS),
        Task(half_rows, (folder, n_components, splits)),
    ]


def label(cell: Cell) -> str:
    """Name what is compared with what."""
    return f"{cell.setting}: {cell.method}, against {cell.reference}"


def summary(cells: Sequence[Cell]) -> str:
    """Say how near the private analysis of everybody comes, beside what halves of the people reach."""
    everyone = next(iter(GROUPS))
    private = [
        cell for cell in cells if (cell.setting, cell.mechanism, cell.reference) == (everyone, "cape", TANH)
    ]
    values = ", ".join(f"{cell.gain_index:.3f} at ε = {cell.epsilon:g}" for cell in private)
    free = find(cells, setting=everyone, method="subject", epsilon=None).gain_index
    tanh, ours = (find(cells, method=name, reference=TANH).gain_index for name in (TANH_HALF, SUBJECT_HALF))
    between = [
        find(cells, method=name, reference=OTHER_HALF).gain_index for name in (TANH_HALF, SUBJECT_HALF)
    ]
    return (
        f"Distance (gain index) of the private maps of {private[0].n_subjects:,} people from the pooled "
        f"non-private ICA by tanh: {values}; without noise {free:.3f}, because the default method's score is "
        f"another. The same tanh ICA of half of the people is {tanh:.3f} from it, the default method of a "
        f"half without noise {ours:.3f}; two halves are {between[0]:.3f} from each other by tanh and "
        f"{between[1]:.3f} by the default method. Constants of the method were chosen with these data in "
        "view, so the figures are those of tuned parameters. Controls and the ten largest sites are compared "
        "with the pooled ICA of the same people."
    )


def figure(cells: Sequence[Cell]) -> Figure:
    """Draw distances over epsilon: of each group from its pooled ICA, of everybody from both references."""
    drawing = Figure(figsize=(9.0, 4.4), layout="constrained")
    drawing.suptitle(TITLE, fontsize=11, color=INK)
    private = [cell for cell in cells if cell.method == "subject" and cell.setting in GROUPS]
    left, right = drawing.subplots(1, 2, sharey=True)
    draw_series(left, [cell for cell in private if cell.reference == TANH], _people, _gain)
    everyone = [cell for cell in private if cell.setting == next(iter(GROUPS))]
    draw_series(right, everyone, lambda cell: f"all, against {cell.reference}", _gain)
    for height, text in (
        (find(cells, method=TANH_HALF, reference=TANH).gain_index, "tanh ICA, half of the people"),
        (find(cells, method=SUBJECT_HALF, reference=TANH).gain_index, "default method, half, no noise"),
    ):
        right.axhline(height, color=INK, linewidth=0.8, linestyle="--")
        right.text(0.01, height, text, transform=right.get_yaxis_transform(), va="top", fontsize=7)
    for axis, title in (
        (left, "from the pooled ICA of the same people"),
        (right, "everybody, two references"),
    ):
        mark_usable(axis)
        axis.set_title(title, fontsize=10, color=INK)
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    right.set_ylabel("")
    return drawing


def _people(cell: Cell) -> str:
    return f"{cell.setting} (M = {cell.n_subjects:,})"


def _gain(cell: Cell) -> tuple[float, float]:
    return cell.gain_index, cell.gain_error


ABIDE: Final = Claim(TITLE, tasks, summary, figure, label, needs_folder=True)
