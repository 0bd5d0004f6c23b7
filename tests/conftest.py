"""How tests run: properties never against the clock, and the same cases every time where CI is set."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Workers share the cores: threads of one would only wait for those of another, and that takes most of the
# time (nilearn's CanICA of a small study: 34 s of the processor with two threads, 8 s with one). Set before
# numpy is loaded, and inherited by processes that tests start; tests of threads choose their number.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _library in ("OPENBLAS", "OMP", "MKL", "NUMBA"):
        os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

settings.register_profile("capedjica", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("capedjica")

# Files that take longest go first, so that no worker is left with one of them at the end; in the order of
# their times in a run of 2026-11-18 (docs/development/slow-tests.md).
LONGEST = (
    "web/test_site_pages.py",
    "federated/test_flare_run.py",
    "one_machine/test_every_analysis.py",
    "site/agent/test_agent_process.py",
    "docs/guides/test_guide_scans.py",
    "docs/test_docs.py",
    "web/test_browser.py",
    "attacks/views/test_pipeline_audit.py",
    "faults/test_rotation_kill.py",
    "report/test_report_browser.py",
    "benchmarks/test_utility.py",
    "attacks/flare/test_replaced_carrier.py",
    "faults/flare/test_flare_kills.py",
    "site/agent/test_owner.py",
    "one_machine/test_local_run.py",
    "one_machine/bids/test_bids_app.py",
    "federated/test_every_analysis_on_flare.py",
    "faults/test_run_kill.py",
    "federated/test_kits.py",
    "one_machine/test_run_memory.py",
    "attacks/flare/test_boundary.py",
    "paper/test_vary_figures.py",
    "faults/test_ledger_kill.py",
    "one_machine/bids/test_bids_export.py",
    "coordinator/test_prediction.py",
    "faults/flare/test_flare_lies.py",
    "attacks/views/test_outside_view.py",
    "faults/test_run_storage.py",
    "attacks/flare/test_forged_replies.py",
    "web/test_server.py",
    "faults/flare/test_flare_outages.py",
    "faults/flare/test_soak.py",
    "federated/test_flare_full.py",
    "attacks/flare/test_flare_fuzz.py",
    "web/test_flare_story.py",
)


@pytest.fixture
def cli(monkeypatch, capsys):
    """The command line, run in this process: a function of its arguments."""
    from tests.support.in_process import run_main

    return lambda *arguments: run_main(arguments, monkeypatch, capsys)


def pytest_collection_modifyitems(items):
    """Put the tests of the longest files first; the others stay in their order."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONGEST)}
    assert all(path.exists() for path in rank), "LONGEST names files that are no more"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
