"""The aggregator, as NVIDIA FLARE runs it: in a process of its own, for one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from capedjica.coordinator.flare.controller import ConductingController
from capedjica.coordinator.flare.courier import Courier, Patience, Send
from capedjica.coordinator.flare.progress import Reporter
from capedjica.coordinator.run.conducting import conduct
from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import CapedjicaError
from capedjica.flare.job import claim_patiently, load_study, read_settings
from capedjica.flare.kit import SETTINGS
from capedjica.tools.log_files import logged


class AggregatorSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the coordinator told the server's kit: where the run's folder is, and how long to wait."""

    out: str
    patience: dict[str, float] = {}


class AggregatorParty(ConductingController):
    """The aggregator of one study.

    Parameters
    ----------
    study : str
        Hash of the study, as the job names it.
    insecure_noise_seed : int, optional
        For a study that says insecure_noise.
    """

    def __init__(self, study: str, insecure_noise_seed: int | None = None) -> None:
        super().__init__()
        self._hash, self._seed = study, insecure_noise_seed

    def conduct(self, send: Send, settings: Path, ended: Callable[[], bool]) -> None:
        """Run the study; whatever goes wrong is written down in the run's folder."""
        own = read_settings(settings / SETTINGS, AggregatorSettings)
        study = load_study(settings, self._hash)
        courier = Courier(_until(ended, send), Patience(**own.patience))
        folder = RunFolder(Path(own.out))
        reporter = Reporter(folder.path, study, lambda: courier.lost)
        try:
            with ExitStack() as held:
                state = claim_patiently(held, lambda: folder.claim(study))
                held.enter_context(logged("capedjica.run", folder.log_path))
                reporter.write()
                courier.gather(study.contract.roster.names, ended)
                conduct(study, folder, state, courier.exchange, self._seed, reporter, ahead=True)
        except _JobEndedError:
            # The run has not ended with it: it will be taken up, and how it stands is not to be changed.
            self.logger.warning("FLARE ended the job before the run was complete")
        except CapedjicaError as error:
            reporter.end("stopped", str(error), error.exit_code)
        except Exception as error:
            self.logger.exception("unexpected error")
            words = f"an unexpected {type(error).__name__}; the log of the job in {settings.parent} has more"
            reporter.end("stopped", words, 1)
        else:
            reporter.end("complete")


class _JobEndedError(CapedjicaError):
    """FLARE ended the job: it was told to, or the process of one site had ended."""


def _until(ended: Callable[[], bool], send: Send) -> Send:
    """Return what sends no more once the job has ended: sites would only seem to be lost."""

    def sending(parcels: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes]:
        slips = {} if ended() else send(parcels, seconds)
        if ended():
            raise _JobEndedError("the job has ended")
        return slips

    return sending
