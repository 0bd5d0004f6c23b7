"""Demonstration of a whole consortium on this machine, with server and sites as separate processes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from capedjica.algorithms.reliability import Reliability
from capedjica.coordinator.flare.provisioning import provision
from capedjica.coordinator.flare.remote_run import Follower, Terms, run_federated
from capedjica.coordinator.run.report import run_report
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.flare import processes
from capedjica.metrics import match_components, normalized_gain_index
from capedjica.one_machine.local_run import find_sites
from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.site.approval.participation import approve
from capedjica.site.flare import kits
from capedjica.site.flare.starting import choose, programs
from capedjica.site.home import SiteHome
from capedjica.study.reliability_file import read_reliability
from capedjica.study.study_file import Study
from capedjica.tools.arrays import read_matrix

Say = Callable[[str], None]


@dataclass(frozen=True)
class FederatedDemo:
    """Results of the demonstration.

    Attributes
    ----------
    report : Path
        The HTML report.
    gain_index, map_correlation : float
        Quality of the estimated networks against the ground truth.
    reliability : Reliability
        Reliability of the maps, as stated by the run.
    """

    report: Path
    gain_index: float
    map_correlation: float
    reliability: Reliability


def run_demo(
    simulation: Simulation, out: Path, port: int | None, say: Say, follower: Follower
) -> FederatedDemo:
    """Simulate data, seal a study, start a server and sites, run it, and write report.html into ``out``.

    ``say`` is called for each step with the equivalent command. All processes are stopped at the end.
    """
    folder = out / "study"
    say(f"capedjica simulate {folder}")
    simulate(simulation, folder)
    study = Study.load(folder)
    port = free_port() if port is None else port
    say(f"capedjica study provision {folder} --host localhost --port {port}")
    federation = provision(study, "localhost", port)
    homes = find_sites(study, folder / "sites")
    for home in homes:
        kit = federation.site_kits / f"{home.settings.name}.zip"
        say(f"capedjica site approve {kit} {home.folder}; capedjica site start {home.folder}")
        with kits.received(home, kit) as (given, keep):
            approve(home, given)
            keep()
    with running_sites(homes):
        say(f"capedjica run {folder} --engine flare")
        run_federated(study, folder / "run", Terms(wait=120.0), follower)
    say(f"capedjica report {folder / 'run'} --out {out / 'report.html'}")
    run_report(folder / "run").save_as_html(out / "report.html")
    return _judged(study, folder, out / "report.html")


@contextmanager
def running_sites(homes: Sequence[SiteHome]) -> Iterator[None]:
    """Run the processes of sites, each with its latest kit, and stop them at the end."""
    own = [(home, kits.find_kit(home)) for home in homes]
    with ThreadPoolExecutor(len(own)) as together:
        try:
            list(together.map(lambda one: start_site(*one), own))
            yield
        finally:
            list(together.map(lambda one: processes.stop(one[1].path), own))


def start_site(home: SiteHome, kit: kits.Kit) -> int:
    """Start the agent and the carrier of a site."""
    return processes.start(kit.path, programs(home, kit, choose(home, kit)))


def free_port() -> int:
    """Return a port of this machine that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _judged(study: Study, folder: Path, report: Path) -> FederatedDemo:
    run = RunFolder(folder / "run")
    assert study.networks is not None
    truth = read_matrix(folder / "truth" / "mixing.npy")
    matched = match_components(run.read_array("mixing.npy").T, truth.T)
    return FederatedDemo(
        report,
        gain_index=float(normalized_gain_index(run.read_array("unmixing.npy") @ truth)),
        map_correlation=float(matched.correlations.mean()),
        reliability=read_reliability(folder / "run", study, study.networks),
    )
