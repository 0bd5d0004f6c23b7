"""Demonstration: four hospitals in one process, with the real protocol and data with known ground truth."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from capedjica.algorithms.reliability import Reliability
from capedjica.data import make_synthetic
from capedjica.data.simulated.synthetic import SyntheticStudy
from capedjica.errors import InputError
from capedjica.estimators import CapeDJICA
from capedjica.estimators.djica import Method
from capedjica.mechanisms.contract import MechanismName
from capedjica.metrics import match_components, normalized_gain_index
from capedjica.report.pictures.figures import convergence_figure, maps_figure, save
from capedjica.tools.atomic_files import write_whole
from capedjica.tools.version import __version__

SITES: Final = 4
SCAN_LENGTH: Final = 200
# Iterations of the paper's method; its default of 1000 would divide the budget by 1000.
PAPER_ITERATIONS: Final = 100


@dataclass(frozen=True)
class Way:
    """One method of analysing the study."""

    title: str
    method: Method = "subject"
    mechanism: MechanismName = "cape"


WAYS: Final = {
    "cape": Way("private, all sites (cape)"),
    "none": Way("not private, all sites", mechanism="none"),
    "conventional": Way("private, conventional noise", mechanism="conventional"),
    "local": Way("private, one site alone", mechanism="local"),
    "paper": Way("private, the paper's method", method="paper"),
}

Progress = Callable[[str, int, float, float], None]


@dataclass
class Run:
    """One analysis of the study, with its convergence."""

    name: str
    estimator: CapeDJICA
    gain_index: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    map_correlation: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Demo:
    """The study and all of its analyses, the private one first."""

    study: SyntheticStudy
    epsilon: float
    runs: list[Run]

    @property
    def private(self) -> Run:
        """The run with mechanism "cape"."""
        return self.runs[0]

    @property
    def reliability(self) -> Reliability:
        """Reliability of its maps, computed without the ground truth."""
        return Reliability(len(self.study.maps), self.private.estimator.stability_)


def run_demo(
    n_subjects: int, n_components: int, epsilon: float, random_state: int | None, progress: Progress
) -> Demo:
    """Simulate the data and analyse them by each method of `WAYS`, each with the same total epsilon.

    ``progress(name, iteration, epsilon, gain index)`` is called after each iteration.
    """
    study = make_synthetic(SITES, n_subjects, n_components, SCAN_LENGTH, 24, random_state)
    runs = [_analyse(study, name, n_components, epsilon, progress) for name in WAYS]
    return Demo(study, epsilon, runs)


def _analyse(study: SyntheticStudy, name: str, n_components: int, epsilon: float, progress: Progress) -> Run:
    way = WAYS[name]
    estimator = CapeDJICA(
        n_components,
        None if way.mechanism == "none" else epsilon,
        method=way.method,
        mechanism=way.mechanism,
        image_shape=study.image_shape,
        max_iter=PAPER_ITERATIONS if way.method == "paper" else None,
        scan_length=SCAN_LENGTH,
    )
    run = Run(name, estimator)

    def look(estimator: CapeDJICA, iteration: int) -> None:
        run.gain_index.append(normalized_gain_index(estimator.unmixing_ @ study.mixing))
        run.spent.append(estimator.privacy_.spent_epsilon)
        progress(name, iteration, run.spent[-1], run.gain_index[-1])

    estimator.callback = look
    start = time.perf_counter()
    with warnings.catch_warnings():
        # The warning of fewer networks than requested is redundant with the grades.
        warnings.simplefilter("ignore", UserWarning)
        estimator.fit(study.sites)
    run.seconds = time.perf_counter() - start
    run.map_correlation = float(np.mean(match_components(estimator.components_, study.mixing.T).correlations))
    return run


def summary(demo: Demo) -> dict[str, Any]:
    """Return the results as numbers."""
    privacy = demo.private.estimator.privacy_
    return {
        "capedjica": __version__,
        "sites": [len(site) for site in demo.study.sites],
        "components": len(demo.study.maps),
        "features": int(demo.study.mixing.shape[0]),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "n_colluding": privacy.n_colluding,
        "neighbour": privacy.neighbour,
        "against": privacy.adversary.against,
        "not_against": privacy.adversary.not_against,
        "releases": len(privacy.releases),
        "grades": demo.reliability.grades,
        "runs": {
            run.name: {
                "gain_index": run.gain_index[-1],
                "map_correlation": run.map_correlation,
                "epsilon": None if run.name == "none" else demo.epsilon,
                "seconds": round(run.seconds, 2),
                "gain_index_by_iteration": run.gain_index,
                "epsilon_by_iteration": [None if math.isinf(value) else value for value in run.spent],
            }
            for run in demo.runs
        },
    }


def write_demo(demo: Demo, folder: Path) -> None:
    """Write maps.png, convergence.png, report.html and result.json, each atomically."""
    rows = {"true": demo.study.maps}
    for run in demo.runs:
        # In the order and with the signs of the true maps.
        matching = match_components(run.estimator.components_, demo.study.mixing.T)
        maps = run.estimator.components_[matching.permutation] * matching.signs[:, np.newaxis]
        rows[WAYS[run.name].title.replace(", ", ",\n")] = maps.reshape(demo.study.maps.shape)
    curves = {WAYS[run.name].title: run.gain_index for run in demo.runs}
    save(maps_figure(rows, f"Maps: true and estimated, epsilon = {demo.epsilon:g}"), folder / "maps.png")
    save(convergence_figure(curves, demo.private.spent), folder / "convergence.png")
    what = "Networks" if demo.reliability.networks else "Maps"
    title = f"{what} of {sum(map(len, demo.study.sites))} simulated participants"
    demo.private.estimator.generate_report(title).save_as_html(folder / "report.html")
    write_whole(folder / "result.json", json.dumps(summary(demo), indent=2).encode() + b"\n")


def prepare_folder(folder: Path) -> None:
    """Create the folder before the analysis, and check that it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is not writable; give another folder")
