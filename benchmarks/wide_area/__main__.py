"""A study between distant machines: ``python -m benchmarks.wide_area [--quick]``.

The server and each of four sites are in a network namespace of their own, joined by a relay that delays
packets and drops some (`benchmarks.wide_area.relay`). Needs Linux, root and iproute2. Nothing reaches the
networks of this machine, and nothing is left behind, however it ends.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.evidence.stamps import origin, stamp
from benchmarks.framework import ROOT
from benchmarks.utility.shared.report import RESULTS
from benchmarks.wide_area.namespaces import Conditions
from benchmarks.wide_area.pages import (
    Row,
    cells,
    read_csv,
    table,
    verdict,
    write_csv,
    write_page,
    write_table,
)
from benchmarks.wide_area.study import Outcome, run_study
from capedjica.errors import CapedjicaError
from capedjica.one_machine.simulation import Simulation

NAME: Final = "wide-area"
DOCUMENTED: Final = ROOT / "docs" / "reference" / "wide-area.md"
COMMAND: Final = "python -m benchmarks.wide_area"
# Round-trip times in seconds and rates of loss; the first is what theory starts from.
LINES: Final = ((0.0, 0.0), (0.05, 0.0), (0.2, 0.0), (0.05, 0.01), (0.2, 0.01))
QUICK: Final = ((0.0, 0.0), (0.05, 0.01))
SIZE: Final = Simulation(subjects=(16,) * 4, n_timepoints=(100, 100), epsilon=50.0)
SMALL: Final = Simulation(
    subjects=(8,) * 4, n_components=3, image_side=10, n_timepoints=(60, 60), epsilon=50.0
)


def measure(
    size: Simulation, lines: Sequence[tuple[float, float]], repetitions: int, console: Console
) -> Iterator[Row]:
    """Run a study over each line in turn, so that a busy moment hits all; yield a row for each."""
    # The first study may have to compile the sites' kernels.
    console.print("warming up: a study without delay, which does not count ...")
    run_study(size, Conditions(0.0))
    for seed in range(1, repetitions + 1):
        for round_trip, loss in lines:
            outcome = run_study(size, Conditions(round_trip, loss, seed))
            row = _row(outcome, Conditions(round_trip, loss, seed))
            console.print(
                f"{seed} of {repetitions}: {row.round_trip_ms:g} ms, {loss:.0%} lost: {row.rounds} rounds, "
                f"{row.seconds:.2f} s"
            )
            yield row


def _row(outcome: Outcome, line: Conditions) -> Row:
    ahead = sum(one.ahead for one in outcome.rounds)
    return Row(
        round_trip_ms=1e3 * line.round_trip,
        loss=line.loss,
        seed=line.seed,
        rounds=len(outcome.rounds) - ahead,
        ahead=ahead,
        seconds=outcome.seconds,
        command=outcome.command,
        delivered=outcome.counts.get("delivered", 0),
        dropped=outcome.counts.get("dropped", 0),
    )


def _describe(size: Simulation) -> str:
    return (
        f"The default method with {size.n_components} components: {len(size.subjects)} sites with "
        f"{size.subjects[0]} participants each, {size.image_side**2} features, by NVIDIA FLARE "
        "over mutual TLS."
    )


def _show(rows: Sequence[Row], console: Console) -> None:
    groups = cells(rows)
    headings, *lines = table(groups)
    shown = Table(*headings, title="Studies over long lines", title_justify="left")
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    console.print(verdict(groups))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="two minutes, to see that it works; writes nothing"
    )
    parser.add_argument("--repetitions", type=int, default=3, help="studies over each line, 3 by default")
    parser.add_argument("--redraw", action="store_true", help="page and figure anew, from the CSV")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def _run(given: argparse.Namespace, console: Console) -> None:
    path = given.output / f"{NAME}.csv"
    if given.quick:
        _show(list(measure(SMALL, QUICK, 1, console)), console)
        return
    if not given.redraw:
        rows = list(measure(SIZE, LINES, given.repetitions, console))
        given.output.mkdir(parents=True, exist_ok=True)
        write_csv(path, rows)
        stamp(path.with_suffix(""), COMMAND)
    rows = read_csv(path)
    _show(rows, console)
    write_page(path, _describe(SIZE), cells(rows), f"{COMMAND}, {origin(path.with_suffix(''))}")
    if given.output == RESULTS:
        write_table(DOCUMENTED, cells(rows))
    console.print(f"written: {path.with_suffix('.md')}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and write the results unless it was quick."""
    parser, console = _parser(), Console()
    given = parser.parse_args(arguments)
    if not 1 <= given.repetitions <= 20:
        parser.error(f"--repetitions must lie between 1 and 20, got {given.repetitions}")
    # As after an interrupt, everything that was started is stopped.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run(given, console)
    except CapedjicaError as error:
        console.print(f"error: {error}", markup=False)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted; all namespaces and processes were removed")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
