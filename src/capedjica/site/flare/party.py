"""A site, as NVIDIA FLARE runs it: in a process of its own, for one job."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from capedjica.errors import CapedjicaError, InputError, ProtocolError
from capedjica.flare.job import claim_patiently, load_study, read_settings
from capedjica.flare.kit import SETTINGS
from capedjica.privacy.ledger import Ledger
from capedjica.site.approval.participation import (
    budget_problems,
    changed_since_approval,
    taking_part,
    terms_problems,
)
from capedjica.site.flare.desk import Handle, Revocable
from capedjica.site.flare.executor import AnsweringExecutor
from capedjica.site.flare.kits import Kit
from capedjica.site.home import SiteHome
from capedjica.site.run import attending, log_path, log_refusal
from capedjica.study.study_file import Study


class SiteSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the site told its kit: where its own folder is."""

    site: str


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
            home = SiteHome.load(read_settings(settings / SETTINGS, SiteSettings).site)
            Kit.load(settings.parent).check_version()
            study = load_study(settings, self._hash)
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
        claim_patiently(self._held, lambda: taking_part(home, study))
        site = self._held.enter_context(attending(home, study, self._seed))
        return site.handle

    def close(self) -> None:
        """Close the ledger and the log."""
        try:
            self._held.close()
        except Exception as error:
            # Not its words, which may be about a scan.
            self.logger.error("an unexpected %s while closing", type(error).__name__)


def _is_approved(ledger: Ledger, study: Study) -> bool:
    """Whether an approval stands: it may be revoked by another process at any moment."""
    try:
        ledger.spent(study.contract.hash)
    except CapedjicaError:
        return False
    return True
