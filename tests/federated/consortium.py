"""Four hospitals and a server as real processes on this machine, over mutual TLS."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.flare.progress import Progress, read_progress
from capedjica.coordinator.flare.provisioning import provision
from capedjica.coordinator.flare.remote_run import Follower, Terms, run_federated
from capedjica.coordinator.flare.transport import Patience
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.flare import processes
from capedjica.one_machine.flare_demo import start_site
from capedjica.one_machine.local_run import find_sites
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.support.small_study import make_study

# Short, so that tests of what is lost do not take minutes.
PATIENCE = Patience(joining=60.0, silence=8.0, greeting=30.0, masks=60.0, release=60.0)
# Longer than a site that is well is ever silent, on a machine with ten times the work it can do.
CALM = Patience(joining=90.0, silence=20.0, greeting=60.0, masks=120.0, release=120.0)


def own_port() -> int:
    """Return a port that is free, and that no other worker of these tests and no outgoing connection gets."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        port = 20_000 + 1000 * (worker % 12) + random.randrange(1000)
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("", port))
            return port


class Consortium:
    """A sealed study on disk and its parties."""

    def __init__(self, study: Study, host: str = "localhost") -> None:
        self.study = study
        self.federation: Federation = provision(study, host, own_port())
        self.homes = {home.settings.name: home for home in find_sites(study, study.folder / "sites")}
        for name, home in self.homes.items():
            with kits.received(home, self.federation.site_kits / f"{name}.zip") as (given, keep):
                approve(home, given)
                keep()

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def run_folder(self) -> RunFolder:
        return RunFolder(self.folder / "run")

    def kit(self, name: str) -> kits.Kit:
        return kits.find_kit(self.homes[name])

    def place(self, party: str) -> Path:
        """Where the supervisor of a site, or of the server, works."""
        return self.federation.path if party == "server" else self.kit(party).path

    def start(self, *names: str) -> None:
        with ThreadPoolExecutor() as together:
            list(together.map(lambda name: start_site(self.homes[name], self.kit(name)), names or self.homes))

    def stop(self, *names: str) -> None:
        places = [self.place(name) for name in names or (*self.homes, "server")]
        with ThreadPoolExecutor() as together:
            list(together.map(processes.stop, places))

    def processes_of(self, party: str) -> dict[str, list[psutil.Process]]:
        """Return the supervisor of a site or of the server, its programs by name, and FLARE's jobs."""
        place = self.place(party)
        pid = processes.running(place)
        carrier = "server" if party == "server" else "carrier"
        names = ("server", "dispatcher") if party == "server" else ("agent", "carrier")
        found = {name: processes.family(place, name) for name in names}
        pids = {process.pid for process in found[carrier]}
        jobs = [process for process in found[carrier] if _parent(process) in pids]
        found[carrier] = [process for process in found[carrier] if process not in jobs]
        return {"supervisor": [] if pid is None else [psutil.Process(pid)], **found, "job": jobs}

    def run(
        self,
        follower: Follower | None = None,
        *,
        wait: float = 60.0,
        seed: int | None = None,
        patience: Patience = PATIENCE,
    ):
        return run_federated(self.study, self.folder / "run", Terms(wait, patience, seed), follower)

    @property
    def n_releases(self) -> int:
        """How many means the study makes."""
        return sum(stage.count for stage in self.study.contract.stages)

    def progress(self) -> Progress | None:
        return read_progress(self.folder / "run")

    def unmixing(self) -> np.ndarray:
        return self.run_folder.read_array("unmixing.npy")

    def spent(self, name: str) -> float:
        """Return the mu^2 that a site's ledger has charged to the study."""
        with self.home(name).open_ledger() as ledger:
            return ledger.spent(self.study.contract.hash)

    def home(self, name: str) -> SiteHome:
        return self.homes[name]


@contextmanager
def consortium(
    folder: Path,
    *,
    started: bool = True,
    host: str = "localhost",
    prepare: Callable[[Study], None] = lambda study: None,
    **study,
) -> Iterator[Consortium]:
    """Seal a small study, which ``prepare`` may change, start its sites, and leave no process behind."""
    written = make_study(folder, **study)
    prepare(written)
    made = Consortium(written, host)
    try:
        if started:
            made.start()
        yield made
    finally:
        made.stop()


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return -1
