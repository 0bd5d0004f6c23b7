"""A site's side of a run: its ledger, its people and its log, open for as long as the run takes."""

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
    """Write what a site logs into a file that nobody but its owner reads: it may name a patient."""
    return logged(private_log(home.settings.name).name, log_path(home), private=True)


def log_path(home: SiteHome) -> Path:
    """Return where the site's own log is."""
    return home.folder / "site.log"


def log_refusal(home: SiteHome, error: Exception) -> None:
    """Tell the site, and nobody else, why it does not take part; an unexpected error with all its lines."""
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
    """Yield the site that answers the aggregator; hold it by ``taking_part`` before.

    ``reading`` is called with the site's name whenever a scan was read; ``carrier`` says what keeps the
    program that has the network from the site's files.
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
    """Tell the site, and nobody else, how many of its subjects could not be used."""
    private_log(site.name).log(
        logging.WARNING if site.n_zero else logging.INFO,
        "the last release counted %d of %d subjects as zero because of their data",
        site.n_zero,
        enrolled,
    )


def _log_unreadable(site: str, people: People) -> None:
    """Tell the site, and nobody else, how many of its people could not be used, however the run ended."""
    # defence: names-stay-at-a-site
    if people.n_unreadable:
        private_log(site).warning(
            "%d of %d people's scans could not be read and counted as zero", people.n_unreadable, len(people)
        )


class _Watched(Sequence[Scan]):
    """Subjects of a site that tell when one of them is read."""

    def __init__(self, subjects: People, site: str, reading: Callable[[], None]) -> None:
        self._subjects, self.site, self._reading = subjects, site, reading

    def __len__(self) -> int:
        return len(self._subjects)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        subject = self._subjects[index]
        self._reading()
        return subject

    def covariates(self, index: int, motion: bool = False) -> Covariates:
        """Return what a person's row says."""
        return self._subjects.covariates(index, motion)
