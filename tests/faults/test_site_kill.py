"""A site process killed with -9 in the middle of releases: nothing lost, nothing uncharged, never twice."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import msgspec
import numpy as np
import pytest

from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.messages import Answer, encode
from capedjica.mechanisms.site.answering import Site
from capedjica.privacy.ledger.memory import memory_ledger
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.parameters import Roster
from tests.faults.site_worker import NAME, POLICY, open_ledger
from tests.mechanisms.world import reply
from tests.support.places import ROOT

SIZE, COUNT = 50, 2000
PEERS = ("s1", "s2", "s3")


class Hospital:
    """The far end of the wire: a site process that is started, killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listener = Listener(str(directory / "socket"), "AF_UNIX")
        command = [sys.executable, "-m", "tests.faults.site_worker", str(directory)]
        self.nursery = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.n_kills = 0
        self.start()

    def start(self) -> None:
        self.nursery.stdin.write("\n")
        self.nursery.stdin.flush()
        self.number = int(self.nursery.stdout.readline())
        self.wire: Connection = self.listener.accept()

    def ask(self, question: bytes, fuse: float | None) -> bytes | None:
        """Return the answer; with a fuse, the site is killed that many seconds after it was asked."""
        timer = threading.Timer(fuse, os.kill, (self.number, signal.SIGKILL)) if fuse is not None else None
        if timer is not None:
            timer.start()
        answer = None
        with suppress(EOFError, OSError):  # killed before its answer, or in the middle of it
            self.wire.send_bytes(question)
            answer = self.wire.recv_bytes()
        if timer is not None:
            timer.join()
            self.n_kills += 1
            self.wire.close()
            self.start()
        return answer

    def close(self) -> None:
        self.wire.close()
        self.nursery.stdin.close()
        self.nursery.wait()
        self.nursery.stdout.close()
        self.listener.close()


class World:
    """The hospital, its peers in this process, and an aggregator that keeps everything it receives."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        identities = {name: Identity.generate() for name in (NAME, *PEERS)}
        roster = Roster.of([identity.public(name) for name, identity in identities.items()])
        stage = Stage(Query("mean", SIZE, 1.0), COUNT)
        self.contract = Contract("killed", roster, (40,) * 4, (stage,), (60.0,) * 4, 1e-5, reserve=0.5)
        identities[NAME].save(directory / "identity.pem")
        (directory / "contract").write_bytes(pickle.dumps(self.contract))
        self.peers = {name: self.peer(name, identities[name]) for name in PEERS}
        self.hospital = Hospital(directory)
        self.received: dict[tuple[int, int], bytes] = {}
        self.aggregator = Aggregator(self.contract, self.exchange)

    def peer(self, name: str, identity: Identity) -> Site:
        ledger = memory_ledger(POLICY)
        ledger.register_study(self.contract.hash, "killed", self.contract.cap(name))
        rows = np.full((40, SIZE), 0.01)
        return Site(self.contract, name, identity, ledger, lambda *_: [rows], NoiseSource())

    def exchange(self, questions):
        asked = [name for name in PEERS if name in questions]
        answers = {name: self.peers[name].handle(questions[name]) for name in asked}
        if NAME in questions:
            # A release takes about 20 ms here; half the kills fall into one, the rest into the secure sum.
            fuse = self.chance.uniform(0, 0.03) if self.chance.random() < 0.15 else None
            answer = self.hospital.ask(questions[NAME], fuse)
            if answer is not None:
                answers[NAME] = answer
                self.keep(answer)
        return answers

    def keep(self, data: bytes) -> None:
        answer = reply(data)
        if isinstance(answer, Answer):
            content = encode(answer)
            assert self.received.setdefault((answer.block, answer.slot), content) == content, "answered twice"

    def mean(self) -> None:
        """One release, with the hospital among those asked however often it was killed."""
        self.aggregator.standing.failures.clear()
        block = self.aggregator._block
        if block is not None and NAME not in block.participants:
            self.aggregator._block = None
        self.aggregator.mean(0)

    def audit(self, directory: Path, seen: list) -> list:
        """What left is recorded and charged; what was recorded before is still there; the cap holds."""
        left = dict(self.received)
        with open_ledger(directory) as ledger:
            ledger.verify_chain()
            recorded = {(sent.slot.block, sent.slot.slot): sent for sent in ledger.outbox()}
            entries, spent = ledger.entries(), ledger.spent(self.contract.hash)
        for place, data in left.items():
            assert recorded[place].message == data
        for sent in recorded.values():
            assert sent.mu2 >= msgspec.msgpack.decode(sent.message, type=Answer).mu ** 2 * (1 - 1e-15)
        assert entries[: len(seen)] == seen
        assert spent <= self.contract.total_mu[NAME] ** 2
        return entries


def kill_many(directory: Path, n_kills: int) -> World:
    world, seen, audited = World(directory, n_kills), [], 0
    try:
        deadline = time.monotonic() + 60 + 3 * n_kills
        while world.hospital.n_kills < n_kills:
            assert time.monotonic() < deadline, "the site did not come back"
            world.mean()
            if world.hospital.n_kills > audited:
                seen, audited = world.audit(directory, seen), world.hospital.n_kills
        world.audit(directory, seen)
    finally:
        world.hospital.close()
    return world


def test_kills_in_the_middle_of_releases(tmp_path):
    world = kill_many(tmp_path, 20)
    assert len(world.received) > 5
    assert any(release.aborted for release in world.aggregator.releases)


@pytest.mark.full
def test_200_kills_in_the_middle_of_releases(tmp_path):
    world = kill_many(tmp_path, 200)
    assert len(world.received) > 50
