"""The aggregator and a site, as NVIDIA FLARE runs them: each in a process of its own, for one job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from capedjica.engines.flare.carriage import Courier, Handle, Patience, Revocable, Send
from capedjica.engines.flare.controller import ConductingController
from capedjica.engines.flare.executor import AnsweringExecutor
from capedjica.errors import CapedjicaError, InputError, ProtocolError
from capedjica.privacy.ledger import Ledger
from capedjica.study.attending import attending, log_path, log_refusal
from capedjica.study.conducting import conduct
from capedjica.study.federated.federation import SETTINGS
from capedjica.study.federated.kits import Kit
from capedjica.study.federated.progress import Reporter
from capedjica.study.participation import (
    budget_problems,
    changed_since_approval,
    taking_part,
    terms_problems,
)
from capedjica.study.run_folder import RunFolder
from capedjica.study.site_home import SiteHome
from capedjica.study.study_file import Study
from capedjica.study.watching import Watcher
from capedjica.tools.locks import BusyError
from capedjica.tools.log_files import logged

# How long a site or a run's folder may still be held by an earlier job of the same study.
_LET_GO_SECONDS: Final = 60.0

_Settings = TypeVar("_Settings", bound=msgspec.Struct)
_Claimed = TypeVar("_Claimed")


class AggregatorSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the coordinator told the server's kit: where the run's folder is, and how long to wait."""

    out: str
    patience: dict[str, float] = {}


class SiteSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the site told its kit: where its own folder is."""

    site: str


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
        own = _read(settings / SETTINGS, AggregatorSettings)
        study = _load(settings, self._hash)
        courier = Courier(_until(ended, send), Patience(**own.patience))
        folder = RunFolder(Path(own.out))
        reporter = Reporter(folder.path, study, lambda: courier.lost)
        try:
            with ExitStack() as held:
                state = _enter(held, lambda: folder.claim(study))
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


class SiteParty(AnsweringExecutor):
    """A site of one study.

    Parameters
    ----------
    study : str
        Hash of the study that the job is about.
    insecure_noise_seed : int, optional
        For a study that says insecure_noise.
    """

    def __init__(self, study: str, insecure_noise_seed: int | None = None) -> None:
        super().__init__()
        self._hash, self._seed = study, insecure_noise_seed
        self._held = ExitStack()

    def open(self, settings: Path) -> Revocable:
        """Return the site's answers; a site that does not take part says so, and only its own log why."""
        home = None
        try:
            home = SiteHome.load(_read(settings / SETTINGS, SiteSettings).site)
            Kit.load(settings.parent).check_version()
            study = _load(settings, self._hash)
            handle = self._take_part(home, study)
            ledger = self._held.enter_context(home.open_ledger())
            return Revocable(handle, partial(_is_approved, ledger, study))
        except Exception as error:
            self.close()
            self._log_refusal(home, error)
            # defence: silence-of-a-site-that-refuses
            raise ProtocolError("it does not take part; its own log says why") from None

    def _log_refusal(self, home: SiteHome | None, error: Exception) -> None:
        """Write why into the site's own log; FLARE's goes to consoles and journals, and names nobody."""
        if home is None:
            self.logger.error("does not take part: its site.toml cannot be read; try capedjica site check")
            return
        with suppress(InputError):
            log_refusal(home, error)
        # defence: reasons-in-the-sites-own-log
        self.logger.error("does not take part; %s says why", log_path(home))

    def _take_part(self, home: SiteHome, study: Study) -> Handle:
        found = [
            *terms_problems(home, study),
            *budget_problems(home, study),
            *changed_since_approval(home, study),
        ]
        # defence: approval-of-a-study
        if found:
            raise InputError(f"site {home.settings.name}: {found[0]}")
        if self._seed is not None and not study.contract.insecure_noise:
            raise InputError(
                f"site {home.settings.name}: a seed for a study that does not say insecure_noise"
            )
        _enter(self._held, lambda: taking_part(home, study))
        site = self._held.enter_context(attending(home, study, self._seed, Watcher()))
        return site.handle

    def close(self) -> None:
        """Close the ledger and the log."""
        try:
            self._held.close()
        except Exception as error:
            # Not its words, which may be about a scan.
            self.logger.error("an unexpected %s while closing", type(error).__name__)


class _JobEndedError(CapedjicaError):
    """FLARE ended the job: it was told to, or the process of one site had ended."""


def _is_approved(ledger: Ledger, study: Study) -> bool:
    """Whether an approval stands: it may be revoked by another process at any moment."""
    try:
        ledger.spent(study.contract.hash)
    except CapedjicaError:
        return False
    return True


def _until(ended: Callable[[], bool], send: Send) -> Send:
    """Return what sends no more once the job has ended: sites would only seem to be lost."""

    def sending(parcels: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes]:
        slips = {} if ended() else send(parcels, seconds)
        if ended():
            raise _JobEndedError("the job has ended")
        return slips

    return sending


def _enter(held: ExitStack, claim: Callable[[], AbstractContextManager[_Claimed]]) -> _Claimed:
    """Hold what the process of an earlier job, lost or aborted, may need a while to let go of."""
    until = time.monotonic() + _LET_GO_SECONDS
    while True:
        try:
            return held.enter_context(claim())
        except BusyError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _read(path: Path, kind: type[_Settings]) -> _Settings:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be used: {error}") from None


def _load(settings: Path, expected: str) -> Study:
    """Return the study of this kit; refuse a job about another one."""
    study = Study.load(settings.parent / "study")
    # defence: the-study-that-a-job-names
    if study.hash.hex() != expected:
        raise InputError(
            f"the job is about study {expected[:16]}, this kit about '{study.content.title}' "
            f"({study.hash.hex()[:16]})"
        )
    return study
