"""What the experiments share: their options, and writing table, figure, parameters and findings."""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.evidence.stamps import stamp
from paper.shared.runs import FOLDER, Kept, Run, make_all, parameters

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SettingT = TypeVar("SettingT")
RESULTS: Final = Path("paper/results")
QUICK_RESULTS: Final = Path("out/paper/results")

_HEADER: Final = """# The paper's figures and tables, reproduced

Imtiaz et al., "Improved Differentially Private Decentralized Source Separation for fMRI Data". Each part is
written by its command, all parts by `make paper ABIDE=FOLDER` (without the folder the parts on real data stay
as they are), from the numbers of that run; table, figure and parameters are in `results/`. Where a formula of
the paper is compared with the exact value, [Departures](../docs/concepts/departures.md) says why
they differ. Errors are standard errors over the repeats, each with data and noise of its own; the paper made
ten, here there are as many as a figure says, the same for every algorithm in it. A gain index of 0 is
perfect, 0.1 the paper's limit of the usable, and about 0.35 that of a random matrix (20 components). ABIDE,
1,017 people and 200 regions, stands in for the paper's 1,548 people. A part says when its numbers were made,
by the code of that time.
"""
_SECTION: Final = re.compile(r"<!-- (\w+) -->\n(.*?)\n<!-- end of \1 -->\n", re.DOTALL)


Holds = Literal["yes", "no", "in part", "not decided"]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, what was measured, and whether the claim holds."""

    claim: str
    measured: str
    holds: Holds


@dataclass(frozen=True)
class Experiment:
    """One run: what it is called, and what came out of it.

    Attributes
    ----------
    name : str
        Of the module and of the files.
    title : str
        For people.
    setting : dataclass
        The parameters of the run.
    rows : sequence of dataclasses
        The table.
    figure : Figure
        The figure.
    findings : sequence of Finding
        Each claim and its answer.
    notes : sequence of str
        What else the reader should know, a paragraph each.
    command : str
        What makes it, after ``python -m paper.``; by default the name.
    made : datetime
        When its numbers were.
    """

    name: str
    title: str
    setting: DataclassInstance
    rows: Sequence[DataclassInstance]
    figure: Figure
    findings: Sequence[Finding]
    notes: Sequence[str] = ()
    command: str = ""
    made: datetime = field(default_factory=partial(datetime.now, UTC))

    @property
    def made_by(self) -> str:
        """What makes it, after ``python -m paper.``."""
        return self.command or self.name


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    quick: bool
    out: Path
    abide: Path | None = None
    runs: Path = FOLDER


def options(description: str, arguments: list[str] | None, shared: bool = False) -> Options:
    """Read ``[--quick] [--out FOLDER]``; a small version does not overwrite the results of a full one.

    Experiments with ``shared`` runs take ``[--abide FOLDER] [--runs FOLDER]`` too.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small version")
    parser.add_argument("--out", type=Path, help=f"where to write (default {RESULTS}, quick {QUICK_RESULTS})")
    if shared:
        parser.add_argument("--abide", type=Path, help="with timeseries.npz and participants.tsv: real data")
        parser.add_argument(
            "--runs", type=Path, default=FOLDER, help=f"where runs are kept (default {FOLDER})"
        )
    given = vars(parser.parse_args(arguments))
    given["out"] = given["out"] or (QUICK_RESULTS if given["quick"] else RESULTS)
    chosen = Options(**given)
    if chosen.abide is not None and not (chosen.abide / "timeseries.npz").exists():
        parser.error(f"there is no timeseries.npz in {chosen.abide}")
    return chosen


def run(
    experiment: Callable[[SettingT], Experiment],
    full: SettingT,
    quick: SettingT,
    arguments: list[str] | None = None,
) -> None:
    """Make an experiment in its full or its small version, as the command line says, and write it."""
    chosen = options((experiment.__doc__ or "").partition("\n")[0], arguments)
    write(experiment(quick if chosen.quick else full), chosen.out)


