"""A site's side of a run: ledger, participants and log, kept open for the duration of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from capedjica.data.covariates import Covariates
from capedjica.data.participants import People
from capedjica.errors import CapedjicaError
from capedjica.mechanisms.messages import CarrierName
from capedjica.mechanisms.site.answering import Site, SitePolicy
from capedjica.securesum.noise import NoiseSource
from capedjica.site.approval.participation import approve
from capedjica.site.consent.consents import Consenting
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import open_people
from capedjica.study.study_file import Study
from capedjica.tools.arrays import Scan
from capedjica.tools.log_files import logged, private_log


def own_log(home: SiteHome) -> AbstractContextManager[None]:
    """Write a site's log to a file readable only by its owner, as it may name a participant."""
    return logged(private_log(home.settings.name).name, log_path(home), private=True)


def log_path(home: SiteHome) -> Path:
    """Return the path of the site's own log."""
    return home.folder / "site.log"


def log_refusal(home: SiteHome, error: Exception) -> None:
    """Log at the site alone why it does not take part, with the traceback of an unexpected error."""
    with own_log(home):
        unexpected = None if isinstance(error, CapedjicaError) else error
        private_log(home.settings.name).error("does not take part: %s", error, exc_info=unexpected)


@contextmanager
def attending(
    home: SiteHome,
    study: Study,
    insecure_noise_seed: int | None,
    reading: Callable[[str], None] = lambda site: None,
    carrier: CarrierName = "embedded",
) -> Iterator[Site]:
    """Yield the site that answers the aggregator; the caller must hold ``taking_part``.

    ``reading`` is called with the site's name after each scan is read; ``carrier`` names the confinement of
    the carrier.
    """
    name = home.settings.name
    with own_log(home):
        if home.settings.policy.auto_approve:
            approve(home, study)
        noise = NoiseSource(insecure_noise_seed=insecure_noise_seed, purpose=name)
        with home.open_ledger() as ledger:
            statistics = Consenting(
                home,
                ledger,
                open_people(home, study),
                lambda people: study.analysis.site(_Watched(people, name, partial(reading, name))),
            )
            try:
                policy = SitePolicy(home.settings.policy.allow_unprotected)
                parts = study.contract, name, home.identity(), ledger, statistics, noise, policy
                site = Site(*parts, carrier=carrier)
                yield site
                _log_zeros(site, study.contract.enrolled[name])
            finally:
                _log_unreadable(name, statistics.people)
                with suppress(CapedjicaError):
                    statistics.follow()


def _log_zeros(site: Site, enrolled: int) -> None:
    """Log at the site alone how many of its subjects counted as zero."""
    private_log(site.name).log(
        logging.WARNING if site.n_zero else logging.INFO,
        "the last release counted %d of %d subjects as zero because of their data",
        site.n_zero,
        enrolled,
    )


def _log_unreadable(site: str, people: People) -> None:
    """Log at the site alone how many scans were unreadable, even if the run failed."""
    # defence: names-stay-at-a-site
    if people.n_unreadable:
        private_log(site).warning(
            "the scans of %d of %d participants could not be read and counted as zero",
            people.n_unreadable,
            len(people),
        )


class _Watched(Sequence[Scan]):
    """Subjects of a site, with a callback after each read."""

    def __init__(self, subjects: People, site: str, reading: Callable[[], None]) -> None:
        self._subjects, self.site, self._reading = subjects, site, reading

    def __len__(self) -> int:
        return len(self._subjects)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        subject = self._subjects[index]
        self._reading()
        return subject

    def covariates(self, index: int, motion: bool = False) -> Covariates:
        """Return the covariates of a subject."""
        return self._subjects.covariates(index, motion)
