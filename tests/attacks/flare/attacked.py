"""What tests share that attack real processes of FLARE: a server without a study, and parts added to it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from capedjica.coordinator.flare.carrier import Carrier
from capedjica.coordinator.flare.carrier_messages import Order
from capedjica.coordinator.flare.transport import Courier, Patience, Send
from capedjica.flare import processes
from capedjica.flare.kit import write_json
from capedjica.mechanisms.aggregator.driving import Exchange
from capedjica.mechanisms.contract import Contract
from capedjica.site.flare.starting import programs
from capedjica.tools.confinement.carrier import Confinement
from tests.federated.consortium import Consortium
from tests.support.places import ROOT

NOTHING = Confinement("none", None, None, "nothing, for a test")
# For parties that run programs of this folder.
REACHABLE = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# No test depends on how long anything takes; this only ends those in which something never happens.
_NEVER = 300.0


def soon(get: Callable, what: str):
    """Return what a function returns once that is anything."""
    until = time.monotonic() + _NEVER
    while not (got := get()):
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.1)
    return got


@contextmanager
def serving(parties: Consortium) -> Iterator[Carrier]:
    """Have the server of a study, as the product starts it, with nobody who conducts the study."""
    carrier = Carrier(parties.federation, None, lambda *_: None, lambda: None)
    with carrier.running(parties.folder / "run"):
        carrier.order(Order("sites"))
        yield carrier


def insisting(contract: Contract, send: Send) -> Exchange:
    """Return the exchange of an aggregator that asks on and on who refused, and nobody who is invented."""

    def exchange(asked):
        known = {name: asked[name] for name in contract.roster.names if name in asked}
        return Courier(contract, send, Patience(silence=60.0)).exchange(known)

    return exchange


def connected(carrier: Carrier) -> set[str]:
    """Return the sites that the server knows, those included that left a moment ago."""
    return set(carrier.order(Order("sites")).heard)


def start_unconfined(parties: Consortium, name: str) -> None:
    """Start a site without its boundary."""
    home, kit = parties.home(name), parties.kit(name)
    processes.start(kit.path, programs(home, kit, NOTHING))


def add_part(workspace: Path, kind: str, arguments: dict) -> None:
    """Let a party, by its own settings of FLARE, run a part of its own."""
    file = workspace / "local" / "resources.json"
    settings = json.loads(file.read_text())
    path = f"tests.attacks.flare.{kind}"
    settings["class_allow_list"] += [path]
    settings["components"].append({"id": kind, "path": path, "args": arguments})
    write_json(file, settings)
