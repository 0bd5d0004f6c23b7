"""Many studies in one process, and one long study on FLARE: memory and open files do not grow."""

from __future__ import annotations

import gc
import shutil

import psutil
import pytest

from capedjica.study.federated.progress import Progress
from capedjica.study.federated.running import Follower
from capedjica.study.running import find_sites, run_study
from tests.federated.consortium import Consortium, consortium
from tests.study.small_study import make_study

pytestmark = pytest.mark.full

GROWTH = 1.05
N_STUDIES, WARM_UP = 200, 40
N_ITERATIONS = 300


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


class Weigher(Follower):
    """Weighs the processes of a run from a fifth of it on."""

    def __init__(self, parties: Consortium) -> None:
        self._parties = parties
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def progress(self, progress: Progress) -> None:
        if progress.phase == "running" and progress.n_done > progress.n_total / 5:
            self.last = self._weigh()
            self.first = self.first or self.last

    def _weigh(self) -> dict[str, int]:
        kits = {"server": self._parties.federation.server_kit}
        kits |= {name: self._parties.kit(name) for name in self._parties.homes}
        return {
            f"{role} of {name}": process.memory_info().rss
            for name, kit in kits.items()
            for role, members in self._parties.processes_of(kit).items()
            for process in members
        }


@pytest.mark.xdist_group("flare")
def test_a_long_study_on_flare(tmp_path):
    with consortium(tmp_path, iterations=N_ITERATIONS) as parties:
        weigher = Weigher(parties)
        parties.run(weigher)
    assert len(weigher.first) == 15
    assert weigher.first is not weigher.last
    grown = {name: weigher.last[name] / before for name, before in weigher.first.items()}
    assert max(grown.values()) <= GROWTH, grown
