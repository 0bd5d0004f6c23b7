"""Rows, interleaved measurement, and the evidence written from them."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.evidence.stamps import stamp

ROOT: Final = Path(__file__).resolve().parent.parent
EVIDENCE: Final = ROOT / "docs" / "evidence"
EVIDENCE_WIDTH: Final = 150
# A pause, in case worker threads of the one measured before still keep a core busy.
SETTLE: Final = 0.1

Measure = Callable[[], float]
Relation = Literal["as fast", "as much"]


@dataclass(frozen=True)
class Row:
    """One number beside that of a peer measured in the same run.

    Parameters
    ----------
    what : str
        What was measured.
    ours, peer : float
        Both numbers, in ``unit``; the peer's is None, and ``peer_name`` says why, where it could not be run.
    peer_name : str
        Whom or what ours is compared with.
    unit : str
        Unit of both.
    ratio : float or None
        How many times as fast ours is, or how many times as much it takes, as ``relation`` says.
    relation : str
        "as fast" or "as much".
    target : float or None
        The ratio aimed at: at least this many times as fast, or less than this many times as much.
    """

    what: str
    ours: float
    peer: float | None
    peer_name: str
    unit: str
    ratio: float | None
    relation: Relation
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None without a target or a peer."""
        if self.target is None or self.ratio is None:
            return None
        return self.ratio >= self.target if self.relation == "as fast" else self.ratio < self.target


@dataclass(frozen=True)
class Section:
    """The rows of one section, what a reader must know to judge them, and by which command they are made."""

    name: str
    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    command: str = ""


def timed(work: Callable[[], object], times: int = 1) -> Measure:
    """Return a measurement: the seconds one call of ``work`` takes, on average over ``times`` in a row."""

    def measure() -> float:
        time.sleep(SETTLE)
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times

    return measure


def interleaved(ours: Measure, peer: Measure, repetitions: int) -> tuple[float, float]:
    """Return the medians of both measurements, taken in turn so that a busy moment hits both."""
    pairs = [(ours(), peer()) for _ in range(repetitions)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def duration_row(
    what: str, ours: float, peer: float | None, peer_name: str, target: float | None = None
) -> Row:
    """Compare two durations, given in seconds and shown in milliseconds."""
    ratio = None if peer is None else peer / ours
    shown = None if peer is None else 1e3 * peer
    return Row(what, 1e3 * ours, shown, peer_name, "ms", ratio, "as fast", target)


def rate_row(what: str, ours: float, peer: float | None, peer_name: str, target: float | None = None) -> Row:
    """Compare two rates, given in items a second and shown in millions."""
    ratio = None if peer is None else ours / peer
    shown = None if peer is None else peer / 1e6
    return Row(what, ours / 1e6, shown, peer_name, "M/s", ratio, "as fast", target)


def amount_row(
    what: str, ours: float, peer: float, peer_name: str, unit: str, target: float | None = None
) -> Row:
    """Compare two amounts of which less is better."""
    return Row(what, ours, peer, peer_name, unit, ours / peer, "as much", target)


def machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    packages = {name: version(name) for name in ("numpy", "numba", "cryptography")}
    return {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **packages,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def show(section: Section, console: Console) -> None:
    """Print a section as a table with its notes."""
    table = Table(title=section.title, title_justify="left")
    for heading in ("measured", "ours", "peer", "", "ratio", "target", "compared with"):
        table.add_column(heading, justify="left" if heading in ("measured", "compared with") else "right")
    for row in section.rows:
        table.add_row(*_cells(row))
    console.print(table)
    for note in section.notes:
        console.print(f"  {note}", markup=False, highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{_number(row.ratio)}x {row.relation}"
    wanted = "" if row.target is None else f"{'>=' if row.relation == 'as fast' else '<'} {row.target:g}x"
    verdict = {True: " met", False: " MISSED", None: ""}[row.met]
    return (
        escape(row.what),
        _number(row.ours),
        "-" if row.peer is None else _number(row.peer),
        row.unit,
        ratio,
        wanted + verdict,
        escape(row.peer_name),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def write_evidence(section: Section, folder: Path = EVIDENCE) -> None:
    """Write a section as JSON, for programs, and as text, for people."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"bench-{section.name}"
    command = section.command or f"python -m benchmarks {section.name}"
    facts = {"command": command, "commit": stamp(base, command), "machine": machine()}
    rows = [{**asdict(row), "met": row.met} for row in section.rows]
    record = {**facts, "title": section.title, "rows": rows, "notes": list(section.notes)}
    base.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    with base.with_suffix(".txt").open("w") as file:
        console = Console(file=file, width=EVIDENCE_WIDTH)
        console.print(f"$ {command}\n{facts['commit']}", highlight=False)
        console.print(", ".join(f"{key} {value}" for key, value in machine().items()))
        show(section, console)
