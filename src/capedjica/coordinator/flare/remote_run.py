"""From a sealed study to results: server started, sites waited for, the study handed over and followed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capedjica.coordinator.flare.courier import Patience
from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.flare.jobs import Session, session
from capedjica.coordinator.flare.progress import Progress, read_progress
from capedjica.coordinator.flare.provisioning import check_sizes, settle
from capedjica.coordinator.run.conducting import check_seed
from capedjica.coordinator.run.results import result_names
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.errors import CapedjicaError, InputError, ProtocolError
from capedjica.flare import processes
from capedjica.flare.certificates import check_certificates
from capedjica.flare.kit import SETTINGS, write_json
from capedjica.study.study_file import Study
from capedjica.tools.locks import locked

# How long the server may take until it can be talked to.
_SERVER_SECONDS: Final = 60.0
# How often the state of a run is looked at.
_LOOK_SECONDS: Final = 0.5
# A site that was heard of within so many seconds is connected.
_HEARD_SECONDS: Final = 30.0
# How often a job that died is handed over again, when nothing was gained in between.
_MOST_DEATHS: Final = 3


@dataclass(frozen=True)
class Terms:
    """How a run across machines is conducted.

    Parameters
    ----------
    wait : float
        Seconds to wait for sites to connect before the run begins; it begins at once when all are there.
    patience : Patience
        How long sites may take and be silent.
    insecure_noise_seed : int, optional
        For a study that says insecure_noise: NOT PRIVATE.
    """

    wait: float = 600.0
    patience: Patience = Patience()  # noqa: RUF009 (immutable)
    insecure_noise_seed: int | None = None


class Follower:
    """Told how a run across machines goes; every method does nothing unless overridden."""

    def server(self, host: str, port: int) -> None:
        """Learn that the server was started."""

    def sites(self, connected: Mapping[str, bool]) -> None:
        """Learn which sites are connected."""

    def progress(self, progress: Progress) -> None:
        """Learn how far the run is."""

    def died(self, attempt: int, reason: str) -> None:
        """Learn that the job died and is handed over again."""


def run_federated(study: Study, out: Path, terms: Terms, follower: Follower | None = None) -> RunState:
    """Run a sealed study on its sites' machines, or go on with it; results are written into ``out``."""
    follower = follower or Follower()
    check_seed(study, terms.insecure_noise_seed)
    check_sizes(study)
    federation = Federation.beside(study)
    folder = RunFolder(out)
    state = folder.check(study)
    if state is not None and state.complete and folder.holds(result_names(study)):
        return state
    check_certificates(federation.server_kit)
    with _server(study, federation, follower), session(federation, _SERVER_SECONDS) as line:
        _end_leftovers(line)
        _wait_for_sites(study, line, terms, follower)
        _follow(study, federation, folder, line, terms, follower)
    finished = folder.state()
    assert finished is not None
    return finished


@contextmanager
def _server(study: Study, federation: Federation, follower: Follower) -> Iterator[None]:
    """Have a server for the time of the run and no longer, even if this process is killed."""
    seal, kit = federation.seal, federation.server_kit
    with locked(federation.run_lock, f"'{study.content.title}' is being run by another process"):
        # One that is there although nobody runs the study is left from a run that was killed.
        processes.stop(kit)
        if not processes.port_is_free("127.0.0.1", seal.port):
            raise InputError(
                f"port {seal.port} of this machine is in use by another program: stop that, or provision "
                "with another --port"
            )
        settle(kit)
        processes.start(kit, "server", seal.host, owner=processes.Mark.own())
        try:
            follower.server(seal.host, seal.port)
            yield
        finally:
            processes.stop(kit)


def connected_sites(study: Study, line: Session) -> dict[str, bool]:
    """Return for each site whether it is connected."""
    heard, now = line.connected(), time.time()
    return {name: now - heard.get(name, -math.inf) < _HEARD_SECONDS for name in study.contract.roster.names}


def _wait_for_sites(study: Study, line: Session, terms: Terms, follower: Follower) -> None:
    """Wait until all sites are connected, or as long as agreed and then for as many as are needed."""
    contract, until = study.contract, time.monotonic() + terms.wait
    needed = contract.roster.threshold if contract.mechanism == "cape" else 1
    while True:
        present = connected_sites(study, line)
        follower.sites(present)
        if all(present.values()):
            return
        if time.monotonic() > until:
            missing = ", ".join(name for name, there in present.items() if not there)
            if sum(present.values()) >= needed:
                return
            raise ProtocolError(
                f"{sum(present.values())} sites are connected, {needed} are needed; missing: {missing}. "
                "Nothing was spent by this attempt; run the same command when they are back"
            )
        time.sleep(_LOOK_SECONDS)


def _end_leftovers(line: Session) -> None:
    """End jobs that an earlier attempt left behind: sites would be busy with them."""
    for job in line.unfinished():
        line.abort(job)


def _follow(
    study: Study, federation: Federation, folder: RunFolder, line: Session, terms: Terms, follower: Follower
) -> None:
    """Hand the study over and follow it to its end; hand it over again if FLARE lets the job die."""
    settings = {"out": str(folder.path.absolute()), "patience": _seconds(terms.patience)}
    write_json(federation.server_kit / "local" / SETTINGS, settings)
    deaths, gained = 0, -1
    while True:
        job, server = line.submit(study.hash.hex(), terms.insecure_noise_seed), line.server
        end = _await_end(folder, line, job, follower)
        if end is not None:
            return _conclude(end)
        # A server that was started again may believe that the job still runs.
        _end_leftovers(line)
        latest = read_progress(folder.path)
        done = latest.n_done if latest is not None else 0
        deaths = deaths + 1 if done <= gained else 1
        gained = max(gained, done)
        if deaths > _MOST_DEATHS:
            raise ProtocolError(
                f"the run died {deaths} times at the same point; the server's log in {federation.server_kit} "
                "may say why. Run the same command to go on"
            )
        lost = "the process of a site or of the aggregator" if line.server == server else "the server"
        follower.died(deaths, f"{lost} ended")
        _wait_for_sites(study, line, terms, follower)


def _seconds(patience: Patience) -> dict[str, float]:
    return {name: getattr(patience, name) for name in patience.__dataclass_fields__}


def _await_end(folder: RunFolder, line: Session, job: str, follower: Follower) -> Progress | None:
    """Follow a job until the run has ended; None if the job died before."""
    before, server = read_progress(folder.path), line.server
    try:
        while True:
            # First the job, then the file: what it wrote last is seen.
            over = line.has_ended(job) or line.server != server
            latest = read_progress(folder.path)
            if latest is not None and latest != before:
                follower.progress(latest)
                if latest.phase in ("complete", "stopped"):
                    return latest
            if over:
                return None
            time.sleep(_LOOK_SECONDS)
    except (KeyboardInterrupt, CapedjicaError):
        line.abort(job)
        raise


class StoppedError(CapedjicaError):
    """A run on other machines stopped; the text and the exit code are those of its aggregator."""


def _conclude(end: Progress) -> None:
    if end.phase == "complete":
        return
    error = StoppedError(end.reason)
    error.exit_code = end.exit_code
    raise error
