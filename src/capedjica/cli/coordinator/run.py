"""``capedjica run``, and its progress display in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from capedjica.cli.coordinator.status import sites_table
from capedjica.cli.options import CsfOption, LabelNamesOption, LabelsOption, WhiteMatterOption
from capedjica.cli.progress import progress_bars
from capedjica.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from capedjica.algorithms.reliability import Reliability
    from capedjica.coordinator.flare.progress import Progress as RunProgress
    from capedjica.coordinator.flare.remote_run import Follower
    from capedjica.coordinator.run.run_folder import RunState
    from capedjica.coordinator.run.watcher import Watcher
    from capedjica.study.study_file import Study


class Engine(StrEnum):
    """Transport of messages between aggregator and sites."""

    INPROCESS = "inprocess"
    FLARE = "flare"


def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study.toml, or its folder.")],
    sites: Annotated[
        Path | None,
        typer.Option(help="Folder of the sites' folders; by default 'sites' next to the study.toml."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; by default 'run' next to the study.toml.")
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="inprocess: sites are folders on this machine. flare: sites are on their own machines."
        ),
    ] = Engine.INPROCESS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only resume an existing run; do not start a new one.")
    ] = False,
    wait: Annotated[
        float, typer.Option(help="flare: seconds to wait for all sites; then the threshold suffices.")
    ] = 600.0,
    silence: Annotated[
        float, typer.Option(help="flare: seconds without a reply after which a site counts as lost.")
    ] = 60.0,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="Seed of the noise, for a study with insecure_noise: NOT PRIVATE.")
    ] = None,
    labels: LabelsOption = None,
    label_names: LabelNamesOption = None,
    csf: CsfOption = None,
    white_matter: WhiteMatterOption = None,
) -> None:
    """Run a study, or resume it after an interruption.

    All input is checked before any budget is spent. Exit codes: 0 complete, 2 invalid input, 3 budget
    exceeded, 4 too few sites or a protocol error, 5 unusable ledger, 130 interrupted.
    """
    from capedjica.coordinator.drafts import sealed_path
    from capedjica.coordinator.run.labelling import LabelFiles, write_labels
    from capedjica.study.study_file import Study

    given = Study.load(study)
    label_files = LabelFiles(labels, label_names, csf, white_matter)
    if label_files.given:
        label_files.placed(given, given.features)  # raises if unusable, before any budget is spent
    beside = study if study.is_dir() else study.parent
    folder = out or beside / "run"
    if resume and not (folder / "run.json").exists():
        raise InputError(f"{folder} contains no run to resume; start one without --resume")
    console = Console(highlight=False, markup=False)
    done = _complete(given, folder)
    try:
        with progress_bars(console) as progress:
            if engine is Engine.FLARE:
                state = _run_on_flare(given, sites, folder, wait, silence, insecure_noise_seed, progress)
            else:
                from capedjica.one_machine.local_run import find_sites, run_study

                if sites is None and not (beside / "sites").exists() and sealed_path(study).exists():
                    raise InputError(
                        f"{beside / 'sites'} does not exist: the sites of this sealed study are not on this "
                        f"machine. To run it at its sites: capedjica run {study} --engine flare"
                    )
                homes = find_sites(given, sites or beside / "sites")
                state = run_study(given, homes, folder, insecure_noise_seed, _watcher(progress, given))
    except KeyboardInterrupt:
        if (folder / "run.json").exists():
            typer.echo(f"\nInterrupted. Releases so far are in {folder}; run the same command to resume.")
        else:
            typer.echo("\nInterrupted before the run started; nothing was spent.")
        raise
    if label_files.given:
        write_labels(folder, label_files)
    if done:
        console.print("This run was already complete: nothing was computed or spent again.", style="bold")
    _show(given, state, folder, console)


def _complete(study: Study, folder: Path) -> bool:
    """Return whether a folder contains a complete run of a study."""
    from capedjica.coordinator.run.run_folder import RunFolder

    state = RunFolder(folder).check(study)
    return state is not None and state.complete


def _run_on_flare(
    study: Study,
    sites: Path | None,
    folder: Path,
    wait: float,
    silence: float,
    seed: int | None,
    progress: Progress,
) -> RunState:
    from capedjica.cli.options import need_flare

    if sites is not None:
        raise InputError(
            "--sites is for sites on this machine, but with --engine flare sites connect over the network; "
            "omit --sites"
        )
    need_flare()
    from capedjica.coordinator.flare.federation import Federation
    from capedjica.coordinator.flare.remote_run import Terms, run_federated
    from capedjica.coordinator.flare.status import federation_warnings
    from capedjica.coordinator.flare.transport import Patience

    for warning in federation_warnings(Federation.beside(study)):
        progress.console.print(f"Warning: {warning}.")
    terms = Terms(wait, Patience(silence=silence), seed)
    return run_federated(study, folder, terms, follower(progress))


def _watcher(progress: Progress, study: Study) -> Watcher:
    from capedjica.coordinator.run.watcher import Step, Watcher
    from capedjica.privacy.wording import NOT_PRIVATE, round_up

    total = sum(stage.count for stage in study.contract.stages)

    class Bars(Watcher):
        """Two bars: participants whose data were read in this pass, and releases made."""

        def __init__(self) -> None:
            self.people = progress.add_task("checking data", total=study.n_subjects, status="")
            self.releases = progress.add_task("releases", total=total, status="", start=False)

        def checking(self, n_subjects: int) -> None:
            progress.update(self.people, total=n_subjects, completed=0)

        def reading(self, site: str) -> None:
            task = progress.tasks[self.people]
            if task.completed >= study.n_subjects:
                progress.reset(self.people, description="reading data", status="")
                progress.start_task(self.releases)
            progress.update(self.people, advance=1, status=f"at {site}")

        def step(self, step: Step) -> None:
            spent = step.privacy.spent_epsilon
            cost = f"epsilon {round_up(spent)} so far" if step.privacy.private else NOT_PRIVATE
            progress.start_task(self.releases)
            progress.update(
                self.releases,
                completed=step.n_done,
                description=f"{step.label} {step.number}/{step.count}",
                status=cost,
            )

    return Bars()


def _show(study: Study, state: RunState, folder: Path, console: Console) -> None:
    from capedjica.coordinator.run.results import Cost
    from capedjica.coordinator.run.run_folder import RunFolder
    from capedjica.report.data_location import whereabouts_of, who

    cost = RunFolder(folder).read_json("privacy.json", Cost)
    where = whereabouts_of(cost.carriers).short
    times = "once" if state.resumed == 1 else f"{state.resumed} times"
    again = f", resumed {times}" if state.resumed else ""
    summaries = [step.table.summary(step.setting) for step in study.steps]
    reliability = _reliability(study, folder)
    if reliability is not None and reliability.banner:
        console.print(reliability.banner, style="bold yellow")
    if len(summaries) > 1:
        for summary in summaries:
            console.print(f"{summary}.", style="bold")
        what = f"{len(summaries)} analyses"
    else:
        what = f"{summaries[0]}," if reliability is None else reliability.headline
    whose = who(study.contract.participants, cost.absent)
    console.print(f"{what} from {whose} in {state.seconds:.0f} s{again}; {where}.", style="bold")
    if reliability is not None and reliability.prediction:
        console.print(reliability.prediction)
    console.print(cost.statement)
    for step in study.steps:
        place = folder / study.results_folder(step)
        first = place / "maps.png"
        if not first.exists():
            first = next(iter(sorted(place.glob("*.csv"))), place)
        # Printed without wrapping, so that the path can be copied.
        typer.echo(f"{'The maps' if step.table.kind == 'ica' else step.name}: {first}")
    typer.echo(f"Privacy cost in detail: {folder / 'privacy.json'}")
    typer.echo(f"All results, for sharing: {folder / 'results.zip'}")
    typer.echo(f"To write an HTML report: capedjica report {shlex.quote(str(folder))}")


def _reliability(study: Study, folder: Path) -> Reliability | None:
    """Return the reliability of the networks of a run; None if it has no networks."""
    from capedjica.study.reliability_file import read_reliability

    return None if study.networks is None else read_reliability(folder, study, study.networks)


def follower(progress: Progress) -> Follower:
    """Return a follower that shows a run across machines: a bar, or lines if there is no terminal."""
    from capedjica.coordinator.flare.remote_run import Follower

    class Lines(Follower):
        """Follower that prints new messages and updates a bar."""

        def __init__(self) -> None:
            self._task = progress.add_task("starting", total=None, status="", start=False)
            self._said: set[str] = set()

        def _say(self, text: str) -> None:
            if text not in self._said:
                self._said.add(text)
                progress.console.print(text)

        def server(self, host: str, port: int, confinement: str) -> None:
            self._say(f"The server is running; sites reach it at {host}:{port}. Confinement: {confinement}.")

        def sites(self, connected: Mapping[str, bool]) -> None:
            for name, there in connected.items():
                if there:
                    self._say(f"Site {name} is connected.")
            missing = [name for name, there in connected.items() if not there]
            progress.update(self._task, description="sites", status=f"waiting for {', '.join(missing)}")

        def roll_call(self, sites: Sequence[Mapping[str, Any]]) -> None:
            progress.console.print(sites_table(sites))

        def progress(self, latest: RunProgress) -> None:
            for name, reason in latest.lost.items():
                self._say(f"Site {name} was lost: {reason}.")
            if latest.n_done:
                progress.start_task(self._task)
            progress.update(
                self._task,
                completed=latest.n_done,
                total=latest.n_total,
                description=f"{latest.stage} {latest.number}/{latest.count}" if latest.n_done else "run",
                status=f"epsilon {latest.epsilon} so far" if latest.n_done else latest.doing,
            )

        def died(self, attempt: int, reason: str) -> None:
            progress.console.print(f"The run was interrupted ({reason}) and resumes where it stopped.")

    return Lines()
