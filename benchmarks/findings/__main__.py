"""``python -m benchmarks.findings NAME``: whether private group comparisons say what they should."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.findings import abide, simulated
from benchmarks.findings.pages import PAGES, write_page
from benchmarks.utility.report import RESULTS
from capedjica.errors import InputError

Rows = Sequence[dict[str, Any]]
NAMES: Final = {
    "calibration": "error rates of tests and intervals, without effects and with a fifth of them true",
    "truth": "simulated groups with known differences: bias, coverage and power",
    "abide": "ABIDE: agreement with the non-private model; of utility, not a finding about autism",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.findings",
        description="Each benchmark writes findings-NAME.csv, .md and .svg.",
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, title in NAMES.items():
        command = commands.add_parser(name, help=title, description=title)
        if name == "abide":
            command.add_argument("folder", type=Path, help="with timeseries.npz and participants.tsv")
        command.add_argument("--repetitions", type=int, default=200 if name == "abide" else 2000)
        command.add_argument("--whole", type=int, default=10 if name == "abide" else 200)
        command.add_argument("--redraw", action="store_true", help="page and figure anew, from the CSV")
        command.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def _rows(asked: argparse.Namespace) -> Rows:
    if asked.name == "abide":
        return list(abide.compare(asked.folder, asked.repetitions, asked.whole))
    if asked.name == "truth":
        return list(simulated.truth(asked.repetitions))
    return list(simulated.calibration(asked.repetitions, asked.whole))


def _write_csv(path: Path, rows: Rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
            for row in rows
        )


def _read_csv(path: Path) -> Rows:
    if not path.exists():
        raise InputError(f"there is no {path} to draw from: run the benchmark without --redraw")
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark."""
    asked, console = _parser().parse_args(arguments), Console(stderr=True)
    path = asked.output / f"findings-{asked.name}.csv"
    try:
        if not asked.redraw:
            rows = _rows(asked)
            asked.output.mkdir(parents=True, exist_ok=True)
            _write_csv(path, rows)
        write_page(path, PAGES[asked.name], NAMES[asked.name], _read_csv(path))
    except InputError as error:
        console.print(f"error: {error}")
        return 1
    console.print(f"written: {path.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
