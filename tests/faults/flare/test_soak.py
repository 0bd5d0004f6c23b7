"""Many studies in one process, and one long study on FLARE: memory and open files do not grow."""

from __future__ import annotations

import gc
import shutil
from typing import NamedTuple

import psutil
import pytest

from capedjica.coordinator.flare.progress import Progress
from capedjica.coordinator.flare.remote_run import Follower
from capedjica.one_machine.local_run import find_sites, run_study
from tests.federated.consortium import CALM, Consortium, consortium
from tests.support.small_study import make_study

pytestmark = pytest.mark.full

# Room for what FLARE remembers of messages that it sent, for five minutes and of 10,000 at most: about 2 kB
# of each, 8 kB a release in the server's job.
GROWTH = 1.05
N_STUDIES, WARM_UP = 200, 40
N_ITERATIONS = 500


def test_200_studies_of_5_releases_in_one_process(tmp_path):
    own, sizes = psutil.Process(), []
    for number in range(N_STUDIES):
        folder = tmp_path / str(number)
        study = make_study(folder, iterations=2)
        assert sum(stage.count for stage in study.contract.stages) == 5
        assert run_study(study, find_sites(study, folder / "sites"), folder / "run").complete
        shutil.rmtree(folder)
        gc.collect()
        sizes.append((own.memory_info().rss, own.num_fds()))
    (memory_before, files_before), (memory, files) = sizes[WARM_UP], sizes[-1]
    assert memory <= GROWTH * memory_before
    assert files <= files_before


class Weight(NamedTuple):
    """What a process holds: memory in bytes, and open files."""

    memory: int
    files: int


class Weigher(Follower):
    """Weighs the processes of a run while it makes releases, from a fifth of them on."""

    def __init__(self, parties: Consortium) -> None:
        self._parties = parties
        self.weights: list[tuple[int, dict[str, Weight]]] = []

    def progress(self, progress: Progress) -> None:
        if progress.phase == "running" and progress.n_done > progress.n_total / 5:
            self.weights.append((progress.n_done, self._weigh()))

    def _weigh(self) -> dict[str, Weight]:
        found = {
            f"{role} of {name}": members[0]
            for name in ("server", *self._parties.homes)
            for role, members in self._parties.processes_of(name).items()
            if members
        }
        # The aggregator is this process.
        return {
            role: Weight(process.memory_info().rss, process.num_fds())
            for role, process in {"aggregator": psutil.Process(), **found}.items()
        }

    def halves(self, process: str) -> tuple[Weight, Weight]:
        """Return the least that a process holds in the first half, and in the second.

        Between two collections of garbage memory rises and falls, and connections come and go; what is never
        given back raises the least.
        """
        # After the last release the results are made, which takes more, once.
        held = [weights[process] for n_done, weights in self.weights if n_done < self.weights[-1][0]]
        half = len(held) // 2
        assert half >= 5, "too few samples to tell"
        return least(held[:half]), least(held[half:])


def least(held: list[Weight]) -> Weight:
    return Weight(min(one.memory for one in held), min(one.files for one in held))


def has_grown(before: Weight, after: Weight) -> bool:
    return any(now > GROWTH * once for once, now in zip(before, after, strict=True))


def test_what_grows_is_noticed():
    before = Weight(1000, 12)
    assert not has_grown(before, Weight(1050, 12))
    assert has_grown(before, Weight(1051, 12))
    assert has_grown(before, Weight(1000, 13))


def test_a_long_study_on_flare(tmp_path):
    with consortium(tmp_path, iterations=N_ITERATIONS) as parties:
        weigher = Weigher(parties)
        parties.run(weigher, wait=120.0, patience=CALM)
    # What FLARE left open is complained about here, and not in another test.
    gc.collect()
    held = {process: weigher.halves(process) for process in weigher.weights[0][1]}
    print(held)
    # Of each site supervisor, agent, carrier and job; of the server supervisor, itself, dispatcher and job.
    assert len(held) == 1 + 4 * 4 + 4
    assert not {process: halves for process, halves in held.items() if has_grown(*halves)}
