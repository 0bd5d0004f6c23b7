"""Comparison of runs: quality of the maps, privacy cost and duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from capedjica.algorithms.ica.maps.networks import pseudo_inverse
from capedjica.algorithms.reliability import Reliability
from capedjica.coordinator.run.results import Provenance
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import InputError
from capedjica.metrics import match_components, normalized_gain_index
from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study
from capedjica.tools.arrays import FloatArray, read_matrix
from capedjica.tools.toml import listed


@dataclass(frozen=True)
class ComparedRun:
    """One run in the comparison.

    Attributes
    ----------
    run, title, method, mechanism : str
        Its folder, title, method and mechanism.
    epsilon : float or None
        The guarantee; None without privacy.
    private : bool
        Whether the guarantee is valid (noise was added, and not from a seed).
    gain_index : float or None
        Gain index against the ground truth, if this is known; 0 is perfect.
    map_correlation : float
        Mean correlation of matched maps with the reference.
    worst_map : float
        Lowest of these correlations.
    n_iter, seconds : int, float
        Number of iterations and duration.
    reliable_maps : int or None
        Number of reliable maps; None if it is not known.
    warning : str
        Warning about the maps, shown first; usually empty.
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
    reliable_maps: int | None
    warning: str


class _Privacy(msgspec.Struct):
    """Fields of a ``privacy.json`` used in the comparison."""

    mechanism: str
    epsilon: float | None
    private: bool


@dataclass(frozen=True, eq=False)
class RunNetworks:
    """The networks of a complete run: their location, method and reliability."""

    folder: RunFolder
    place: str
    method: str
    reliability: Reliability

    @classmethod
    def of(cls, run: Path) -> RunNetworks:
        """Return the networks of a run; refuse a run without networks."""
        study = Study.load(run)
        step, table = study.networks, study.content.networks
        if step is None or table is None:
            raise InputError(
                f"{run} has no brain networks to compare: its analyses are of other kinds; omit it"
            )
        reliability = read_reliability(run, study, step)
        return cls(RunFolder(run), study.results_folder(step), table.method, reliability)

    @property
    def mixing(self) -> FloatArray:
        """Maps as columns of the mixing matrix."""
        return self.folder.read_array(str(Path(self.place) / "mixing.npy"))


def compare_runs(runs: Sequence[Path], truth: Path | None = None) -> list[ComparedRun]:
    """Compare complete runs with the true mixing matrix, or with the first run if it is not given."""
    problems = [problem for run in runs for problem in _problems(run)]
    if problems:
        raise InputError(listed("the runs cannot be compared", problems))
    found = [RunNetworks.of(run) for run in runs]
    truth_mixing = None if truth is None else read_matrix(truth)
    reference = found[0].mixing if truth_mixing is None else truth_mixing
    for one in found:
        shape = one.mixing.shape
        if shape != reference.shape:
            other = found[0].folder.path if truth is None else truth
            raise InputError(
                f"{one.folder.path} has {shape[1]} maps of {shape[0]} features, but {other} has "
                f"{reference.shape[1]} maps of {reference.shape[0]} features; compare runs of the same shape"
            )
    return [_compared(one, reference, truth_mixing) for one in found]


def _problems(run: Path) -> list[str]:
    try:
        state = RunFolder(run).state()
    except InputError as error:
        return [str(error)]
    if state is None:
        inner = run / "run"
        return [f"{run} contains no run" + f"; did you mean {inner}?" * (inner / "run.json").exists()]
    if not state.complete:
        return [f"{run} is not complete; resume it with capedjica run"]
    return []


def _compared(one: RunNetworks, reference: FloatArray, truth: FloatArray | None) -> ComparedRun:
    privacy = one.folder.read_json("privacy.json", _Privacy)
    provenance = one.folder.read_json("provenance.json", Provenance)
    state, mixing = one.folder.state(), one.mixing
    assert state is not None
    correlations = match_components(mixing.T, reference.T).correlations
    return ComparedRun(
        run=str(one.folder.path),
        title=state.title,
        method=one.method,
        mechanism=privacy.mechanism,
        epsilon=privacy.epsilon,
        private=privacy.private,
        gain_index=None if truth is None else normalized_gain_index(pseudo_inverse(mixing) @ truth),
        map_correlation=float(correlations.mean()),
        worst_map=float(correlations.min()),
        n_iter=provenance.n_iter,
        seconds=state.seconds,
        reliable_maps=one.reliability.n_reliable,
        warning=one.reliability.banner,
    )
