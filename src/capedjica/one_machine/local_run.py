"""A study whose sites are folders on this machine, run on the real protocol, and resumed if interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from capedjica.coordinator.run.conducting import check_seed, conduct
from capedjica.coordinator.run.results import is_whole
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.coordinator.run.watcher import Watcher
from capedjica.engines.inprocess import InProcessEngine
from capedjica.errors import BudgetExceededError, InputError
from capedjica.privacy.wording import round_up
from capedjica.site.approval.admission import problems, spent_on
from capedjica.site.approval.participation import taking_part
from capedjica.site.home import SiteHome
from capedjica.site.people.roll import call_roll
from capedjica.site.run import attending
from capedjica.study.study_file import SiteTable, Study
from capedjica.tools.log_files import logged
from capedjica.tools.toml import listed


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
    check_seed(study, insecure_noise_seed)
    folder = RunFolder(out)
    state = folder.check(study)
    if state is not None and state.complete and is_whole(folder):
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
    """Run it with sites of this process."""
    with folder.claim(study) as state, logged("capedjica.run", folder.log_path), ExitStack() as held:
        sites = {
            home.settings.name: held.enter_context(attending(home, study, seed, watcher.reading))
            for home in homes
        }
        conduct(study, folder, state, InProcessEngine(sites).exchange, seed, watcher)


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


def _check_sites(study: Study, homes: Sequence[SiteHome], watcher: Watcher, begun: bool) -> None:
    watcher.checking(study.n_subjects)
    found: list[str] = []
    for home in homes:
        name = home.settings.name
        found += problems(home, study, lambda name=name: watcher.reading(name))  # type: ignore[misc]
    if found:
        outcome = "cannot go on; nothing more was spent" if begun else "cannot be run; nothing was spent"
        raise InputError(listed(f"'{study.content.title}' {outcome}", found))


def _check_first(study: Study, homes: Sequence[SiteHome], folder: RunFolder | None) -> None:
    """Refuse to begin a study again: its budget serves one run, whose releases are kept in one journal.

    ``folder`` is that of the run if it is known; then its journal was lost.
    """
    for home in homes:
        known = spent_on(home, study)
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


def site_of_folder(folder: str, subjects: int | None) -> SiteTable:
    """Return a site given by its folder; its people are counted unless their number is given."""
    home = SiteHome.load(folder)
    site = home.card()
    if subjects is None:
        subjects = len(call_roll(home).people)
    return SiteTable(name=site.name, subjects=subjects, card=site.card)
