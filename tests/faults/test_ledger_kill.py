"""Processes killed at random moments: nothing that left is missing, nothing recorded is lost."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import pytest

from capedjica.privacy.ledger import Entry, Policy, SlotBurntError
from tests.faults.ledger_worker import POLICY, STUDY_CAP
from tests.privacy.ledger.ledger_site import STUDY, Site, ask, refuse_to_make
from tests.support.places import ROOT

PATIENCE = 60.0


class Nursery:
    """Starts processes and, by their number, kills them."""

    def __init__(self, directory: Path, process: subprocess.Popen[str]) -> None:
        self.directory, self.process = directory, process

    def start(self, task: str) -> int:
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start_sender(self, task: str) -> int:
        number = self.start(task)
        wait_for(lambda: str(number) in lines(self.directory / "ready"), self.directory)
        return number

    def kill(self, number: int) -> None:
        os.kill(number, signal.SIGKILL)
        wait_for(lambda: not alive(number), self.directory)


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert not lines(directory / "failures"), lines(directory / "failures")
        assert time.monotonic() < deadline, "a process did not start, end or answer"
        time.sleep(0.001)


@contextmanager
def nursery(directory: Path) -> Iterator[Nursery]:
    command = [sys.executable, "-m", "tests.faults.ledger_worker", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield Nursery(directory, process)
        process.stdin.close()


class Auditor:
    """Looks at the ledger while others use it, and remembers what it saw."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.site = directory, Site(directory)
        self.seen: list[Entry] = []

    def missing(self) -> set[str]:
        """Messages that left and are not in the ledger. What left is read first: the ledger may be ahead."""
        left = set(lines(self.directory / "sent"))
        with self.site.open(policy=POLICY) as ledger:
            return left - {hashlib.sha256(item.message).hexdigest() for item in ledger.outbox()}

    def check(self) -> None:
        assert not lines(self.directory / "failures")
        assert not self.missing(), "a message left without its record"
        with self.site.open(policy=POLICY) as ledger:
            ledger.verify_chain()
            entries = ledger.entries()
        assert entries[: len(self.seen)] == self.seen, "a recorded entry was lost or changed"
        self.seen = entries
        for study in {entry.study for entry in entries if entry.kind == "release"}:
            charged = [e for e in entries if e.kind == "release" and e.study == study]
            assert sum(Fraction(entry.mu2) for entry in charged) <= Fraction(STUDY_CAP.mu2)


def kill_many(directory: Path, n_kills: int) -> Auditor:
    auditor, chance = Auditor(directory), random.Random(n_kills)
    with nursery(directory) as workers:
        running = [workers.start_sender("send"), workers.start_sender("send")]
        for _ in range(n_kills):
            time.sleep(chance.uniform(0, 0.05))
            victim = chance.randrange(2)
            workers.kill(running[victim])
            auditor.check()
            running[victim] = workers.start_sender("send")
    return auditor


def test_kills_lose_no_charge_and_no_message(tmp_path):
    auditor = kill_many(tmp_path, 20)
    assert len(auditor.seen) > 20
    assert lines(tmp_path / "sent")


@pytest.mark.full
def test_200_kills_lose_no_charge_and_no_message(tmp_path):
    auditor = kill_many(tmp_path, 200)
    assert len(auditor.seen) > 200


def stored_or_burnt(directory: Path) -> str:
    """What became of slot 0 of block 0 after its process died; anything else than the two is an error."""
    auditor = Auditor(directory)
    auditor.check()
    with auditor.site.open(policy=POLICY) as ledger:
        try:
            message = ask(ledger, make_message=refuse_to_make)
        except SlotBurntError:
            return "burnt"
        assert [item.message for item in ledger.outbox()] == [message]
        return "stored"


def die_at_lines(directory: Path, stride: int) -> list[str]:
    """Kill a process at every ``stride``-th line of a release, each time with a new ledger."""
    fates = []
    with nursery(directory) as workers:
        for step in range(1, 10_000, stride):
            place = directory / str(step)
            place.mkdir()
            number = workers.start(f"die {step}")
            wait_for(lambda number=number: not alive(number), directory)
            fates.append(stored_or_burnt(place))
            if lines(place / "survivors"):
                return fates
            shutil.rmtree(place)
    raise AssertionError("no release came to its end")


def test_death_at_any_line_leaves_the_slot_stored_or_burnt(tmp_path):
    fates = die_at_lines(tmp_path, stride=29)
    # Burnt up to the commit, stored from then on, and both happened.
    assert fates == sorted(fates)
    assert {"burnt", "stored"} == set(fates)


@pytest.mark.full
def test_death_at_every_line_leaves_the_slot_stored_or_burnt(tmp_path):
    fates = die_at_lines(tmp_path, stride=1)
    assert fates == sorted(fates)
    assert min(fates.count("burnt"), fates.count("stored")) > 50


def test_the_audit_notices_bytes_that_leave_before_their_record(tmp_path):
    """The control: senders that break the rule are caught.

    Each is killed within 10 ms of an early send, of which it waits 20 before it records anything.
    """
    auditor, chance = Auditor(tmp_path), random.Random(1)
    with nursery(tmp_path) as workers:
        for _ in range(20):
            before = len(lines(tmp_path / "sent"))
            worker = workers.start_sender("send first")
            wait_for(lambda before=before: len(lines(tmp_path / "sent")) > before, tmp_path)
            time.sleep(chance.uniform(0, 0.01))
            workers.kill(worker)
            if auditor.missing():
                return
    pytest.fail("20 processes sent before they recorded, and no kill showed it")


def test_two_processes_race_for_the_last_of_the_budget(tmp_path):
    with nursery(tmp_path) as workers:
        for place in "abcdefgh":
            (tmp_path / place).mkdir()
            site, results = Site(tmp_path / place), tmp_path / place / "results"
            with site.open(policy=Policy(STUDY_CAP, STUDY_CAP)) as ledger:
                ledger.register_study(STUDY, "Wanted by two", STUDY_CAP)
            moment = time.time() + 0.1
            for _ in range(2):
                workers.start(f"race {place} {moment}")
            wait_for(lambda results=results: len(lines(results)) == 2, tmp_path)
            assert sorted(lines(results)) == ["refused", "won"]
            with site.open() as ledger:
                assert ledger.totals().overall.n_releases == 1
