"""Agents to talk to: a party at a desk in this process, or a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from capedjica.flare.link import VERSION as SOCKETS_VERSION
from capedjica.flare.link import Caller, Greeting, connect, socket_path
from capedjica.flare.parcels import write_parcel
from capedjica.flare.wire import MAX_FRAME
from capedjica.mechanisms.messages import VERSION, Busy, Hello, Reply, encode, question_hash, read_reply
from capedjica.site.agent.owner_commands import standing
from capedjica.site.agent.responder import Desk
from capedjica.site.agent.study_session import SiteParty
from capedjica.site.flare import kits
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.support.waiting import wait_for


def hello(study: Study, nonce: int = 0, contract: bytes | None = None) -> bytes:
    return encode(Hello(VERSION, contract or study.contract.hash, b"", [], b"", bytes([nonce]) * 16))


def party_of(home: SiteHome, study: Study, carrier: str = "user") -> SiteParty:
    kit = kits.find_kit(home)
    return SiteParty(home, study, kit.label, kit.path, carrier)


@contextmanager
def desk_of(home: SiteHome, study: Study, seed: int | None = None) -> Iterator[Desk]:
    party = party_of(home, study)
    party.connected(seed)
    desk = Desk(party)
    try:
        yield desk
    finally:
        desk.close()
        party.close()


def asked(receive, study: Study, question: bytes, name: str = "s1", *, again: bool = False) -> bytes:
    """Return the bytes of a site's answer, which it may take a while to make."""
    hash_ = question_hash(question)
    parcel = write_parcel(question, hash_ if again else None)
    while isinstance(read_reply(data := receive(parcel), study.contract, name, hash_), Busy):
        pass
    return data


def read(study: Study, question: bytes, data: bytes, name: str = "s1") -> Reply:
    return read_reply(data, study.contract, name, question_hash(question))


class AgentProcess:
    """A real agent of a site, without a supervisor or a carrier."""

    def __init__(self, home: SiteHome, carrier: str = "none", uid: str = "") -> None:
        self.home, self.kit = home, kits.find_kit(home)
        self.caller: Caller | None = None
        self.said = ""
        command = [sys.executable, "-m", "capedjica.site.agent", str(self.kit.path), carrier, uid]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        wait_for(lambda: self.process.poll() is not None or standing(self.kit) is not None, 300)
        assert self.process.poll() is None, self.process.stderr.read()

    def connect(self, role: str = "carrier", seed: int | None = None) -> Caller:
        """Connect as a carrier does."""
        path = socket_path(self.kit.path, "carrier")
        return Caller(connect(path, Greeting(SOCKETS_VERSION, role, seed=seed), MAX_FRAME))

    def receive(self, parcel: bytes) -> bytes:
        """Carry one parcel to the agent."""
        if self.caller is None:
            self.caller = self.connect()
        return self.caller.call(parcel, 60)

    def end(self, number: int) -> int:
        """End it by a signal; return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        if self.caller is not None:
            self.caller.close()
            self.caller.over.wait(60)
        if not self.process.stderr.closed:
            _, self.said = self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def agent_process(home: SiteHome, **options) -> Iterator[AgentProcess]:
    agent = AgentProcess(home, **options)
    try:
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.wait()
