"""``capedjica-bids``: the BIDS app, with the arguments that all BIDS apps have."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capedjica.errors import CapedjicaError, InputError
from capedjica.tools.version import __version__

if TYPE_CHECKING:
    from capedjica.data.features import FeatureTable
    from capedjica.data.scans import Person, Problem
    from capedjica.one_machine.bids.dataset import Selection
    from capedjica.one_machine.bids.levels import App

NAME: Final = "capedjica-bids"
INTERRUPTED: Final = 130
_DESCRIPTION: Final = """\
Brain networks of a BIDS data set that was preprocessed by fMRIPrep. group: networks of all participants
together, private with --epsilon. participant: time courses, connectivity and maps of each participant, from
the networks of the group level in OUT_DIR or from --template; nothing across participants, and not private.
"""
_COMPONENTS: Final = 20
_VOXEL_SIZE: Final = 4.0
_CONFOUNDS: Final = ("motion", "high_pass", "wm_csf")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog=NAME, description=_DESCRIPTION, allow_abbrev=False)
    made.add_argument("bids_dir", type=Path, metavar="BIDS_DIR", help="data set, or its fMRIPrep derivatives")
    made.add_argument("output_dir", type=Path, metavar="OUT_DIR", help="data set of results")
    made.add_argument("analysis_level", choices=["participant", "group"], help="level of the analysis")
    made.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    _add_selection(made.add_argument_group("selection of recordings"))
    _add_features(made.add_argument_group("features"))
    _add_analysis(made.add_argument_group("analysis"))
    _add_resources(made.add_argument_group("resources"))
    return made


def _add_selection(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--participant-label", "--participant_label", nargs="+", default=[], metavar="LABEL",
        help="participants, with or without sub-; all by default",
    )  # fmt: skip
    group.add_argument(
        "--session-label", "--session_label", nargs="+", default=[], metavar="LABEL",
        help="sessions, with or without ses-; all by default",
    )  # fmt: skip
    group.add_argument("-t", "--task-id", "--task_id", metavar="TASK", help="task; all by default")
    group.add_argument("--space", help="template space; required if there are several")
    group.add_argument(
        "--bids-filter-file", type=Path, metavar="FILE",
        help='JSON file such as {"bold": {"run": [1, 2], "acquisition": "mb4"}}',
    )  # fmt: skip
    group.add_argument(
        "-d", "--derivatives", type=Path, metavar="DIR",
        help="preprocessed scans, if neither BIDS_DIR nor the only such folder in BIDS_DIR/derivatives",
    )  # fmt: skip
    group.add_argument(
        "--skip-bids-validation", "--skip_bids_validator", action="store_true",
        help="do not check dataset_description.json of the preprocessed scans",
    )  # fmt: skip


def _add_features(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--mask", type=Path, metavar="IMAGE", help="public brain mask; by default MNI152")
    group.add_argument("--atlas", type=Path, metavar="IMAGE", help="public atlas, whose regions are analysed")
    group.add_argument(
        "--voxel-size", type=float, metavar="MM",
        help=f"voxel size; by default that of --mask, or {_VOXEL_SIZE:g}",
    )  # fmt: skip
    group.add_argument(
        "--smoothing-fwhm", type=float, metavar="MM", help="spatial smoothing; none by default"
    )
    group.add_argument(
        "--confounds", nargs="*", default=list(_CONFOUNDS), metavar="NAME",
        help=f"nilearn's confound strategies; by default {' '.join(_CONFOUNDS)}",
    )  # fmt: skip
    group.add_argument("--high-pass", type=float, metavar="HZ", help="high-pass filter; none by default")
    group.add_argument("--low-pass", type=float, metavar="HZ", help="low-pass filter; none by default")
    group.add_argument("--standardize", action="store_true", help="divide features by their deviation")


def _add_analysis(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--n-components", type=int, metavar="R",
        help=f"number of networks; by default that of --template, or {_COMPONENTS}",
    )  # fmt: skip
    group.add_argument("--epsilon", type=float, help="privacy budget of the group level")
    group.add_argument("--delta", type=float, default=1e-5, help="delta of the guarantee; by default 1e-5")
    group.add_argument(
        "--mechanism", choices=["pooled", "none"], default="pooled",
        help="pooled: this machine is trusted and adds noise to what it writes; none: NOT PRIVATE",
    )  # fmt: skip
    group.add_argument(
        "--scan-length",
        type=int,
        default=250,
        metavar="T",
        help="volumes of a typical participant; by default 250",
    )
    group.add_argument(
        "--template",
        type=Path,
        metavar="FILE",
        help="known networks: image (4-D maps, 3-D labels), .npy, results.zip",
    )
    group.add_argument("--template-names", type=Path, metavar="TABLE", help="names of these networks")
    group.add_argument(
        "--template-origin", choices=["public", "earlier-study", "other-people"],
        help="where the template comes from, for which you are responsible",
    )  # fmt: skip


def _add_resources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-w", "--work-dir", "--work_dir", type=Path, metavar="DIR",
        help="keep extracted series, which are NOT PRIVATE, for the next call; by default they are removed",
    )  # fmt: skip
    group.add_argument(
        "--n-cpus",
        "--nprocs",
        "--nthreads",
        "--n_cpus",
        type=int,
        metavar="N",
        help="threads of computations",
    )
    group.add_argument(
        "--mem-mb", "--mem_mb", type=float, metavar="MB", help="refuse a group whose series need more memory"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the app; report a user error as one line on standard error and an exit code."""
    given = parser().parse_args(arguments)
    try:
        _run(given)
    except KeyboardInterrupt:
        _say("interrupted; nothing incomplete was left")
        sys.exit(INTERRUPTED)
    except CapedjicaError as error:
        _say(str(error))
        sys.exit(error.exit_code)


