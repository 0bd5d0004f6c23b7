"""The serving loop of the agent: one socket for the carrier, one for the owner."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.flare.kit import check_protocol
from capedjica.flare.link import Channel, Greeting, LinkError, Listener, answer_calls, socket_path
from capedjica.flare.wire import MAX_FRAME
from capedjica.mechanisms.messages import CarrierName
from capedjica.site.agent.owner_commands import OwnersDesk, Standing
from capedjica.site.agent.responder import Desk
from capedjica.site.agent.study_session import SiteParty
from capedjica.site.flare.kits import Kit
from capedjica.site.home import SiteHome
from capedjica.site.run import own_log
from capedjica.tools.log_files import private_log

ROLE: Final = "carrier"
# Interval at which the end of a study is checked.
_LOOK_SECONDS: Final = 0.5
CARRIERS: Final = {
    "user": "a separate user account",
    "landlock": "Landlock, in the same user account",
    "none": "NOTHING: it runs unconfined",
}


_journal: Final = logging.getLogger("capedjica.agent")


class Agent:
    """Serves one carrier at a time.

    ``carrier`` is the confinement of the carrier, ``uid`` the user whose processes may connect as the
    carrier, and ``network`` a description of what keeps this process from the network.
    """

    def __init__(self, home: SiteHome, kit: Kit, carrier: CarrierName, uid: int, network: str) -> None:
        self._network, self._carrier = network, CARRIERS[carrier]
        self._log = private_log(home.settings.name)
        self._party = SiteParty(home, kit.study(), kit.label, kit.path, carrier)
        self._desk = Desk(self._party)
        self._busy = threading.Lock()
        self.over = threading.Event()
        self._asked: float | None = None
        path = socket_path(kit.path, ROLE)
        self._listener = Listener(path, MAX_FRAME, {uid}, self._admit, self._serve, self._report)
        self._owner = OwnersDesk(home, kit.path, self._standing, self._report)
        self._log.info("agent started: %s; the carrier is confined by %s", network, self._carrier)

    def _report(self, line: str) -> None:
        """Report a refused caller in the site's own log and on the console."""
        self._log.warning(line)
        _journal.warning(line)

    def _admit(self, greeting: Greeting) -> str:
        if greeting.role != ROLE:
            return f"this socket is for the carrier, not for {greeting.role[:32]!r}"
        # defence: one-carrier-at-a-time
        if not self._busy.acquire(blocking=False):
            return "another carrier is connected: one at a time"
        return ""

    def _serve(self, channel: Channel, greeting: Greeting) -> None:
        try:
            self._party.connected(greeting.seed)
            answer_calls(channel, self._answer)
        except LinkError as error:
            self._report(f"the connection to the carrier was closed: {error}")
        except Exception:
            self._log.exception("unexpected error")
        finally:
            self._busy.release()
            # Only now: a site that disconnects while the job runs would end it for all sites.
            if self._party.is_over:
                self.over.set()

    def _answer(self, parcel: bytes) -> bytes:
        self._asked = time.monotonic()
        return self._desk.receive(parcel)

    def _standing(self) -> Standing:
        asked = None if self._asked is None else time.monotonic() - self._asked
        return Standing(self._network, self._carrier, self._busy.locked(), asked)

    def close(self) -> None:
        """Accept no more questions and release all resources."""
        self._listener.close()
        self._owner.close()
        self._desk.close()
        self._party.close()
        self._log.info("agent ended")


def serve(network: str, place: str, carrier: CarrierName, uid: str = "") -> bool:
    """Serve until a signal arrives or the study is over; return whether the study is over."""
    if carrier not in CARRIERS:
        raise InputError(f"CARRIER must be one of {', '.join(CARRIERS)}, got {carrier!r}")
    kit = Kit.load(Path(place))
    check_protocol(kit.label.protocol, str(kit.path))
    home = SiteHome.load(kit.path.parents[1])
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with ExitStack() as held:
        held.enter_context(own_log(home))
        _keep_the_console_clean(home)
        agent = Agent(home, kit, carrier, int(uid) if uid else os.getuid(), network)
        held.callback(agent.close)
        while not ended.wait(_LOOK_SECONDS):
            if agent.over.is_set():
                return True
    return False


def _keep_the_console_clean(home: SiteHome) -> None:
    """Print refusals without reasons; text that may name a participant goes only to the site's own log."""
    logging.basicConfig(format="%(message)s", level=logging.CRITICAL)
    _journal.setLevel(logging.INFO)
    # A library may name the file of a scan in a warning; captured as a low-level log record, it is discarded.
    # defence: no-warnings-on-the-console
    logging.captureWarnings(True)

    def log(failed: threading.ExceptHookArgs) -> None:
        caught = failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
        private_log(home.settings.name).error("unexpected error", exc_info=caught)

    threading.excepthook = log
