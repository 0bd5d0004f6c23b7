"""Run the whole test suite, long cases included, and write what was seen: ``python -m tests.evidence``."""

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

REPORT = Path(__file__).parent.parent / "docs" / "evidence" / "test-full.txt"
PACKAGES = ("capedjica", "numpy", "scipy", "numba", "cryptography", "msgspec", "pytest", "hypothesis")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "-m",
            "",
            f"--junitxml={results}",
            *sys.argv[1:],
        ]
        code = subprocess.run(command, check=False).returncode
        REPORT.write_text(summary(ET.parse(results).getroot(), code), encoding="utf-8")
    print(f"wrote {REPORT.relative_to(Path.cwd())}")
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
    lines += [f"{len(times):6d} {sum(times):8.1f}  {name}" for name, times in sorted(files.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