def _say(text: str) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"{NAME}: {text}")


def _run(given: argparse.Namespace) -> None:
    _check(given)
    from capedjica.one_machine.bids.dataset import check_description, find_derivatives, select_people

    scans = find_derivatives(given.bids_dir, given.derivatives)
    if not given.skip_bids_validation:
        check_description(scans)
    people, problems = select_people(scans, _selection(given))
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        raise InputError(f"{fatal[0]}{f' (and {len(fatal) - 1} more)' if len(fatal) > 1 else ''}")
    _show_problems(problems)
    with _work_folder(given.work_dir) as work, _threads(given.n_cpus):
        level = _group if given.analysis_level == "group" else _participant
        level(given, _app(given, scans, people, work))


def _check(given: argparse.Namespace) -> None:
    """Reject options that do not fit together, before any file is read."""
    if given.analysis_level == "group":
        if given.mechanism == "none" and given.epsilon is not None:
            raise InputError("--epsilon must not be given with --mechanism none, which gives no privacy")
        if given.mechanism != "none" and given.epsilon is None:
            raise InputError(
                "--epsilon must be given, the privacy budget; or --mechanism none, without privacy"
            )
    elif given.epsilon is not None:
        raise InputError("--epsilon is for the group level; results of participants are not private")
    _check_numbers(given)
    if given.output_dir.resolve() == given.bids_dir.resolve():
        raise InputError("OUT_DIR must not be BIDS_DIR; give for example BIDS_DIR/derivatives/capedjica")


def _check_numbers(given: argparse.Namespace) -> None:
    from capedjica.privacy import validate

    if given.epsilon is not None:
        validate.positive("--epsilon", given.epsilon)
    validate.probability("--delta", given.delta)
    for name, fewest in (("n_components", 2), ("scan_length", 2), ("n_cpus", 1)):
        if getattr(given, name) is not None:
            validate.count(f"--{name.replace('_', '-')}", getattr(given, name), minimum=fewest)


def _selection(given: argparse.Namespace) -> Selection:
    from capedjica.one_machine.bids.dataset import Selection, read_filter

    filters = {} if given.bids_filter_file is None else read_filter(given.bids_filter_file)
    return Selection(given.participant_label, given.session_label, given.task_id, given.space, filters)


def _app(given: argparse.Namespace, scans: Path, people: Sequence[Person], work: Path) -> App:
    from capedjica.data.layouts import entity_of
    from capedjica.one_machine.bids.levels import App

    space = entity_of(people[0].recordings[0].path, "space")
    return App(scans, given.output_dir, people, _table(given, space), work)


def _table(given: argparse.Namespace, space: str | None) -> FeatureTable:
    import msgspec

    from capedjica.data.features import FeatureTable
    from capedjica.tools.toml import problems

    def path(image: Path | None) -> str | None:
        return None if image is None else str(image.absolute())

    size = given.voxel_size
    if size is None and given.mask is None and given.atlas is None:
        size = _VOXEL_SIZE
    table = FeatureTable(
        kind="voxels" if given.atlas is None else "atlas",
        atlas=path(given.atlas),
        mask=path(given.mask),
        voxel_size=size,
        space=space,
        smoothing_fwhm=given.smoothing_fwhm,
        detrend=True,
        standardize=given.standardize,
        low_pass=given.low_pass,
        high_pass=given.high_pass,
        confounds=tuple(given.confounds),
    )
    found = problems(msgspec.to_builtins(table), FeatureTable, "features.")
    if found:
        raise InputError(found[0])
    return table


def _group(given: argparse.Namespace, app: App) -> None:
    from capedjica.one_machine.bids.levels import GroupOptions, run_group

    components = given.n_components
    if components is None and given.template is None:
        components = _COMPONENTS
    options = GroupOptions(
        n_components=components,
        epsilon=given.epsilon,
        delta=given.delta,
        mechanism=given.mechanism,
        template=given.template,
        template_names=given.template_names,
        template_origin=given.template_origin,
        scan_length=given.scan_length,
        memory=None if given.mem_mb is None else given.mem_mb * 2**20,
    )
    with _progress("reading scans", len(app.people)) as tick:
        result = run_group(app, options, tick)
    _show_problems(result.problems)
    _print(
        f"Networks of {len(app.people)} participants: {app.out / 'group'}; report: {app.out / 'group.html'}"
    )
    for words in filter(None, (result.warning, result.statement)):
        _print(words)


def _participant(given: argparse.Namespace, app: App) -> None:
    from capedjica.one_machine.bids.levels import group_maps, run_participants

    template = given.template or group_maps(app)
    with _progress("participants", len(app.people)) as tick:
        result = run_participants(app, template, given.template_names, tick)
    _show_problems(result.problems)
    _print(f"Results of {result.written} of {len(app.people)} participants: {app.out}")
    _print("These are individual results: they are not private.")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _show_problems(problems: Sequence[Problem]) -> None:
    """Print what is wrong with scans, which the user of the app has."""
    from capedjica.data.scans import told_once

    alike = [(one.alike if one.fatal else one.expected, str(one)) for one in problems]
    for words in told_once(alike):
        _say(words)


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="capedjica-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Limit the threads of linear algebra and of compiled code."""
    if count is None:
        yield
        return
    from numba import config, set_num_threads
    from threadpoolctl import threadpool_limits

    set_num_threads(min(count, config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    with threadpool_limits(count):
        yield


@contextlib.contextmanager
def _progress(words: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console

    from capedjica.cli.progress import counting

    with counting(words, Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    main()
