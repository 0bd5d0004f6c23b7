"""A study whose sites are folders on this machine, run on the real protocol, and resumed if interrupted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from capedjica.algorithms.method import Subject
from capedjica.algorithms.reliability import stability
from capedjica.data.people import People
from capedjica.engines.inprocess import InProcessEngine
from capedjica.errors import BudgetExceededError, InputError
from capedjica.mechanisms.aggregator import Aggregator
from capedjica.mechanisms.site import Site
from capedjica.mechanisms.statement import privacy_statement
from capedjica.privacy.statement import PrivacyStatement, round_up
from capedjica.securesum.noise import NoiseSource
from capedjica.study.journal import Journal, JournaledMeans
from capedjica.study.participation import approve, open_site, problems, taking_part
from capedjica.study.results import result_names, write_results
from capedjica.study.run_folder import RunFolder, RunState
from capedjica.study.site_home import SiteHome
from capedjica.study.site_people import open_people
from capedjica.study.study_file import Study
from capedjica.study.toml import listed

_log = logging.getLogger("capedjica.run")


@dataclass(frozen=True)
class Step:
    """How far a run is: the mean that was just made.

    Attributes
    ----------
    label : str
        Of its stage.
    number, count : int
        The how many-th of how many of its stage.
    n_done : int
        Means made so far, of all stages.
    privacy : PrivacyStatement
        What was spent so far.
    """

    label: str
    number: int
    count: int
    n_done: int
    privacy: PrivacyStatement


class Watcher:
    """Told how a run goes; every method does nothing unless overridden."""

    def checking(self, n_subjects: int) -> None:
        """Learn that all scans are about to be looked at, once."""

    def reading(self, site: str) -> None:
        """Learn that a scan was read, at this site."""

    def step(self, step: Step) -> None:
        """Learn that a mean was made."""


def run_study(
    study: Study,
    homes: Sequence[SiteHome],
    out: Path,
    insecure_noise_seed: int | None = None,
    watcher: Watcher | None = None,
) -> RunState:
    """Run a study, or go on with it, and write what comes out into ``out``.

    Everything that can be wrong is looked for before anything is spent, and listed together.
    """
    watcher = watcher or Watcher()
    _check_seed(study, insecure_noise_seed)
    folder = RunFolder(out)
    state = folder.check(study)
    if state is not None and state.complete and folder.holds(result_names(study)):
        return state
    _check_sites(study, homes, watcher, begun=state is not None)
    with ExitStack() as held:
        for home in homes:
            held.enter_context(taking_part(home, study))
        if not folder.journal_path.exists():
            _check_first(study, homes, folder if state is not None else None)
        _run(study, homes, folder, insecure_noise_seed, watcher)
    finished = folder.state()
    assert finished is not None
    return finished


def _run(
    study: Study, homes: Sequence[SiteHome], folder: RunFolder, seed: int | None, watcher: Watcher
) -> None:
    """Make the means that the journal does not have yet, and the results from all of them."""
    with folder.claim(study) as state, _logging(folder, homes), ExitStack() as open_files:
        _log.info("%s: %s", "resumed" if state.resumed else "started", study.content.title)
        sites = {home.settings.name: _open(home, study, seed, watcher, open_files) for home in homes}
        journal = open_files.enter_context(Journal.open(folder.journal_path, study.contract))
        aggregator = Aggregator(
            study.contract,
            InProcessEngine(sites).exchange,
            _noise("aggregator", seed) if study.contract.mechanism == "pooled" else None,
            done=journal.releases,
            n_done=journal.n_done(len(study.contract.stages)),
        )
        _estimate(study, folder, state, aggregator, journal, watcher)
        for name, site in sites.items():
            _log_zeros(site, study.contract.enrolled[name])


def _log_zeros(site: Site, enrolled: int) -> None:
    """Tell the site, and nobody else, how many of its subjects could not be used."""
    logging.getLogger(f"capedjica.site.{site.name}").log(
        logging.WARNING if site.n_zero else logging.INFO,
        "the last release counted %d of %d subjects as zero because of their data",
        site.n_zero,
        enrolled,
    )


def find_sites(study: Study, folder: Path) -> list[SiteHome]:
    """Return the homes of a study's sites among the sub-folders of ``folder`` (each with a site.toml)."""
    files = sorted(folder.glob("*/site.toml"))
    if not files:
        raise InputError(f"{folder} holds no folders with a site.toml; say with --sites where the sites are")
    homes: dict[str, SiteHome] = {}
    found: list[str] = []
    for file in files:
        try:
            home = SiteHome.load(file)
        except InputError as error:
            found.append(str(error))
            continue
        other = homes.setdefault(home.settings.name, home)
        if other is not home:
            found.append(
                f"two folders claim to be site {home.settings.name}: {other.folder} and {home.folder}"
            )
    names = study.contract.roster.names
    missing = [name for name in names if name not in homes]
    if missing:
        found.append(f"there is no folder for site {', '.join(missing)} of the study")
    if found:
        raise InputError(listed(f"the sites in {folder}", found))
    return [homes[name] for name in names]


