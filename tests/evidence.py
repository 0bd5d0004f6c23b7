"""Run the whole test suite, long cases included, and write what was seen: ``python -m tests.evidence``.

A part of it, under a name of its own: ``python -m tests.evidence NAME`` and what pytest is to be told. A run
that does not come to its end is summarised as far as it got, and the summary says so.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.support import recording
from tests.support.places import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
N_SLOWEST = 40
PACKAGES = (
    "capedjica",
    "numpy",
    "scipy",
    "numba",
    "cryptography",
    "msgspec",
    "nvflare",
    "pytest",
    "hypothesis",
)


@dataclass
class Case:
    """One test: its worst outcome over setup, call and teardown, and their time."""

    name: str
    outcome: str = "passed"
    reason: str = ""
    seconds: float = 0.0

    @property
    def file(self) -> str:
        return self.name.split("::")[0].removesuffix(".py")


def main() -> int:
    named = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    report = EVIDENCE / f"{sys.argv[1] if named else 'test-full'}.txt"
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        record.touch()
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.recording"]
        # Three on two cores: tests of FLARE mostly wait. pytest-xdist can wait forever for a worker that it
        # starts in place of a lost one.
        command += ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
        command += ["-m", "", *sys.argv[2 if named else 1 :]]
        start = time.monotonic()
        try:
            code = subprocess.run(
                command, check=False, env=os.environ | {recording.VARIABLE: str(record)}
            ).returncode
        except KeyboardInterrupt:
            code = 130
        lines = record.read_text(encoding="utf-8").splitlines()
        report.write_text(summary(cases_of(lines), code, time.monotonic() - start), encoding="utf-8")
    print(f"wrote {report.relative_to(Path.cwd())}")
    return code


def cases_of(lines: Iterable[str]) -> list[Case]:
    """Return the tests of a record; a test that fails in any phase has failed."""
    cases: dict[str, Case] = {}
    for line in lines:
        phase = json.loads(line)
        case = cases.setdefault(phase["test"], Case(phase["test"]))
        case.seconds += phase["seconds"]
        if phase["outcome"] == "failed":
            case.outcome = "failed"
        elif phase["outcome"] == "skipped" and case.outcome == "passed":
            case.outcome, case.reason = "xfail" if phase["expected"] else "skip", phase["reason"]
    return list(cases.values())


def summary(cases: list[Case], code: int, seconds: float) -> str:
    counts = {kind: sum(case.outcome == kind for case in cases) for kind in ("passed", "failed")}
    n_skipped = len(cases) - sum(counts.values())
    ended = "" if code in (0, 1) else "; the run did not come to its end"
    lines = [
        " ".join(["python -m tests.evidence", *sys.argv[1:]])
        + f", {time.strftime('%Y-%m-%d', time.gmtime())}, exit code {code}{ended}",
        f"{counts['passed']} passed, {counts['failed']} failed, {n_skipped} skipped in {seconds:.0f} s",
        *(f"failed: {case.name}" for case in cases if case.outcome == "failed"),
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "",
        "skipped, or failed as expected (xfail):",
        *skipped(cases),
        "",
        f"{'tests':>6} {'seconds':>8}  file",
        *files(cases),
        "",
        f"{'seconds':>15}  the {N_SLOWEST} slowest tests",
        *slowest(cases),
    ]
    return "\n".join(lines) + "\n"


def skipped(cases: list[Case]) -> list[str]:
    """Return what was skipped, and why: what a machine does not allow was not seen to work."""
    left_out = [case for case in cases if case.outcome in ("skip", "xfail")]
    return [f"  {case.name}: {case.outcome}, {case.reason}" for case in left_out] or ["  none"]


def files(cases: list[Case]) -> list[str]:
    times: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        times[case.file].append(case.seconds)
    return [f"{len(own):6d} {sum(own):8.1f}  {name}" for name, own in sorted(times.items())]


def slowest(cases: list[Case]) -> list[str]:
    longest = sorted(cases, key=lambda case: case.seconds, reverse=True)[:N_SLOWEST]
    return [f"{case.seconds:15.1f}  {case.name}" for case in longest]


if __name__ == "__main__":
    sys.exit(main())
