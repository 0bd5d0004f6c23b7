"""The code as it is against an earlier commit, in turn: ``python -m benchmarks.federated --against TREE``.

Each measurement is a process of its own that finds the code of one tree only; the earlier one is measured by
its own benchmark.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.framework import ROOT, Row, Section, amount_row, interleaved

_PROGRAM: Final = ROOT / "benchmarks" / "trees" / "one_tree.py"
# What an earlier benchmark asks the environment for.
_PROBES: Final = {"CAPEDJICA_BENCHMARK_PROBES": "20"}
MOST_ONLINE: Final = 2.5
MOST_STUDY: Final = 1.2


def run(console: Console, before: Path, rounds: int) -> Section:
    """Measure both trees in turn, so that a busy moment hits both."""
    commit = _commit(before)
    rows: list[Row] = []
    for what, kind, unit, factor, most in (
        ("online part of a release, 4 sites", "online", "ms", 1e3, MOST_ONLINE),
        ("a whole study, 4 x 64 people, 20 components", "study", "s", 1.0, MOST_STUDY),
    ):
        console.print(f"{what}: {rounds} times each ...")
        now, then = interleaved(
            lambda kind=kind: measured(ROOT, kind),  # type: ignore[misc]
            lambda kind=kind: measured(before, kind),  # type: ignore[misc]
            rounds,
        )
        rows.append(amount_row(what, factor * now, factor * then, f"commit {commit}", unit, target=most))
    return Section(
        "federated-before",
        "Studies across processes by NVIDIA FLARE, against an earlier commit of capedjica",
        rows,
        (
            f"Medians of {rounds} runs of each tree, in turn; of a run's releases the median as well.",
            "Online: the paper's method, releases of 420 values, less what the slowest site computes.",
            "A study: the default method, from when all sites are connected until the command has ended.",
        ),
        f"git worktree add TREE {commit}; python -m benchmarks.federated --against TREE --rounds {rounds}",
    )


def measured(tree: Path, what: str) -> float:
    """Return what the code of a tree takes, in seconds: the median of what was measured in one process."""
    tree = tree.absolute()
    # The clock is for releases; a whole study is run as it is.
    path = [*([tree / "benchmarks" / "clock"] if what == "online" else []), tree, tree / "src"]
    done = subprocess.run(
        [sys.executable, "-P", str(_PROGRAM), what],
        cwd=tree,
        env={**os.environ, **_PROBES, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return float(statistics.median(json.loads(done.stdout.splitlines()[-1])))


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
