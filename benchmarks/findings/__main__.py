"""``python -m benchmarks.findings NAME``: whether private group comparisons say what they should."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.evidence.stamps import origin, stamp
from benchmarks.findings import abide, simulated
from benchmarks.findings.pages import PAGES, write_page
from benchmarks.utility.shared.report import RESULTS
from capedjica.errors import InputError

Rows = Sequence[dict[str, Any]]
NAMES: Final = {
    "calibration": "error rates of tests and intervals, without effects and with a fifth of them true",
    "truth": "simulated groups with known differences: bias, coverage and power",
    "permuted": "ABIDE with diagnoses permuted within sites: error rates where no effect is true",
    "abide": "ABIDE: agreement with the non-private model; of utility, not a finding about autism",
}

OF_ABIDE: Final = ("permuted", "abide")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.findings",
        description="Each benchmark writes findings-NAME.csv, .md and .svg.",
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, title in NAMES.items():
        command = commands.add_parser(name, help=title, description=title)
        if name in OF_ABIDE:
            command.add_argument("folder", type=Path, help="with timeseries.npz and participants.tsv")
        command.add_argument("--repetitions", type=int, default=200 if name in OF_ABIDE else 2000)
        command.add_argument("--whole", type=int, default=10 if name in OF_ABIDE else 200)
        if name == "calibration":
            command.add_argument("--people", type=int, nargs="*", help="sizes of studies")
            command.add_argument("--workers", type=int, default=1, help="processes that share the studies")
        command.add_argument("--add", action="store_true", help="to the rows of an earlier run")
        command.add_argument("--redraw", action="store_true", help="page and figure anew, from the CSV")
        command.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def _rows(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if asked.name == "abide":
        return abide.compare(asked.folder, asked.repetitions, asked.whole)
    if asked.name == "permuted":
        return abide.permuted(asked.folder, asked.repetitions, asked.whole)
    if asked.name == "truth":
        return simulated.truth(asked.repetitions)
    people = asked.people or simulated.SIZES
    return simulated.calibration(asked.repetitions, asked.whole, people, asked.workers)


def _write_csv(path: Path, rows: Iterator[dict[str, Any]], add: bool) -> None:
    """Write rows as they come: what was done counts, if the rest is interrupted."""
    add, first = add and path.exists(), next(rows)
    with open(path, "a" if add else "w", newline="", encoding="utf-8") as file:
        for number, row in enumerate(chain([first], rows)):
            writer = csv.DictWriter(file, list(row))
            if not number and not add:
                writer.writeheader()
            writer.writerow(
                {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
            )
            file.flush()


def _read_csv(path: Path) -> Rows:
    if not path.exists():
        raise InputError(f"there is no {path} to draw from: run the benchmark without --redraw")
    with open(path, newline="", encoding="utf-8") as file:
        rows = [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]
    # Several processes write rows in any order.
    return sorted(rows, key=_place) if "people" in rows[0] and "path" in rows[0] else rows


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("people", "true_effects", "path", "mode", "epsilon"))


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
            asked.output.mkdir(parents=True, exist_ok=True)
            _write_csv(path, _rows(asked), asked.add)
        base = path.with_suffix("")
        # Rows added to those of earlier code leave the page as old as its oldest rows.
        made = origin(base) if asked.redraw or asked.add else stamp(base, PAGES[asked.name].command)
        write_page(path, PAGES[asked.name], NAMES[asked.name], _read_csv(path), made)
    except InputError as error:
        console.print(f"error: {error}")
        return 1
    console.print(f"written: {path.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
