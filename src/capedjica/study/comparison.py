"""Runs side by side: how good the maps are, what they cost, how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import InputError
from capedjica.metrics import match_components, normalized_gain_index
from capedjica.study.run_folder import RunFolder
from capedjica.study.toml import listed

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedRun:
    """One run in the comparison.

    Attributes
    ----------
    run, title, method, mechanism : str
        Its folder and what it did.
    epsilon : float or None
        The guarantee; None without privacy.
    private : bool
        Whether the guarantee is one (no seed, some noise).
    gain_index : float or None
        Against the truth, if it is known: 0 is perfect.
    map_correlation : float
        Mean correlation of matched maps with the reference.
    worst_map : float
        That of the map that fits worst.
    n_iter, seconds : int, float
        What it took.
    """

    run: str
    title: str
    method: str
    mechanism: str
    epsilon: float | None
    private: bool
    gain_index: float | None
    map_correlation: float
    worst_map: float
    n_iter: int
    seconds: float


def compare_runs(runs: Sequence[Path], truth: Path | None = None) -> list[ComparedRun]:
    """Compare complete runs with the true mixing matrix, or with the first run where no truth is known."""
    found = [problem for run in runs for problem in _problems(run)]
    if found:
        raise InputError(listed("the runs cannot be compared", found))
    folders = [RunFolder(run) for run in runs]
    mixing = None if truth is None else _read_truth(truth)
    reference = folders[0].read_array("mixing.npy") if mixing is None else mixing
    for folder in folders:
        shape = folder.read_array("mixing.npy").shape
        if shape != reference.shape:
            other = folders[0].path if truth is None else truth
            raise InputError(
                f"{folder.path} has {shape[1]} maps of {shape[0]} features, {other} has {reference.shape[1]} "
                f"of {reference.shape[0]}: they cannot be compared"
            )
    return [_compared(folder, reference, mixing) for folder in folders]


def _problems(run: Path) -> list[str]:
    try:
        state = RunFolder(run).state()
    except InputError as error:
        return [str(error)]
    if state is None:
        return [f"{run} holds no run"]
    if not state.complete:
        return [f"{run} is not complete: capedjica run goes on with it"]
    return []


def _read_truth(path: Path) -> FloatArray:
    try:
        mixing = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a .npy file: {error}") from None
    if mixing.ndim != 2:
        raise InputError(f"{path} must hold a mixing matrix (features, components), got shape {mixing.shape}")
    return mixing


def _compared(folder: RunFolder, reference: FloatArray, truth: FloatArray | None) -> ComparedRun:
    privacy, provenance = folder.read_json("privacy.json"), folder.read_json("provenance.json")
    state, unmixing = folder.state(), folder.read_array("unmixing.npy")
    assert state is not None
    correlations = match_components(folder.read_array("mixing.npy").T, reference.T).correlations
    return ComparedRun(
        run=str(folder.path),
        title=state.title,
        method=provenance["study"]["analysis"]["method"],
        mechanism=privacy["mechanism"],
        epsilon=privacy["epsilon"],
        private=privacy["private"],
        gain_index=None if truth is None else normalized_gain_index(unmixing @ truth),
        map_correlation=float(correlations.mean()),
        worst_map=float(correlations.min()),
        n_iter=provenance["n_iter"],
        seconds=state.seconds,
    )
