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

EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"
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
            "-n",
            "2",
            "--dist",
            "loadfile",
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
    files: dict[str, list[float]] = defaultdict(list)
    for case in suite.iter("testcase"):
        files[case.get("classname", "").replace(".", "/")].append(float(case.get("time", 0)))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    passed = int(suite.get("tests", 0)) - failed - skipped
    lines = [
        " ".join(["python -m tests.evidence", *sys.argv[1:]])
        + f", {time.strftime('%Y-%m-%d', time.gmtime())}, exit code {code}",
        f"{passed} passed, {failed} failed, {skipped} skipped in {float(suite.get('time', 0)):.0f} s",
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "",
        f"{'tests':>6} {'seconds':>8}  file",
    ]
    bad = [
        case
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    lines[2:2] = [f"failed: {case.get('classname')}::{case.get('name')}" for case in bad]
    lines += [f"{len(times):6d} {sum(times):8.1f}  {name}" for name, times in sorted(files.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
