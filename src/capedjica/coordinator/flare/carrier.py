"""The aggregator's side of its carrier: FLARE's server, confined, and jobs that are replaced when they die.

The aggregator has the algorithm, the journal, the run's folder and the coordinator's keys, and no connection
to anybody. What it sends goes through a socket to the relay of a job of FLARE's; when a job or the server
dies, another job is submitted, and what got lost is asked for again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from capedjica.coordinator.flare.carrier_messages import (
    DISPATCHER,
    MOST_BYTES,
    RELAY,
    Order,
    Post,
    Report,
    read_replies,
)
from capedjica.coordinator.flare.federation import Federation
from capedjica.coordinator.flare.provisioning import settle
from capedjica.errors import InputError, ProtocolError
from capedjica.flare import processes
from capedjica.flare.launch import start_command
from capedjica.flare.link import Caller, Channel, Greeting, LinkError, Listener, socket_path
from capedjica.flare.wire import MAX_FRAME
from capedjica.flare.workspace import point_to
from capedjica.tools.confinement.carrier import strongest

SERVER: Final = "server"
# How long the server may take until it can be talked to, and an order of the dispatcher's.
_SERVER_SECONDS: Final = 90.0
_ORDER_SECONDS: Final = 90.0
# How long a job may take from its submission until its relay is connected.
_JOB_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.25
# How often jobs are submitted in a row without anything being carried in between.
_MOST_DEATHS: Final = 20
# After how long it is looked whether a site that is silent has a part in the job, and how often for one site.
_ABSENT_SECONDS: Final = 10.0
_MOST_RENEWALS: Final = 10

_log = logging.getLogger("capedjica.run")


class CarrierLostError(ProtocolError):
    """The carrier died while it carried something: nobody else is to blame, and another takes its place."""


class Carrier:
    """The carrier of one run.

    ``on_death(attempt, reason)`` is called when a job died and another is submitted; ``wait_for_sites``
    before each submission: it returns when enough sites are connected, or raises.
    """

    def __init__(
        self,
        federation: Federation,
        seed: int | None,
        on_death: Callable[[int, str], None],
        wait_for_sites: Callable[[], None],
    ) -> None:
        self._federation, self._seed = federation, seed
        self._on_death, self._wait_for_sites = on_death, wait_for_sites
        self._ends: dict[str, Caller] = {}
        self._changed = threading.Condition()
        self._submitting = threading.Lock()
        self._job, self._deaths, self._n_submitted = "", 0, 0
        self._absent: dict[str, float] = {}
        self._renewals: Counter[str] = Counter()
        self._next_look = 0.0
        self._closed = False
        # Results are public: where nothing confines the carrier, it is only said.
        needed = [federation.server_kit, federation.admin_kit]
        self.confinement = strongest(None, needed, str(federation.path.absolute()))
        self._socket = socket_path(federation.path, SERVER)

    # Who connects

    def _admit(self, greeting: Greeting) -> str:
        if greeting.role not in (RELAY, DISPATCHER):
            return f"this socket is for the carrier's {RELAY} and {DISPATCHER}"
        if self._end(greeting.role) is not None:
            return f"another {greeting.role} is connected: one at a time"
        return ""

    def _serve(self, channel: Channel, greeting: Greeting) -> None:
        with self._changed:
            self._ends[greeting.role] = Caller(channel)
            self._changed.notify_all()

    def _end(self, role: str) -> Caller | None:
        """Return the other end of a role, if somebody is there."""
        with self._changed:
            found = self._ends.get(role)
            return None if found is None or found.over.is_set() else found

    # Orders to the dispatcher

    def order(self, order: Order) -> Report:
        """Have the dispatcher do something; it is waited for while the server begins, or begins again."""
        until = time.monotonic() + _SERVER_SECONDS
        while True:
            try:
                return self._report(order, _ORDER_SECONDS)
            except LinkError as error:
                if time.monotonic() > until or processes.running(self._federation.path) is None:
                    seal = self._federation.seal
                    where = f"the server at {seal.host}:{seal.port}"
                    raise ProtocolError(f"{where} cannot be reached: {error}") from None
            time.sleep(_LOOK_SECONDS)

    def _report(self, order: Order, seconds: float) -> Report:
        """Return the dispatcher's report on an order; LinkError where nothing came of it."""
        if (dispatcher := self._end(DISPATCHER)) is None:
            raise LinkError("it did not begin in time")
        try:
            data = dispatcher.call(msgspec.msgpack.encode(order), seconds)
            report = msgspec.msgpack.decode(data, type=Report)
        except ValueError as error:
            raise LinkError(str(error)) from None
        if report.error:
            raise LinkError(report.error)
        return report

    # Parcels

    def send(self, parcels: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Carry a parcel to each site and return what they returned in time.

        Raises
        ------
        CarrierLostError
            If the job died, or another was submitted: its sites have yet to begin.
        ProtocolError
            If jobs die again and again, or the server cannot be reached.
        """
        before = self._n_submitted
        relay = self._relay()
        if self._n_submitted != before:
            raise CarrierLostError("another job was submitted")
        try:
            post = msgspec.msgpack.encode(Post(dict(parcels), seconds))
            replies = read_replies(relay.call(post, seconds + 30.0))
        except LinkError as error:
            raise CarrierLostError(f"the carrier was lost: {error}") from None
        if replies:
            self._deaths = 0
        if self._leaves_out_a_site(parcels.keys() - replies.keys(), replies.keys()):
            relay.close()
        return replies

    def _leaves_out_a_site(self, absent: Set[str], present: Set[str]) -> bool:
        """Whether a silent site is connected without a part in the job: FLARE gives it none in one that runs.

        Its client was started after the job began, or again.
        """
        now = time.monotonic()
        with self._changed:
            since = {name: self._absent.get(name, now) for name in {*self._absent, *absent} - present}
            self._absent = since
            long = {name for name in absent if now - since[name] > _ABSENT_SECONDS}
            if now < self._next_look or not long:
                return False
            self._next_look = now + _ABSENT_SECONDS
        try:
            idle = self._report(Order("idle"), _ABSENT_SECONDS).idle
        except LinkError:
            return False
        left_out = {name for name in long.intersection(idle) if self._renewals[name] < _MOST_RENEWALS}
        self._renewals.update(left_out)
        for name in left_out:
            _log.warning("site %s is back and has no part in the job", name)
        return bool(left_out)

    def _relay(self) -> Caller:
        """Return the relay of the job that runs; where none does, submit one and wait for it."""
        with self._submitting:
            while (relay := self._end(RELAY)) is None:
                if self._closed:
                    raise ProtocolError("the run has ended")
                if self._job:
                    self._note_death()
                self._wait_for_sites()
                self._submit()
            return relay

    def _note_death(self) -> None:
        self._job = ""
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise ProtocolError(
                f"the job died {self._deaths} times in a row; the logs in {self._federation.path} may say "
                "why. Run the same command to go on"
            )
        _log.warning("the job of the carrier ended; another is submitted")
        self._on_death(self._deaths, "a process of the carrier or of a site ended")

    def _submit(self) -> None:
        """Hand a job to the server, and wait until its relay is connected or it has ended."""
        report = self.order(Order("submit", seed=self._seed))
        with self._changed:
            self._n_submitted += 1
            self._absent = {}
        self._job, server, until = report.job, report.server, time.monotonic() + _JOB_SECONDS
        looked = time.monotonic()
        while self._end(RELAY) is None and time.monotonic() < until:
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)
            if time.monotonic() - looked > 4 * _LOOK_SECONDS:
                looked = time.monotonic()
                latest = self.order(Order("has ended", self._job))
                if latest.ended or latest.server != server:
                    return

    # Processes

    @contextmanager
    def running(self, out: Path) -> Iterator[None]:
        """Have the carrier's processes for the time of a run, and no longer if this process is killed."""
        place, port, sites = self._federation.path, self._federation.seal.port, self._federation.seal.sites
        # What is there although nobody runs the study is left from a run that was killed.
        processes.stop(place)
        if not processes.port_is_free("127.0.0.1", port):
            raise InputError(
                f"port {port} of this machine is in use by another program: stop that, or provision with "
                "another --port"
            )
        uid = os.getuid() if self.confinement.uid is None else self.confinement.uid
        # What all sites return comes in one frame.
        limit = min(MOST_BYTES, MAX_FRAME * (1 + len(sites)))
        listener = Listener(self._socket, limit, {uid}, self._admit, self._serve, _log.warning)
        try:
            processes.start(place, self._programs(out), owner=processes.mark(os.getpid()))
            yield
        finally:
            # The job ends, and the sites' relays with it.
            self._closed = True
            with suppress(OSError):
                for end in list(self._ends.values()):
                    end.close()
                listener.close()
            processes.stop(place)

    def _programs(self, out: Path) -> list[processes.Program]:
        """Return the server and the dispatcher, to which the coordinator's keys and the run are closed."""
        federation = self._federation
        server, admin = federation.server_kit.absolute(), federation.admin_kit.absolute()
        settle(server)
        point_to(server, self._socket)
        where = (federation.seal.host, str(federation.seal.port), str(self._socket))
        dispatch = (sys.executable, "-m", "capedjica.coordinator.flare.dispatcher", str(admin), *where)
        secrets = [federation.key_path, federation.root_path, *([out] if out.exists() else [])]
        commands = [(SERVER, server, start_command(server)), (DISPATCHER, admin, dispatch)]
        return [
            processes.confined(name, self.confinement, folder, command, secrets, self._socket)
            for name, folder, command in commands
        ]
