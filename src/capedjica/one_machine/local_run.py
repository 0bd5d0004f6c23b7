"""Run a study whose sites are folders on this machine, with the real protocol, and resume it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from capedjica.coordinator.run.aggregation import check_seed, conduct
from capedjica.coordinator.run.results import is_whole
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.coordinator.run.watcher import Watcher
from capedjica.data.features import FeatureTable
from capedjica.engines.inprocess import InProcessEngine
from capedjica.errors import BudgetExceededError, CapedjicaError, InputError
from capedjica.privacy.wording import round_up
from capedjica.site.approval.admission import Scans, problems, spent_on, why_not
from capedjica.site.approval.participation import taking_part
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import call_roll, wrong_width
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
    """Run a study, or resume it, and write the results into ``out``.

    All problems are detected before any budget is spent, and listed in one error.
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
    for home in homes:
        home.note_over(study.hash, datetime.now(UTC).isoformat(timespec="seconds"))
    return finished


def _run(
    study: Study, homes: Sequence[SiteHome], folder: RunFolder, seed: int | None, watcher: Watcher
) -> None:
    """Run the study with the sites in this process."""
    with folder.claim(study) as state, logged("capedjica.run", folder.log_path), ExitStack() as held:
        sites = {
            home.settings.name: held.enter_context(attending(home, study, seed, watcher.reading))
            for home in homes
        }
        conduct(study, folder, state, InProcessEngine(sites).exchange, seed, watcher)


def site_files(folder: Path) -> list[Path]:
    """Return the ``site.toml`` of every site in the sub-folders of a folder."""
    files = sorted(folder.glob("*/site.toml"))
    if files:
        return files
    advice = "give the folder of the sites (run: --sites)"
    if (folder / "site.toml").exists():
        advice = f"it is one site; give the folder of all sites, {folder.absolute().parent}"
    elif any(folder.glob("sites/*/site.toml")):
        advice = f"did you mean {folder / 'sites'}?"
    raise InputError(f"{folder} contains no folders with a site.toml; {advice}")


def find_sites(study: Study, folder: Path) -> list[SiteHome]:
    """Return the homes of a study's sites among the sub-folders of ``folder`` (each with a site.toml)."""
    homes: dict[str, SiteHome] = {}
    found: list[str] = []
    for file in site_files(folder):
        try:
            home = SiteHome.load(file)
        except InputError as error:
            found.append(str(error))
            continue
        other = homes.setdefault(home.settings.name, home)
        if other is not home:
            found.append(
                f"two folders are site {home.settings.name}: {other.folder} and {home.folder}; remove one"
            )
    names = study.contract.roster.names
    missing = [name for name in names if name not in homes]
    if missing:
        found.append(f"no folder for site {', '.join(missing)} of the study")
    if found:
        raise InputError(listed(f"the sites in {folder}", found))
    return [homes[name] for name in names]


def _check_sites(study: Study, homes: Sequence[SiteHome], watcher: Watcher, begun: bool) -> None:
    watcher.checking(study.n_subjects)
    found = {home: _problems_at(home, study, watcher) for home in homes}
    if any(found.values()):
        outcome = "cannot be resumed; nothing more was spent" if begun else "cannot be run; nothing was spent"
        reasons = [words for own in found.values() for words in own]
        told = listed(f"'{study.content.title}' {outcome}", reasons)
        raise InputError(f"{told}\n{_site_table(study, found)}")


def check_before_sealing(study: Study, folder: Path) -> None:
    """Refuse to seal a study that a site on this machine could not approve."""
    found = {home: _refusals(home, study) for home in find_sites(study, folder)}
    if any(found.values()):
        reasons = [words for own in found.values() for words in own]
        told = listed(f"'{study.content.title}' was not sealed", reasons)
        raise InputError(f"{told}\n{_site_table(study, found)}")


def _refusals(home: SiteHome, study: Study) -> list[str]:
    scans = Scans(home, study, read=False)
    found = why_not(home, study, scans, approving=True)
    return [f"site {home.settings.name}: {reason.words}" for reason in found]


def _problems_at(home: SiteHome, study: Study, watcher: Watcher) -> list[str]:
    return problems(home, study, lambda: watcher.reading(home.settings.name))


def _site_table(study: Study, found: dict[SiteHome, list[str]]) -> str:
    """Return a table of all sites: participants in the study and here, approval, number of problems."""
    rows = [("site", "participants in the study", "here", "approved", "problems")]
    for home, own in found.items():
        name, by_itself = home.settings.name, home.settings.policy.auto_approve
        here, approved = "?", "?"
        with suppress(CapedjicaError):
            here = str(len(call_roll(home, study).people))
        with suppress(CapedjicaError):
            known = spent_on(home, study)
            stands = known is not None and not known.revoked
            approved = "yes" if stands else "automatic" if by_itself and known is None else "no"
        rows.append((name, str(study.contract.enrolled.get(name, "-")), here, approved, str(len(own) or "-")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _check_first(study: Study, homes: Sequence[SiteHome], folder: RunFolder | None) -> None:
    """Refuse to start a study twice: its budget is for one run, whose releases are in one journal.

    ``folder`` is the folder of the run if it is known, in which case its journal was lost.
    """
    for home in homes:
        known = spent_on(home, study)
        if study.contract.protects and known is not None and known.mu2 > 0:
            begun = (
                f"'{study.content.title}' was started before: site {home.settings.name} has spent epsilon "
                f"{round_up(known.epsilon)} on it"
            )
            if folder is not None:
                raise InputError(f"{begun}, but {folder.journal_path} is missing; restore it to resume")
            raise BudgetExceededError(
                f"{begun}. Give the folder of that run to resume it, or create a new study with another "
                "title to spend more"
            )


def sites_of_folder(folder: Path) -> list[SiteTable]:
    """Return all sites in the sub-folders of a folder."""
    return [site_of_folder(str(home.folder), None) for home in map(SiteHome.load, site_files(folder))]


def check_widths(folders: Iterable[str | Path], features: FeatureTable) -> None:
    """Raise InputError if the tables of a site in one of the folders do not fit the features of a study."""
    found = []
    for home in map(SiteHome.load, folders):
        words = wrong_width(call_roll(home).found, features)
        if words is not None:
            found.append(f"site {home.settings.name}: {words}")
    if found:
        raise InputError(listed("the study does not fit the data; nothing was written", found))


def site_of_folder(folder: str, subjects: int | None) -> SiteTable:
    """Return a site given by its folder; its participants are counted unless their number is given."""
    home = SiteHome.load(folder)
    site = home.card()
    if subjects is None:
        subjects = len(call_roll(home).people)
    return SiteTable(name=site.name, subjects=subjects, card=site.card)