def _check_seed(study: Study, seed: int | None) -> None:
    if study.contract.insecure_noise and seed is None:
        raise InputError("the study says insecure_noise: give --insecure-noise-seed, or take it out")
    if not study.contract.insecure_noise and seed is not None:
        raise InputError(
            "--insecure-noise-seed makes a run that protects nobody, so the study itself must say "
            "insecure_noise = true under [privacy]; it does not"
        )


def _check_sites(study: Study, homes: Sequence[SiteHome], watcher: Watcher, begun: bool) -> None:
    watcher.checking(study.n_subjects)
    found: list[str] = []
    for home in homes:
        name = home.settings.name
        found += problems(home, study, lambda name=name: watcher.reading(name))  # type: ignore[misc]
    if found:
        outcome = "cannot go on; nothing more was spent" if begun else "cannot be run; nothing was spent"
        raise InputError(listed(f"'{study.content.title}' {outcome}", found))


def _open(home: SiteHome, study: Study, seed: int | None, watcher: Watcher, open_files: ExitStack) -> Site:
    if home.settings.policy.auto_approve:
        approve(home, study)
    ledger = open_files.enter_context(home.open_ledger())
    name = home.settings.name
    people = open_people(home, study)
    open_files.callback(_log_unreadable, name, people)
    return open_site(home, study, ledger, _Watched(people, name, watcher), _noise(name, seed))


def _log_unreadable(site: str, people: People) -> None:
    """Tell the site, and nobody else, how many of its people could not be used, however the run ended."""
    if people.n_unreadable:
        logging.getLogger(f"capedjica.site.{site}").warning(
            "%d of %d people's scans could not be read and counted as zero", people.n_unreadable, len(people)
        )


def _check_first(study: Study, homes: Sequence[SiteHome], folder: RunFolder | None) -> None:
    """Refuse to begin a study again: its budget serves one run, whose releases are kept in one journal.

    ``folder`` is that of the run if it is known; then its journal was lost.
    """
    for home in homes:
        with home.open_ledger() as ledger:
            known = ledger.totals().studies.get(study.contract.hash)
        if study.contract.protects and known is not None and known.mu2 > 0:
            begun = (
                f"'{study.content.title}' was begun before: site {home.settings.name} has spent epsilon "
                f"{round_up(known.epsilon)} on it"
            )
            if folder is not None:
                raise InputError(f"{begun}, but {folder.journal_path} is missing: put it back to go on")
            raise BudgetExceededError(
                f"{begun}. Give the folder of that run to go on with it, or make a new study, with a title "
                "of its own, to spend more"
            )


def _noise(purpose: str, seed: int | None) -> NoiseSource:
    return NoiseSource(insecure_noise_seed=seed, purpose=purpose)


def _estimate(
    study: Study,
    folder: RunFolder,
    state: RunState,
    aggregator: Aggregator,
    journal: Journal,
    watcher: Watcher,
) -> None:
    contract, done = study.contract, [0] * len(study.contract.stages)

    def report(stage: int) -> None:
        done[stage] += 1
        agreed = contract.stages[stage]
        spent = privacy_statement(contract, aggregator.releases)
        step = Step(agreed.query.label, done[stage], agreed.count, sum(done), spent)
        _log.info("%s, %d of at most %d", step.label, step.number, step.count)
        watcher.step(step)

    try:
        unmixing, n_iter = study.method.estimate(JournaledMeans(journal, aggregator, report))
    except BudgetExceededError as error:
        raise BudgetExceededError(f"{error}. The releases that were made are in {folder.path}") from None
    privacy = privacy_statement(contract, aggregator.releases, aggregator.charged())
    stable = stability(study.method, unmixing, journal.released)
    write_results(folder, study, unmixing, n_iter, stable, privacy, state)
    folder.finish(state)
    _log.info("complete. %s", " ".join(str(privacy).split()))


class _Watched(Sequence[Subject]):
    """Subjects that tell when one of them is read."""

    def __init__(self, subjects: People, site: str, watcher: Watcher) -> None:
        self._subjects, self._site, self._watcher = subjects, site, watcher

    def __len__(self) -> int:
        return len(self._subjects)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        subject = self._subjects[index]
        self._watcher.reading(self._site)
        return subject


@contextmanager
def _logging(folder: RunFolder, homes: Sequence[SiteHome]) -> Iterator[None]:
    """Write the log of the run into its folder, and the logs of the sites, which are private, into theirs."""
    with ExitStack() as attached:
        _attach("capedjica.run", folder.log_path, attached)
        for home in homes:
            path = home.folder / "site.log"
            _make_private(path)
            _attach(f"capedjica.site.{home.settings.name}", path, attached)
        yield


def _make_private(path: Path) -> None:
    """Let nobody but its owner read a file, from before its first byte on."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


class _LogFile(logging.FileHandler):
    """A log on which nothing depends: on a full disk lines are lost, and the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""

    def close(self) -> None:
        """Close the file, and lose what could not be written."""
        with suppress(OSError):
            super().close()


def _attach(name: str, path: Path, attached: ExitStack) -> None:
    logger = logging.getLogger(name)
    try:
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def detach() -> None:
        logger.removeHandler(handler)
        logger.propagate = True
        handler.close()

    attached.callback(detach)
