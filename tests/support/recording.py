"""A pytest plugin that appends the outcome of every test to a file as it is known.

A run that is interrupted, or whose workers are lost, leaves what it had seen. Loaded by ``tests.evidence``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "CAPEDJICA_TEST_RECORD"


def pytest_runtest_logreport(report: Any) -> None:
    """Append one phase (setup, call or teardown) of one test; workers leave it to their controller."""
    reason = ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    _append(
        test=report.nodeid,
        phase=report.when,
        outcome=report.outcome,
        expected=hasattr(report, "wasxfail"),
        reason=" ".join(str(reason).split()),
        seconds=report.duration,
    )


def pytest_collectreport(report: Any) -> None:
    """Append a file that could not be read as a test that failed."""
    if report.failed:
        _append(test=report.nodeid, phase="teardown", outcome="failed", seconds=0.0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    """Append the names of all tests, as a worker found them."""
    _append(collected=list(ids))


def _append(**line: Any) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or VARIABLE not in os.environ:
        return
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as record:
        record.write(json.dumps(line) + "\n")