@dataclass(frozen=True)
class Shared(Generic[SettingT]):
    """An experiment on runs that others may share.

    Parameters
    ----------
    description : str
        For people.
    settings : callable
        What to do for some options: one setting for each experiment to write.
    runs : callable
        The runs that a setting asks for.
    experiment : callable
        What comes of a setting, from the runs that are kept.
    """

    description: str
    settings: Callable[[Options], Sequence[SettingT]]
    runs: Callable[[SettingT], Sequence[Run]]
    experiment: Callable[[SettingT, Kept], Experiment]

    def all_runs(self, chosen: Options) -> list[Run]:
        """Return the runs that these options ask for."""
        return [run for setting in self.settings(chosen) for run in self.runs(setting)]

    def write(self, chosen: Options) -> None:
        """Write the experiments from the runs that are kept."""
        for setting in self.settings(chosen):
            write(self.experiment(setting, Kept(chosen.runs)), chosen.out)

    def main(self, arguments: list[str] | None = None) -> None:
        """Make the runs and write the experiments."""
        chosen = options(self.description, arguments, shared=True)
        make_runs(self.all_runs(chosen), chosen)
        self.write(chosen)


def make_runs(runs: Sequence[Run], chosen: Options) -> None:
    """Make the runs that are not kept; on interruption say what is, and exit."""
    try:
        make_all(runs, Kept(chosen.runs), Console(), 1 if chosen.quick else None)
    except KeyboardInterrupt:
        sys.exit("interrupted: finished runs are kept, and the same command goes on from there")


def write(experiment: Experiment, out: Path) -> None:
    """Write NAME.csv, .json, .png and .svg into ``out``, and the findings into RESULTS.md above it."""
    out.mkdir(parents=True, exist_ok=True)
    base = out / experiment.name
    _write_table(experiment.rows, base.with_suffix(".csv"))
    text = json.dumps(parameters(experiment.setting), indent=2)
    base.with_suffix(".json").write_text(text + "\n")
    _write_figure(experiment.figure, base)
    _update_results(
        out.parent / "RESULTS.md", experiment, stamp(base, f"python -m paper.{experiment.made_by}")
    )
    print(f"wrote {base}.csv, .json, .png and .svg, and the findings in {out.parent / 'RESULTS.md'}")


def _write_table(rows: Sequence[DataclassInstance], path: Path) -> None:
    records = [{name: _cell(value) for name, value in asdict(row).items()} for row in rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _write_figure(figure: Figure, base: Path) -> None:
    """Write the figure twice; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    with rc_context({"svg.hashsalt": base.name}):
        figure.savefig(base.with_suffix(".png"), dpi=110)
        figure.savefig(base.with_suffix(".svg"), metadata={"Date": None})


def _update_results(path: Path, experiment: Experiment, origin: str) -> None:
    """Replace the part of this experiment, leaving the others as they are."""
    text = path.read_text() if path.exists() else ""
    parts = {match[1]: match[2] for match in _SECTION.finditer(text)}
    parts[experiment.name] = _part(experiment, origin)
    body = "\n".join(
        f"<!-- {name} -->\n{part}\n<!-- end of {name} -->\n" for name, part in sorted(parts.items())
    )
    path.write_text(f"{_HEADER}\n{body}")


def _part(experiment: Experiment, origin: str) -> str:
    name = experiment.name
    lines = [
        f"## {experiment.title}",
        "",
        f"`python -m paper.{experiment.made_by}`: [figure](results/{name}.svg), "
        f"[table](results/{name}.csv), [parameters](results/{name}.json); numbers of "
        f"{experiment.made:%Y-%m-%d at %H:%M} UTC, {origin}",
        "",
        "| The paper's claim | Measured | Holds |",
        "|---|---|---|",
        *(f"| {finding.claim} | {finding.measured} | {finding.holds} |" for finding in experiment.findings),
        *(f"\n{note}" for note in experiment.notes),
    ]
    return "\n".join(lines)
