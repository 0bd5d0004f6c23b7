"""Lets a test hold a party, in whatever process it runs, at a chosen moment of the protocol.

Python imports this in every process whose PYTHONPATH has this folder. Nothing is changed but the time: while
the file ``PARTY/MOMENT.hold`` exists in the folder of gates, the party waits there, and says so by
``PARTY/MOMENT.reached``. Moments of a site are ``Join`` and the tags of the aggregator's messages, before
they are handled and, with ``-done``, before the answer leaves; of the ``server``, that is of the process that
runs the study, the means about to be written down. Sites also write there what an audit needs
(:mod:`keeping`).

Two faults cannot be made from outside. A site with a file ``SITE/Status.lie`` says in its greetings what is
in there. A carrier that is started with CAPEDJICA_TEST_MEMORY has so little memory, and takes all of it as
soon as there is a file ``flood`` in its own folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from benchmarks.after_import import AGGREGATOR, SITE, after_import


def wait_at(party: str, moment: str) -> None:
    place = Path(os.environ["CAPEDJICA_TEST_GATES"]) / party
    hold = place / f"{moment}.hold"
    if hold.exists():
        (place / f"{moment}.reached").touch()
    while hold.exists():
        time.sleep(0.02)


def _moment(data: bytes) -> str:
    import msgspec

    message = msgspec.msgpack.decode(data)
    # The sixth of an Ask is its slot's plan, which begins with the stage.
    return f"Ask-{message[6][0]}" if message[0] == "Ask" else str(message[0])


def _gate_site(party) -> None:
    join, handle = party.SiteParty._join, party.SiteParty.handle

    def gated_join(self):
        wait_at(self._home.settings.name, "Join")
        return join(self)

    def gated_handle(self, data: bytes) -> bytes:
        name, moment = self._home.settings.name, _moment(data)
        wait_at(name, moment)
        reply = handle(self, data)
        wait_at(name, f"{moment}-done")
        return reply

    party.SiteParty._join, party.SiteParty.handle = gated_join, gated_handle
    _let_lie()
    _keep_parts()


def _let_lie() -> None:
    import msgspec

    from capedjica.mechanisms.site.answering import Site

    true_status = Site._present_status

    def status(self):
        said, lie = true_status(self), Path(os.environ["CAPEDJICA_TEST_GATES"]) / self.name / "Status.lie"
        return msgspec.structs.replace(said, **json.loads(lie.read_text())) if lie.exists() else said

    Site._present_status = status


def gate_journal(journal) -> None:
    """Hold the aggregator before it writes down a mean."""
    append = journal.Journal.append

    def gated(self, record) -> None:
        wait_at("server", f"Mean-{record.stage}")
        append(self, record)

    journal.Journal.append = gated


def _keep_parts() -> None:
    from keeping import keep

    keep(Path(os.environ["CAPEDJICA_TEST_GATES"]))


def _limit_memory(process) -> None:
    limit = process.limit_resources
    process.limit_resources = lambda _: limit(int(os.environ["CAPEDJICA_TEST_MEMORY"]))


def _flood_when_told() -> None:
    """Take memory until there is none, and die of that: a carrier's home is its own folder."""
    home, began, held = Path(os.environ["HOME"]), time.time(), []
    # One that is started again has had its flood.
    while not ((home / "flood").exists() and (home / "flood").stat().st_mtime > began):
        time.sleep(0.02)
    try:
        while True:
            held.append(bytearray(1 << 22))
    except MemoryError:
        taken = len(held)
        held.clear()
        (home / f"flooded-{os.getpid()}").write_text(str(taken << 22))
    os._exit(1)


if "CAPEDJICA_TEST_MEMORY" in os.environ:
    after_import("capedjica.tools.confinement.process", _limit_memory)
    if any(word.startswith("nvflare.private") for word in sys.orig_argv):
        threading.Thread(target=_flood_when_told, daemon=True).start()
after_import(AGGREGATOR, gate_journal)
after_import(SITE, _gate_site)
