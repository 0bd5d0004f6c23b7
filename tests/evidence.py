"""Run the whole test suite, long cases included, and write what was seen: ``python -m tests.evidence``.

A part of it, under a name of its own: ``python -m tests.evidence NAME`` and what pytest is to be told.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

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


def main() -> int:
    named = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    report = EVIDENCE / f"{sys.argv[1] if named else 'test-full'}.txt"
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            # Of two cores: tests of FLARE mostly wait.
            "-n",
            "3",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "-m",
            "",
            f"--junitxml={results}",
            *sys.argv[2 if named else 1 :],
        ]
        code = subprocess.run(command, check=False).returncode
        report.write_text(summary(ET.parse(results).getroot(), code), encoding="utf-8")
    print(f"wrote {report.relative_to(Path.cwd())}")
    return code


def summary(root: ET.Element, code: int) -> str:
    suite = root if root.tag == "testsuite" else root[0]
    cases = list(suite.iter("testcase"))
    n_failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    n_skipped = int(suite.get("skipped", 0))
    n_passed = int(suite.get("tests", 0)) - n_failed - n_skipped
    lines = [
        " ".join(["python -m tests.evidence", *sys.argv[1:]])
        + f", {time.strftime('%Y-%m-%d', time.gmtime())}, exit code {code}",
        f"{n_passed} passed, {n_failed} failed, {n_skipped} skipped in {float(suite.get('time', 0)):.0f} s",
        *failed(cases),
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


def file_of(case: ET.Element) -> str:
    return case.get("classname", "").replace(".", "/")


def name_of(case: ET.Element) -> str:
    return f"{file_of(case)}::{case.get('name')}"


def seconds_of(case: ET.Element) -> float:
    return float(case.get("time", 0))


def failed(cases: list[ET.Element]) -> list[str]:
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [f"failed: {name_of(case)}" for case in bad]


def skipped(cases: list[ET.Element]) -> list[str]:
    """Return what was skipped, and why: what a machine does not allow was not seen to work."""
    lines = []
    for case in cases:
        why = case.find("skipped")
        if why is not None:
            kind, reason = (
                why.get("type", "").removeprefix("pytest."),
                " ".join(why.get("message", "").split()),
            )
            lines.append(f"  {name_of(case)}: {kind}, {reason}")
    return lines or ["  none"]


def files(cases: list[ET.Element]) -> list[str]:
    times: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        times[file_of(case)].append(seconds_of(case))
    return [f"{len(own):6d} {sum(own):8.1f}  {name}" for name, own in sorted(times.items())]


def slowest(cases: list[ET.Element]) -> list[str]:
    longest = sorted(cases, key=seconds_of, reverse=True)[:N_SLOWEST]
    return [f"{seconds_of(case):15.1f}  {name_of(case)}" for case in longest]


if __name__ == "__main__":
    sys.exit(main())
