"""How tests run: properties never against the clock, and the same cases every time where CI is set."""

import os

import pytest
from hypothesis import settings

settings.register_profile("capedjica", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("capedjica")

# Files that take longest go first, so that no worker is left with one of them at the end.
LONGEST = (
    "faults/flare/test_flare_kills.py",
    "attacks/views/test_pipeline_audit.py",
    "paper/test_vary_figures.py",
    "attacks/flare/test_flare_fuzz.py",
    "faults/flare/test_flare_outages.py",
    "federated/test_flare_run.py",
    "benchmarks/test_utility.py",
    "faults/test_rotation_kill.py",
    "faults/flare/test_soak.py",
    "federated/test_flare_full.py",
    "docs/test_guide_scans.py",
    "faults/test_ledger_kill.py",
    "attacks/views/test_outside_view.py",
    "coordinator/test_prediction.py",
    "faults/test_run_kill.py",
    "attacks/flare/test_flare_trust.py",
    "attacks/flare/test_flare_peers.py",
    "securesum/test_protocol.py",
    "docs/test_docs.py",
    "one_machine/test_demo.py",
    "faults/test_run_storage.py",
    "algorithms/test_kernels.py",
    "report/test_report_browser.py",
    "web/test_flare_story.py",
    "web/test_site_pages.py",
    "web/test_browser.py",
)


@pytest.fixture
def cli(monkeypatch, capsys):
    """The command line, run in this process: a function of its arguments."""
    from tests.support.in_process import run_main

    return lambda *arguments: run_main(arguments, monkeypatch, capsys)


def pytest_collection_modifyitems(items):
    """Put the tests of the longest files first; the others stay in their order."""
    items.sort(key=lambda item: [not item.path.match(end) for end in LONGEST])
