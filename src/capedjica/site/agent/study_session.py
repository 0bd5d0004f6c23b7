"""A site's session in a study: opened at the first question and kept until the agent ends.

A job of the carrier ends whenever a process of any party dies; the session does not. Masks, and answers that
may have been lost, are still available when the aggregator asks again through another job, so nothing is
charged twice.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from capedjica.errors import CapedjicaError, InputError
from capedjica.flare.kit import Label
from capedjica.flare.parcels import Notice
from capedjica.mechanisms.messages import (
    VERSION,
    Busy,
    CarrierName,
    Refusal,
    Unknown,
    is_greeting,
    is_refusal,
    question_hash,
    sign_reply,
)
from capedjica.mechanisms.site.answering import Site
from capedjica.privacy.ledger import Ledger
from capedjica.site.approval.admission import Scans, has_begun, why_not
from capedjica.site.approval.participation import taking_part
from capedjica.site.flare.kits import OVER
from capedjica.site.home import SiteHome
from capedjica.site.run import attending, log_path, log_refusal, own_log
from capedjica.study.study_file import Study
from capedjica.tools.atomic_files import write_whole
from capedjica.tools.log_files import private_log

# Sent to the aggregator. The reason may name a participant, so it is written to the site's own log only.
# defence: silence-of-a-site-that-refuses
_SILENT: Final = "it does not take part; its own log says why"


# For the console, and so for a system's journal: it names no participant.
_journal: Final = logging.getLogger("capedjica.agent")


class SiteParty:
    """A site in one study.

    The ``label`` of its kit names the coordinator's key, which the site pinned when it approved the study.
    ``place`` is the agent's folder of the study. The confinement of the ``carrier`` is published.
    """

    def __init__(self, home: SiteHome, study: Study, label: Label, place: Path, carrier: CarrierName) -> None:
        self._home, self._study, self._label, self._place = home, study, label, place
        self._carrier: CarrierName = carrier
        self._identity = home.identity()
        self._seed: int | None = None
        self._held = ExitStack()
        self._site: Site | None = None
        self._ledger: Ledger | None = None
        self._begun = False
        self._joining = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended the study."""
        return (self._place / OVER).exists()

    # Connections of the carrier

    def connected(self, seed: int | None) -> None:
        """Handle the connection of a carrier, with a seed for studies with insecure_noise."""
        with self._joining:
            if self._site is not None and seed != self._seed:
                self._leave()
            self._seed = seed

    def close(self) -> None:
        """Release all resources."""
        with self._joining:
            self._leave()

    def _leave(self) -> None:
        self._site, self._ledger = None, None
        try:
            self._held.close()
        except Exception:
            with suppress(CapedjicaError), own_log(self._home):
                private_log(self._home.settings.name).exception("unexpected error while closing")
        self._held = ExitStack()

    # Questions

    def handle(self, question: bytes) -> bytes:
        """Return the signed answer to a question."""
        try:
            site = self._joined(is_greeting(question))
        except Exception as error:
            with suppress(InputError):
                log_refusal(self._home, error)
            _journal.warning("this site does not take part; the reason is in %s", log_path(self._home))
            return self.reply(question_hash(question), Refusal, _SILENT)
        reply = site.handle(question)
        if is_refusal(reply):
            _journal.warning("this site refused a question; the reason is in %s", log_path(self._home))
        return reply

    def _joined(self, greeted: bool) -> Site:
        """Return the site; before the study has started, every greeting repeats all checks."""
        with self._joining:
            try:
                if self._site is None:
                    self._site = self._join()
                elif greeted and not self._has_begun():
                    self._check()
            except BaseException:
                self._leave()
                raise
            return self._site

    def _has_begun(self) -> bool:
        self._begun = self._begun or has_begun(self._home, self._study)
        return self._begun

    def _check(self) -> None:
        """Raise InputError if the study is not approved or something changed since the approval."""
        home, study = self._home, self._study
        if self.is_over:
            raise InputError(f"the coordinator has ended the study ({self._place / OVER})")
        found = [reason.words for reason in why_not(home, study, Scans(home, study, read=False))]
        # defence: approval-of-a-study
        if found:
            raise InputError(f"site {home.settings.name}: {found[0]}")
        if self._seed is not None and not study.contract.insecure_noise:
            raise InputError(
                f"site {home.settings.name}: got a noise seed, but the study does not set insecure_noise"
            )

    def _join(self) -> Site:
        self._check()
        home, study = self._home, self._study
        self._held.enter_context(taking_part(home, study))
        site = self._held.enter_context(attending(home, study, self._seed, carrier=self._carrier))
        self._ledger = self._held.enter_context(home.open_ledger())
        return site

    def stands(self) -> bool:
        """Return whether the approval is still valid: it may be revoked at any time."""
        with self._joining, ExitStack() as held:
            try:
                ledger = self._ledger or held.enter_context(self._home.open_ledger())
                ledger.spent(self._study.contract.hash)
            except CapedjicaError:
                # A site that never took part can only have sent refusals.
                return self._site is None
        return True

    def reply(self, hash_: bytes, kind: type[Busy | Refusal | Unknown], *reason: str) -> bytes:
        """Return a signed reply that is not an answer: busy, a refusal or unknown."""
        words = [text[:1000] for text in reason]
        header = VERSION, self._study.contract.hash, self._home.settings.name
        return sign_reply(self._identity, hash_, kind(*header, *words))

    # Notices of the coordinator

    def notice(self, notice: Notice) -> None:
        """Record that the coordinator has ended the study; ignore a notice it did not sign."""
        log = private_log(self._home.settings.name)
        # defence: notices-are-signed
        if not self._is_signed(notice):
            with suppress(CapedjicaError), own_log(self._home):
                log.warning("ignored a notice that is not signed by the coordinator of this study")
            return
        with suppress(CapedjicaError, OSError):
            write_whole(self._place / OVER, f"{notice.when}\n".encode())
            self._home.note_over(self._study.hash, notice.when)
            with own_log(self._home):
                log.info("the coordinator ended the study at %s", notice.when)

    def _is_signed(self, notice: Notice) -> bool:
        return notice.study == self._study.hash and self._label.key.verify(notice.signature, notice.content)
