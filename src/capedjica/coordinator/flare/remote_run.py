"""From a sealed study to results: server started, sites waited for, the study conducted in this process."""

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

# How often it is looked which sites are connected.
_LOOK_SECONDS: Final = 0.5
# A site that was heard of within so many seconds is connected.
_HEARD_SECONDS: Final = 30.0


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

    def server(self, host: str, port: int, confinement: str) -> None:
        """Learn that the server was started, and what keeps it from the coordinator's files."""

    def sites(self, connected: Mapping[str, bool]) -> None:
        """Learn which sites are connected."""

    def roll_call(self, sites: Sequence[Mapping[str, Any]]) -> None:
        """Learn once, as soon as it is known, who has approved with how many people, and who has not."""

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
    if state is not None and state.complete and is_whole(folder):
        return state
    check_certificates(federation.server_kit)
    with locked(federation.run_lock, f"'{study.content.title}' is being run by another process"):
        _Run(study, federation, folder, terms, follower).conduct()
    finished = folder.state()
    assert finished is not None
    return finished


class _Run:
    """One attempt: the aggregator in this process, its carrier in others."""

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
        """Run the study; how it goes is written down in the run's folder."""
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
                self._courier.gather(study.contract.roster.names)
                seed = self._terms.insecure_noise_seed
                conduct(study, folder, state, self._courier.exchange, seed, reporter, ahead=True)
                self._courier.tell(study.contract.roster.names, self._over())
        except CapedjicaError as error:
            stopped = StoppedError(reporter.end("stopped", str(error), error.exit_code))
            stopped.exit_code = error.exit_code
            raise stopped from None
        reporter.end("complete")

    def _follow(self, progress: Progress) -> None:
        """Pass on how far the run is, and before it who takes part, when all were asked."""
        if not self._called and (progress.present or progress.phase == "stopped"):
            self._called = True
            self._follower.roll_call(roll_call(self._study, self._connected, progress))
        self._follower.progress(progress)

    def _over(self) -> bytes:
        """Return, signed by the coordinator, that the study has ended."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        notice = Notice(VERSION, self._study.hash, "over", when)
        signature = self._federation.key().sign(notice.content)
        return write_notice(Notice(VERSION, self._study.hash, "over", when, signature))

    def _wait_for_sites(self) -> None:
        """Wait until all sites are connected, or as long as agreed and then for as many as are needed."""
        contract, terms = self._study.contract, self._terms
        # In the middle of a run the others do not wait for one that may never be back.
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
                if sum(present.values()) >= needed:
                    return
                spent = "" if self._has_begun else "Nothing was spent by this attempt; "
                raise ProtocolError(
                    f"{sum(present.values())} sites are connected, {needed} are needed; missing: {missing}. "
                    f"{spent}run the same command when they are back"
                )
            time.sleep(_LOOK_SECONDS)


class StoppedError(CapedjicaError):
    """A run on other machines stopped; the text and the exit code say why."""
