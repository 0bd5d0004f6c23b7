"""Time to start: an import of the estimator, and the help of the command line, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from benchmarks.framework import Measure, Row, Section, amount_row, interleaved, timed

REPETITIONS: Final = 15
PEER: Final = "import sklearn.decomposition"
OURS: Final = {
    "from capedjica import CapeDJICA": (("-c", "from capedjica import CapeDJICA"), 1.2),
    "capedjica --help": (("-m", "capedjica", "--help"), 0.2),
}


def run(console: Console) -> Section:
    """Measure both against the import of a library that most users of either know, in turns."""
    rows = [_row(what, _process(arguments), target) for what, (arguments, target) in OURS.items()]
    return Section(
        "startup",
        "Time to start: a fresh process, from its start to its end",
        rows,
        ("Bytecode is compiled before; the start of Python itself is part of both numbers.",),
    )


def _row(what: str, ours: Measure, target: float) -> Row:
    peer = _process(("-c", PEER))
    ours()
    peer()
    pair = interleaved(ours, peer, REPETITIONS)
    return amount_row(what, pair[0], pair[1], PEER, "s", target)


def _process(arguments: Sequence[str]) -> Measure:
    command = [sys.executable, *arguments]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
