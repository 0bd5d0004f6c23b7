"""``python -m benchmarks.utility NAME``: one benchmark for each claim about the quality of the maps."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.evidence.stamps import origin, stamp
from benchmarks.utility.abide import ABIDE
from benchmarks.utility.condition import CONDITION
from benchmarks.utility.guided import GUIDED
from benchmarks.utility.guided_external import GUIDED_EXTERNAL
from benchmarks.utility.guided_more import GUIDED_ABLATION, GUIDED_BAD, GUIDED_SYNTHETIC
from benchmarks.utility.methods import METHODS
from benchmarks.utility.number import NUMBER
from benchmarks.utility.readable import DENOISED, STABILITY
from benchmarks.utility.shared.report import RESULTS, Claim, read_csv, write_csv, write_figure, write_markdown
from benchmarks.utility.shared.runs import Options, Row, averaged, run_all
from benchmarks.utility.spatial import SPATIAL
from benchmarks.utility.speed import NONPRIVATE, TIME
from benchmarks.utility.start import START
from benchmarks.utility.synthetic import COMPONENTS, NO_BASIS, NOISE, SCATTERED, SYNTHETIC
from capedjica.errors import InputError

CLAIMS: Final[dict[str, Claim]] = {
    "synthetic": SYNTHETIC,
    "noise": NOISE,
    "scattered": SCATTERED,
    "components": COMPONENTS,
    "no-basis": NO_BASIS,
    "start": START,
    "methods": METHODS,
    "condition": CONDITION,
    "spatial": SPATIAL,
    "nonprivate": NONPRIVATE,
    "time": TIME,
    "number": NUMBER,
    "denoised": DENOISED,
    "stability": STABILITY,
    "abide": ABIDE,
    "guided": GUIDED,
    "guided-external": GUIDED_EXTERNAL,
    "guided-bad": GUIDED_BAD,
    "guided-ablation": GUIDED_ABLATION,
    "guided-synthetic": GUIDED_SYNTHETIC,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.utility",
        description="How good are the networks? Each benchmark writes utility-NAME.csv, .md, .png and .svg.",
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, claim in CLAIMS.items():
        command = commands.add_parser(name, help=claim.title, description=claim.title)
        if claim.needs_folder:
            command.add_argument("folder", type=Path, help="with timeseries.npz and participants.tsv")
        said = f"how many data sets, or repetitions [{claim.seeds}]"
        command.add_argument("--seeds", type=int, default=claim.seeds, help=said)
        command.add_argument("--quick", action="store_true", help="a tiny version, in seconds")
        command.add_argument("--redraw", action="store_true", help="tables and figure anew, from the CSV")
        command.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def _rows(name: str, asked: argparse.Namespace, console: Console) -> list[Row]:
    """Return the rows of a new run, or of the last one."""
    claim, path = CLAIMS[name], asked.output / f"utility-{name}.csv"
    if not asked.redraw:
        options = Options(asked.seeds, asked.quick, getattr(asked, "folder", None))
        asked.output.mkdir(parents=True, exist_ok=True)
        # Task by task, so that what was made before an interruption can be drawn.
        run_all(
            claim.tasks(options),
            name,
            console,
            alone=options.quick or claim.timed,
            kept=partial(write_csv, path),
        )
    # Read back, so that a page drawn again from the rounded numbers is the same page.
    return read_csv(path)


def _command(asked: argparse.Namespace) -> str:
    """Return what makes the same rows again."""
    folder = " FOLDER" if CLAIMS[asked.name].needs_folder else ""
    return f"python -m benchmarks.utility {asked.name}{folder} --seeds {asked.seeds}" + (
        " --quick" if asked.quick else ""
    )


def _report(asked: argparse.Namespace, console: Console) -> None:
    """Run one benchmark and write everything."""
    claim, base = CLAIMS[asked.name], asked.output / f"utility-{asked.name}"
    cells = averaged(_rows(asked.name, asked, console))
    command = _command(asked)
    made = origin(base) if asked.redraw else stamp(base, command)
    write_markdown(base.with_suffix(".md"), claim, cells, command, made)
    write_figure(base, claim.figure(cells))
    console.print(claim.summary(cells), highlight=False, markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and write its results."""
    parser, console = _parser(), Console()
    asked = parser.parse_args(arguments)
    if asked.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {asked.seeds}")
    folder = getattr(asked, "folder", None)
    if folder is not None and not (folder / "timeseries.npz").exists():
        console.print(f"skipped: there is no timeseries.npz in {folder}", markup=False)
        return 0
    try:
        _report(asked, console)
    except InputError as error:
        console.print(f"error: {error}", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted: --redraw draws the rows made so far")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
