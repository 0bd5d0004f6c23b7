"""A pytest plugin that appends the outcome of every test to a file as it is known.

A run that is interrupted, or whose workers are lost, leaves what it had seen. Loaded by ``tests.evidence``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "CAPEDJICA_TEST_RECORD"


def pytest_runtest_logreport(report: Any) -> None:
    """Append one phase (setup, call or teardown) of one test; workers leave it to their controller."""
    if "PYTEST_XDIST_WORKER" in os.environ or VARIABLE not in os.environ:
        return
    reason = ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    line = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "expected": hasattr(report, "wasxfail"),
        "reason": " ".join(str(reason).split()),
        "seconds": report.duration,
    }
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as record:
        record.write(json.dumps(line) + "\n")
