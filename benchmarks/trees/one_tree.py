"""Measures the code that PYTHONPATH leads to: ``python -P one_tree.py {online,study}``, for ``--against``.

It is run on this tree and on one of an earlier commit, so it uses what both have. Prints JSON: seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.federated import Size, _hand_out_kits, measure
from capedjica.coordinator.flare.remote_run import Follower, Terms, run_federated
from capedjica.one_machine.flare_demo import running_sites
from capedjica.one_machine.local_run import find_sites
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.study.study_file import Study

# Releases of 420 values: the paper's method with 20 components.
ONLINE: Final = Size(sites=4, iterations=200)
# The default method.
STUDY: Final = Simulation(subjects=(64,) * 4, n_components=20, n_timepoints=(100, 100))


class _Clock(Follower):
    """Notes when all sites were connected."""

    def __init__(self) -> None:
        self.connected: float | None = None

    def sites(self, connected: Mapping[str, bool]) -> None:
        if self.connected is None and all(connected.values()):
            self.connected = time.perf_counter()


def online() -> list[float]:
    """Return the online part of each release."""
    return [float(seconds) for seconds in measure(ONLINE).online]


def study() -> list[float]:
    """Return the time of a run, from when all sites are connected until the command ends."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, clock = Path(scratch) / "study", _Clock()
        simulate(STUDY, folder)
        sealed = Study.load(folder)
        homes = find_sites(sealed, folder / "sites")
        _hand_out_kits(sealed, homes)
        with running_sites(homes):
            run_federated(sealed, folder / "run", Terms(wait=300.0), clock)
            ended = time.perf_counter()
        assert clock.connected is not None
        return [ended - clock.connected]


if __name__ == "__main__":
    what: dict[str, Callable[[], list[float]]] = {"online": online, "study": study}
    sys.stdout.write(json.dumps(what[sys.argv[1]]()) + "\n")
