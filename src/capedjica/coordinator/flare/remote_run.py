"""Run a sealed study on its sites' machines: start the server, wait for sites, aggregate in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capedjica.coordinator.flare.carrier import Carrier
from capedjica.coordinator.flare.carrier_messages import Order
from capedjica.coordinator.flare.federation import Federation, note_connected
from capedjica.coordinator.flare.progress import Progress, Reporter
from capedjica.coordinator.flare.provisioning import check_sizes
from capedjica.coordinator.flare.status import roll_call
from capedjica.coordinator.flare.transport import Courier, Patience
from capedjica.coordinator.run.aggregation import check_seed, conduct
from capedjica.coordinator.run.results import is_whole
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.errors import CapedjicaError, ProtocolError
from capedjica.flare.certificates import check_certificates
from capedjica.flare.parcels import Notice, write_notice
from capedjica.mechanisms.messages import VERSION
from capedjica.study.study_file import Study
from capedjica.tools.locks import locked
from capedjica.tools.log_files import logged
from capedjica.tools.text import counted

# Interval between checks of which sites are connected.
_LOOK_SECONDS: Final = 0.5
# A site counts as connected if it was heard from within this time.
_HEARD_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Terms:
    """Settings of a run across machines.

    Parameters
    ----------
    wait : float
        Seconds to wait for sites to connect; the run starts as soon as all are connected.
    patience : Patience
        Time limits for sites.
    insecure_noise_seed : int, optional
        Seed for a study with insecure_noise: NOT PRIVATE.
    """

    wait: float = 600.0
    patience: Patience = Patience()  # noqa: RUF009 (immutable)
    insecure_noise_seed: int | None = None


class Follower:
    """Receiver of the progress of a run across machines; methods do nothing unless overridden."""

    def server(self, host: str, port: int, confinement: str) -> None:
        """Handle the start of the server, with its confinement."""

    def sites(self, connected: Mapping[str, bool]) -> None:
        """Handle a change of the connected sites."""

    def roll_call(self, sites: Sequence[Mapping[str, Any]]) -> None:
        """Handle, once, the approval and the number of participants of each site."""

    def progress(self, progress: Progress) -> None:
        """Handle the progress of the run."""

    def died(self, attempt: int, reason: str) -> None:
        """Handle an unexpected end of the job, before it is submitted again."""


def run_federated(study: Study, out: Path, terms: Terms, follower: Follower | None = None) -> RunState:
    """Run a sealed study on its sites' machines, or resume it; results are written into ``out``."""
    follower = follower or Follower()
    check_seed(study, terms.insecure_noise_seed)
    check_sizes(study)
    federation = Federation.beside(study)
    folder = RunFolder(out)
    state = folder.check(study)
    if state is not None and state.complete and is_whole(folder):
        return state
    check_certificates(federation.server_kit)
    with locked(federation.run_lock, f"'{study.content.title}' is already being run by another process"):
        _Run(study, federation, folder, terms, follower).conduct()
    finished = folder.state()
    assert finished is not None
    return finished


class _Run:
    """One attempt: the aggregator in this process, its carrier in other processes."""

    def __init__(
        self, study: Study, federation: Federation, folder: RunFolder, terms: Terms, follower: Follower
    ) -> None:
        self._study, self._federation, self._folder = study, federation, folder
        self._terms, self._follower = terms, follower
        self._has_begun, self._called = False, False
        self._connected: Mapping[str, bool] = {}
        self._carrier = Carrier(federation, terms.insecure_noise_seed, follower.died, self._wait_for_sites)
        self._courier = Courier(study.contract, self._carrier.send, terms.patience)

    def conduct(self) -> None:
        """Run the study; its progress is recorded in the run's folder."""
        seal = self._federation.seal
        with self._carrier.running(self._folder.path):
            self._follower.server(seal.host, seal.port, self._carrier.confinement.words)
            self._wait_for_sites()
            with self._folder.claim(self._study) as state:
                self._has_begun = True
                self._report_and_run(state)

    def _report_and_run(self, state: RunState) -> None:
        study, folder = self._study, self._folder
        reporter = Reporter(folder.path, study, lambda: self._courier.lost, self._follow)
        try:
            with logged("capedjica.run", folder.log_path):
                reporter.write()
                connected = [name for name, there in self._connected.items() if there]
                self._courier.gather(study.contract.roster.names, connected)
                seed = self._terms.insecure_noise_seed
                conduct(study, folder, state, self._courier.exchange, seed, reporter, ahead=True)
                self._courier.tell(study.contract.roster.names, self._over())
        except CapedjicaError as error:
            stopped = StoppedError(reporter.end("stopped", str(error), error.exit_code))
            stopped.exit_code = error.exit_code
            raise stopped from None
        reporter.end("complete")

    def _follow(self, progress: Progress) -> None:
        """Pass on the progress, and first, once all sites were asked, which of them participate."""
        if not self._called and (progress.present or progress.phase == "stopped"):
            self._called = True
            self._follower.roll_call(roll_call(self._study, self._connected, progress))
        self._follower.progress(progress)

    def _over(self) -> bytes:
        """Return the notice, signed by the coordinator, that the study has ended."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        notice = Notice(VERSION, self._study.hash, "over", when)
        signature = self._federation.key().sign(notice.content)
        return write_notice(Notice(VERSION, self._study.hash, "over", when, signature))

    def _wait_for_sites(self) -> None:
        """Wait until all sites are connected, or until the time limit, and then require the threshold."""
        contract, terms = self._study.contract, self._terms
        # During a run, the other sites do not wait long for one that may never return.
        patience = min(terms.wait, terms.patience.joining) if self._has_begun else terms.wait
        until = time.monotonic() + patience
        needed = contract.roster.threshold if contract.mechanism == "cape" else 1
        while True:
            heard = self._carrier.order(Order("sites")).heard
            present = {name: heard.get(name, 1e9) < _HEARD_SECONDS for name in contract.roster.names}
            self._follower.sites(present)
            note_connected(self._federation, present)
            self._connected = present
            if all(present.values()):
                return
            if time.monotonic() > until:
                missing = ", ".join(name for name, there in present.items() if not there)
                n_present = sum(present.values())
                if n_present >= needed:
                    return
                spent = "" if self._has_begun else "This attempt spent nothing; "
                raise ProtocolError(
                    f"{counted(n_present, 'site')} {'is' if n_present == 1 else 'are'} connected, {needed} "
                    f"are needed; missing: {missing}. "
                    f"{spent}run the same command when the missing sites are back"
                )
            time.sleep(_LOOK_SECONDS)


class StoppedError(CapedjicaError):
    """A run across machines stopped, for the reason given by the text and the exit code."""
