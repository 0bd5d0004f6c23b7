"""Growth with participants, sites, components, features: ``python -m benchmarks.scale [NAME ...] [--quick]``.

Every size runs in a fresh process, one after the other, and is fitted by an exponent beside that in theory
(`benchmarks.scale.dimensions`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.evidence.stamps import origin, stamp
from benchmarks.framework import ROOT
from benchmarks.scale.dimensions import DIMENSIONS
from benchmarks.scale.measuring import Row, in_fresh_processes, measured
from benchmarks.scale.pages import fits, read_csv, write_csv, write_page, write_table
from benchmarks.utility.shared.report import RESULTS
from capedjica.errors import CapedjicaError

COMMAND: Final = "python -m benchmarks.scale"
DOCUMENTED: Final = ROOT / "docs" / "scale.md"


def measure(name: str, sizes: Sequence[int], console: Console) -> Iterator[Row]:
    """Measure all sizes of a dimension, one after the other."""
    for size in sizes:
        rows = in_fresh_processes(name, size)
        yield from rows
        last = rows[-1]
        console.print(
            f"{name} {size:,}: {last.seconds:.1f} s, processor {last.cpu:.1f} s, memory "
            f"{last.memory / 1e6:.0f} MB, {last.total_bytes / 1e6:.2f} MB sent, load {last.load:.1f}"
        )


def _show(name: str, rows: Sequence[Row], console: Console) -> None:
    for one in fits(rows, DIMENSIONS[name]):
        console.print(
            f"{name}, {one.theory.quantity.name}: exponent {one.exponent:.2f} ± {one.error:.2f}, in theory "
            f"{one.theory}: {one.verdict}",
            highlight=False,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "name", nargs="*", choices=[[], *DIMENSIONS], metavar="NAME", help=", ".join(DIMENSIONS)
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it works; writes nothing"
    )
    parser.add_argument("--redraw", action="store_true", help="pages and figures anew, from the CSV")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "SIZE"), help=argparse.SUPPRESS)
    return parser


def _make(name: str, given: argparse.Namespace, console: Console) -> None:
    """Measure one dimension, and write its results unless it was quick."""
    base = given.output / f"scale-{name}"
    command = f"{COMMAND} {name}"
    if given.quick:
        _show(name, list(measure(name, DIMENSIONS[name].quick, console)), console)
        return
    if not given.redraw:
        given.output.mkdir(parents=True, exist_ok=True)
        write_csv(base.with_suffix(".csv"), measure(name, DIMENSIONS[name].sizes, console))
    made = origin(base) if given.redraw else stamp(base, command)
    rows = read_csv(base.with_suffix(".csv"))
    _show(name, rows, console)
    write_page(base.with_suffix(".csv"), name, rows, command, made)


def _document(console: Console) -> None:
    """Write the table of the documentation, once all dimensions were measured."""
    paths = {name: RESULTS / f"scale-{name}.csv" for name in DIMENSIONS}
    if all(path.exists() for path in paths.values()):
        write_table(
            DOCUMENTED, {name: fits(read_csv(path), DIMENSIONS[name]) for name, path in paths.items()}
        )
        console.print(f"written: {DOCUMENTED}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and write the results unless it was quick."""
    given, console = _parser().parse_args(arguments), Console()
    if given.measure:
        name, size = given.measure
        json.dump(asdict(measured(DIMENSIONS[name].run, int(size))), sys.stdout)
        return 0
    start = time.monotonic()
    try:
        for name in given.name or DIMENSIONS:
            _make(name, given, console)
        if not given.quick and given.output == RESULTS:
            _document(console)
    except CapedjicaError as error:
        console.print(f"error: {error}", markup=False)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted: the dimensions finished so far are written")
        return 130
    console.print(f"{time.monotonic() - start:.0f} s in total")
    return 0


if __name__ == "__main__":
    sys.exit(main())
