"""One workload in a fresh process, after a small one that loads and compiles what the workload needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.framework import ROOT
from benchmarks.scale.workloads import Cost, StudySize, run_study, run_sum
from capedjica.errors import InputError

WARM_UP: Final = StudySize(sites=2, participants=4, components=2, length=20, rotations=2, features=(3, 3, 3))
# A workload that takes more processor time, in seconds, is measured once.
SHORT: Final = 2.0
REPETITIONS: Final = 3

Run = Callable[[int], Cost]


@dataclass(frozen=True)
class Row:
    """One workload, in one process.

    Attributes
    ----------
    size : int
        On its axis.
    seconds, cpu, site_cpu, site_bytes, total_bytes
        See :class:`benchmarks.scale.workloads.Cost`.
    before, peak : int
        Memory of the process before the workload, and the most that it had at once, in bytes.
    load : float
        Of the machine, over the last minute.
    """

    size: int
    seconds: float
    cpu: float
    site_cpu: float
    site_bytes: float
    total_bytes: float
    before: int
    peak: int
    load: float

    @property
    def memory(self) -> int:
        """What the workload added, in bytes; at least a page."""
        return max(self.peak - self.before, os.sysconf("SC_PAGE_SIZE"))


def measured(run: Run, size: int) -> Row:
    """Run a workload in this process."""
    run_study(WARM_UP)
    run_sum(3, 8)
    with suppress(OSError):  # the peak so far is forgotten; where that is refused, it is counted
        Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    cost = run(size)
    return Row(size, **asdict(cost), before=before, peak=_memory("VmHWM"), load=os.getloadavg()[0])


def _memory(what: str) -> int:
    """Return an entry of the process status in bytes; not ru_maxrss, which a child takes over."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def in_fresh_processes(name: str, size: int) -> list[Row]:
    """Return the rows of a workload; short ones are repeated."""
    rows = [_in_fresh_process(name, size)]
    while rows[0].cpu < SHORT and len(rows) < REPETITIONS:
        rows.append(_in_fresh_process(name, size))
    return rows


def _in_fresh_process(name: str, size: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.scale", "--measure", name, str(size)]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise InputError(f"{name} of size {size} could not be measured: exit code {done.returncode}")
    return Row(**json.loads(done.stdout))
