"""Carrier of the aggregator: FLARE's server, confined, with jobs that are resubmitted if they end.

The aggregator has the algorithm, the journal, the run's folder and the coordinator's keys, but no network
access. Its messages go through a socket to the relay of a FLARE job. If a job or the server ends
unexpectedly, another job is submitted, and lost messages are sent again.
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
# Time limits for connecting to the server, and for an order to the dispatcher.
_SERVER_SECONDS: Final = 90.0
_ORDER_SECONDS: Final = 90.0
# Time limit from the submission of a job until its relay is connected.
_JOB_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.25
# Limit on consecutive jobs that end without carrying any message.
_MOST_DEATHS: Final = 20
# Silence after which a site is checked for being part of the job, and limit on new jobs for one site.
_ABSENT_SECONDS: Final = 10.0
_MOST_RENEWALS: Final = 10

_log = logging.getLogger("capedjica.run")


class CarrierLostError(ProtocolError):
    """The carrier ended during a transfer; no site is at fault, and another job replaces it."""


class Carrier:
    """The carrier of one run.

    ``on_death(attempt, reason)`` is called when a job ended unexpectedly and another is submitted.
    ``wait_for_sites`` is called before each submission; it returns when enough sites are connected, or
    raises.
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
        # Results are public, so an unconfined carrier is reported but not refused.
        needed = [federation.server_kit, federation.admin_kit]
        self.confinement = strongest(None, needed, str(federation.path.absolute()))
        self._socket = socket_path(federation.path, SERVER)

    # Connections

    def _admit(self, greeting: Greeting) -> str:
        if greeting.role not in (RELAY, DISPATCHER):
            return f"this socket accepts only the carrier's {RELAY} and {DISPATCHER}"
        if self._end(greeting.role) is not None:
            return f"another {greeting.role} is already connected; only one is allowed"
        return ""

    def _serve(self, channel: Channel, greeting: Greeting) -> None:
        with self._changed:
            self._ends[greeting.role] = Caller(channel)
            self._changed.notify_all()

    def _end(self, role: str) -> Caller | None:
        """Return the connected process of a role; None if there is none."""
        with self._changed:
            found = self._ends.get(role)
            return None if found is None or found.over.is_set() else found

    # Orders to the dispatcher

    def order(self, order: Order) -> Report:
        """Send an order to the dispatcher, waiting while the server starts or restarts."""
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
        """Return the dispatcher's report on an order; raise LinkError if it failed."""
        if (dispatcher := self._end(DISPATCHER)) is None:
            raise LinkError("it did not start in time")
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
        """Carry a parcel to each site and return the replies that arrived in time.

        Raises
        ------
        CarrierLostError
            If the job ended, or another was submitted, whose sites have not joined yet.
        ProtocolError
            If jobs end repeatedly, or the server cannot be reached.
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
        """Return whether a silent site is connected but not part of the job.

        This happens if its client was started or restarted after the job: FLARE adds no clients to a running
        job.
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
            _log.warning("site %s is connected again but not part of the job", name)
        return bool(left_out)

    def _relay(self) -> Caller:
        """Return the relay of the running job; if there is none, submit a job and wait for its relay."""
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
                f"the job ended unexpectedly {self._deaths} times in a row; see the logs in "
                f"{self._federation.path}, then run the same command to resume"
            )
        _log.warning("the carrier's job ended unexpectedly; another is submitted")
        self._on_death(self._deaths, "a process of the carrier or of a site ended")

    def _submit(self) -> None:
        """Submit a job to the server, and wait until its relay is connected or the job has ended."""
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
        """Run the carrier's processes for the duration of a run; they also end if this process is killed."""
        place, port, sites = self._federation.path, self._federation.seal.port, self._federation.seal.sites
        # Processes that still exist are left over from a run that was killed.
        processes.stop(place)
        if not processes.port_is_free("127.0.0.1", port):
            raise InputError(
                f"port {port} of this machine is in use by another program; stop that program, or provision "
                "the study with another --port"
            )
        uid = os.getuid() if self.confinement.uid is None else self.confinement.uid
        # The replies of all sites arrive in one frame.
        limit = min(MOST_BYTES, MAX_FRAME * (1 + len(sites)))
        listener = Listener(self._socket, limit, {uid}, self._admit, self._serve, _log.warning)
        try:
            processes.start(place, self._programs(out), owner=processes.mark(os.getpid()))
            yield
        finally:
            # This ends the job, and with it the sites' relays.
            self._closed = True
            with suppress(OSError):
                for end in list(self._ends.values()):
                    end.close()
                listener.close()
            processes.stop(place)

    def _programs(self, out: Path) -> list[processes.Program]:
        """Return the server and the dispatcher, without access to the coordinator's keys and the run."""
        federation = self._federation
        server, admin = federation.server_kit.absolute(), federation.admin_kit.absolute()
        settle(server)
        point_to(server, self._socket)
        where = (federation.seal.host, str(federation.seal.port), str(self._socket))
        dispatch = (sys.executable, "-P", "-m", "capedjica.coordinator.flare.dispatcher", str(admin), *where)
        secrets = [federation.key_path, federation.root_path, *([out] if out.exists() else [])]
        commands = [(SERVER, server, start_command(server)), (DISPATCHER, admin, dispatch)]
        return [
            processes.confined(name, self.confinement, folder, command, secrets, self._socket)
            for name, folder, command in commands
        ]
