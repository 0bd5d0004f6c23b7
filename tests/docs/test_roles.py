"""A process of one role loads nothing of the other, by whatever way modules are imported."""

import subprocess
import sys

import pytest

SITE = [
    "capedjica.cli.site.commands",
    "capedjica.cli.site.connection",
    "capedjica.cli.site.ledger",
    "capedjica.site.check",
    "capedjica.site.consent.withdrawal",
    "capedjica.site.agent.serving",
    "capedjica.site.flare.relay",
    "capedjica.site.flare.starting",
    "capedjica.site.flare.status",
    "capedjica.site.results.page",
]
COORDINATOR = [
    "capedjica.coordinator.flare.dispatcher",
    "capedjica.coordinator.flare.provisioning",
    "capedjica.coordinator.flare.relay",
    "capedjica.coordinator.flare.remote_run",
    "capedjica.coordinator.flare.status",
    "capedjica.coordinator.new_study",
    "capedjica.coordinator.planning.plan_text",
    "capedjica.coordinator.run.report",
]
NOT_AT_A_SITE = (
    "capedjica.coordinator",
    "capedjica.mechanisms.aggregator",
    "capedjica.one_machine",
    "capedjica.securesum.aggregator",
)
NOT_AT_THE_COORDINATOR = (
    "capedjica.mechanisms.site",
    "capedjica.one_machine",
    "capedjica.privacy.ledger",
    "capedjica.report.local",
    "capedjica.securesum.site",
    "capedjica.site",
)


@pytest.mark.parametrize(
    ("loaded", "foreign"),
    [(SITE, NOT_AT_A_SITE), (COORDINATOR, NOT_AT_THE_COORDINATOR)],
    ids=["site", "coordinator"],
)
def test_a_process_of_one_role_loads_nothing_of_the_other(loaded, foreign):
    """Commands of a site are loaded as parts of the whole command line, so they are looked at without it."""
    program = "import importlib, sys, types; "
    program += "sys.modules['capedjica.cli'] = cli = types.ModuleType('capedjica.cli'); "
    program += "import capedjica; cli.__path__ = [capedjica.__path__[0] + '/cli']; "
    program += "[importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, *loaded], capture_output=True, text=True, check=True
    )
    there = done.stdout.split()
    assert set(loaded) <= set(there)
    assert [name for name in there if name.startswith(foreign)] == []
