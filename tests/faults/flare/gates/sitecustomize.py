"""Lets a test hold a party, in whatever process it runs, at a chosen moment of the protocol.

Python imports this in every process whose PYTHONPATH has this folder. Nothing is changed but the time: while
the file ``PARTY/MOMENT.hold`` exists in the folder of gates, the party waits there, and says so by
``PARTY/MOMENT.reached``. Moments of a site are ``Join`` and the tags of the aggregator's messages, before
they are handled and, with ``-done``, before the answer leaves; of the server, the means about to be written
down. Sites also write there what an audit needs (:mod:`keeping`).
"""

from __future__ import annotations

import os
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
    _keep_parts()


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


after_import(AGGREGATOR, gate_journal)
after_import(SITE, _gate_site)
