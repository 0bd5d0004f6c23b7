"""Table, page and figure of studies over long lines."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from matplotlib.figure import Figure

from benchmarks.framework import machine
from benchmarks.utility.shared.figures import INK
from benchmarks.utility.shared.report import markdown, write_figure
from capedjica.errors import InputError
from capedjica.report.pictures.figures import COLOURS

# The time of a study, as a multiple of theory, is to stay below this.
TARGET: Final = 1.5
# Around the table in the documentation.
BEGIN: Final = "<!-- table -->"
END: Final = "<!-- end of table -->"
HEADINGS: Final = (
    "round trip",
    "loss",
    "runs",
    "rounds",
    "theory",
    "measured",
    "overhead",
    "worst",
    "line alone",
    "dropped",
    "whole command",
)


@dataclass(frozen=True)
class Row:
    """One study.

    Attributes
    ----------
    round_trip_ms, loss, seed : float and int
        The line.
    rounds : int
        Exchanges that the aggregator waited for.
    ahead : int
        Exchanges made meanwhile, to prepare masks.
    seconds : float
        From the first question to the last answer.
    command : float
        The whole run, from the command to the results.
    delivered, dropped : int
        Packets between the machines, during the whole run.
    """

    round_trip_ms: float
    loss: float
    seed: int
    rounds: int
    ahead: int
    seconds: float
    command: float
    delivered: int
    dropped: int


@dataclass(frozen=True)
class Cell:
    """All studies over one kind of line, beside theory: rounds times delay, and the time without delay."""

    rows: Sequence[Row]
    undelayed: float

    @property
    def delay(self) -> float:
        """Seconds that the rounds take on the line alone."""
        return median(row.rounds for row in self.rows) * self.rows[0].round_trip_ms / 1e3

    @property
    def theory(self) -> float:
        """Seconds in theory."""
        return self.delay + self.undelayed

    @property
    def seconds(self) -> float:
        """Median of what was measured."""
        return median(row.seconds for row in self.rows)

    @property
    def overhead(self) -> float:
        """Measured time as a multiple of theory."""
        return self.seconds / self.theory

    @property
    def worst(self) -> float:
        """The same of the slowest study."""
        return max(row.seconds for row in self.rows) / self.theory

    @property
    def of_the_line(self) -> float | None:
        """Time that the line adds, as a multiple of rounds times delay: the harder measure."""
        return (self.seconds - self.undelayed) / self.delay if self.delay else None


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Group studies by line, and put each group beside theory."""
    undelayed = [row.seconds for row in rows if row.round_trip_ms == 0 and row.loss == 0]
    if not undelayed:
        raise InputError("there is no study without delay to compare with")
    lines = dict.fromkeys((row.round_trip_ms, row.loss) for row in rows)
    grouped = [[row for row in rows if (row.round_trip_ms, row.loss) == line] for line in lines]
    return [Cell(group, median(undelayed)) for group in grouped]


def table(groups: Sequence[Cell]) -> list[list[str]]:
    """Return the lines of the table, headings first."""
    return [list(HEADINGS), *(_line(cell) for cell in groups)]


def _line(cell: Cell) -> list[str]:
    first, line = cell.rows[0], cell.of_the_line
    return [
        f"{first.round_trip_ms:g} ms",
        f"{first.loss:.0%}",
        f"{len(cell.rows)}",
        f"{median(row.rounds for row in cell.rows):g}",
        f"{cell.theory:.2f} s",
        f"{cell.seconds:.2f} s",
        f"{cell.overhead:.2f}",
        f"{cell.worst:.2f}",
        "-" if line is None else f"{line:.2f}",
        f"{median(row.dropped for row in cell.rows):g}",
        f"{median(row.command for row in cell.rows):.1f} s",
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write all studies."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for row in rows:
            values = asdict(row).items()
            writer.writerow(
                {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in values}
            )


def read_csv(path: Path) -> list[Row]:
    """Read the studies of an earlier run."""
    if not path.exists():
        raise InputError(f"there is no {path} to draw from: run the benchmark without --redraw")
    with open(path, newline="", encoding="utf-8") as file:
        return msgspec.convert(list(csv.DictReader(file)), list[Row], strict=False)


def verdict(groups: Sequence[Cell]) -> str:
    """Say whether the target was met, by the median and by the slowest study."""
    delayed = [cell for cell in groups if cell.delay]
    middle, worst = max(cell.overhead for cell in delayed), max(cell.worst for cell in delayed)
    met = "met" if middle < TARGET else "MISSED"
    return (
        f"The largest overhead is {middle:.2f} by the median ({met}: below {TARGET:g}) and {worst:.2f} in "
        "the slowest study."
    )


def write_page(path: Path, study: str, groups: Sequence[Cell], command: str) -> None:
    """Write the page and its figure beside the CSV."""
    facts = machine()
    write_figure(path, draw(groups))
    page = path.with_suffix(".md")
    page.write_text(
        f"# A study over long lines\n\n{study} The server and each site are in a network namespace of their "
        "own, joined by a relay that delays every packet by half the round-trip time and drops some at "
        "random, in both directions.\n\n"
        "*Theory* is the number of rounds times the round-trip time, plus the time of the same study without "
        "delay and loss (median). *Rounds* are those that the aggregator waits for. *Overhead* is the "
        "measured time as a multiple of theory; *line alone* leaves out the time without delay: "
        "(measured - undelayed) / (rounds × round trip). Times are from the first question to the last "
        f"answer; the last column is the whole command, with the start of the server and of FLARE's job.\n\n"
        f"{verdict(groups)}\n\n[Figure]({path.stem}.svg), [every run]({path.stem}.csv).\n\n"
        f"{_markdown(groups)}\n\nMade by `{command}`, capedjica {version('capedjica')}, {facts['cpu']}, "
        f"{facts['cores']} cores, load {facts['load']}. Losses are seeded, but their effect on a study "
        "depends on the order of packets, which differs between runs.\n",
        encoding="utf-8",
    )


def write_table(page: Path, groups: Sequence[Cell]) -> None:
    """Replace the table in a page of the documentation."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(f"{BEGIN}\n")
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{_markdown(groups)}\n\n{END}{after}", encoding="utf-8")


def _markdown(groups: Sequence[Cell]) -> str:
    headings, *lines = table(groups)
    return markdown([headings, ["---"] * len(headings), *lines])


def draw(groups: Sequence[Cell]) -> Figure:
    """Draw theory and every study, by line."""
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for place, cell in enumerate(groups):
        rounds = axis.bar(place, cell.delay, 0.55, bottom=cell.undelayed, color=COLOURS[4])
        base = axis.bar(place, cell.undelayed, 0.55, color="#BBBBBB")
        (target,) = axis.plot([place - 0.3, place + 0.3], [TARGET * cell.theory] * 2, "--", color=COLOURS[5])
        seconds = [row.seconds for row in cell.rows]
        (dots,) = axis.plot([place] * len(seconds), seconds, "o", color=INK, markersize=5, fillstyle="none")
    names = [f"{cell.rows[0].round_trip_ms:g} ms, {cell.rows[0].loss:.0%}" for cell in groups]
    axis.set_xticks(range(len(groups)), names)
    axis.set(xlabel="round-trip time, packets lost", ylabel="seconds")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(
        [dots, target, rounds, base],
        ["measured", f"{TARGET:g} times theory", "theory: rounds × round trip", "theory: without delay"],
        frameon=False,
        fontsize=8,
        loc="upper left",
    )
    return figure
