"""Processes that share one ledger, to be killed: a nursery that imports once and forks them on demand.

Run as ``python -m tests.faults.ledger_worker DIRECTORY``; each line on standard input names a task for a
new process, whose number is answered. The processes die with the nursery's input.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from capedjica.errors import BudgetExceededError, CapedjicaError, ProtocolError
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, Policy
from tests.privacy.ledger.ledger_site import DELTA, STUDY, Site, ask, begin, digest

STUDY_CAP = Cap(1.0, DELTA)
POLICY = Policy(total=Cap(500.0, DELTA), per_study=STUDY_CAP)
LEDGER_CODE = tuple(
    str(Path("capedjica", *parts)) for parts in (("privacy", "ledger"), ("tools", "durable.py"))
)
MUS = (0.06, 0.09, 0.13)  # about 10 releases use a study up


def note(path: Path, line: str) -> None:
    """Append one line in a single write: the bytes that left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def claim_next(ledger: Ledger, study: bytes) -> int:
    """Claim a block after all others, whoever else does the same."""
    while True:
        taken = [
            entry.block or 0 for entry in ledger.entries() if entry.kind == "claim" and entry.study == study
        ]
        block = max(taken, default=-1) + 1
        try:
            ledger.claim(study, block, 0)
        except ProtocolError:
            continue
        return block


def send_until_killed(directory: Path, send_first: bool) -> None:
    """Release and send for one study after the other; ``send_first`` breaks the ledger's rule on purpose."""
    sent = directory / "sent"

    def make() -> bytes:
        message = os.urandom(random.choice((64, 2_000, 20_000)))
        if send_first:
            note(sent, hashlib.sha256(message).hexdigest())
            time.sleep(0.02)  # a disk may be so fast that no kill falls between the two
        return message

    with Site(directory).open(policy=POLICY) as ledger:
        note(directory / "ready", str(os.getpid()))
        for number in range(10**6):
            use_up(ledger, digest(f"study {number}"), make, sent)


def use_up(ledger: Ledger, study: bytes, make: Callable[[], bytes], sent: Path) -> None:
    """Spend what a study has left, in blocks of four slots."""
    ledger.register_study(study, "To be used up", STUDY_CAP)
    while True:
        block = claim_next(ledger, study)
        for slot in range(4):
            try:
                message = ask(
                    ledger, slot, study=study, block=block, mu=random.choice(MUS), make_message=make
                )
            except BudgetExceededError:
                return
            note(sent, hashlib.sha256(message).hexdigest())
            time.sleep(0.002)  # SQLite's lock is not fair: let the others have a turn


def race(directory: Path, moment: float) -> None:
    """Ask, at an agreed moment, for a release that uses the whole budget of the site."""
    with Site(directory).open(policy=Policy(STUDY_CAP, STUDY_CAP)) as ledger:
        block = claim_next(ledger, STUDY)
        while time.time() < moment:
            pass
        try:
            ask(ledger, block=block, mu=0.9 * STUDY_CAP.mu2**0.5)
            note(directory / "results", "won")
        except BudgetExceededError:
            note(directory / "results", "refused")


def die_at(directory: Path, step: int) -> None:
    """Release once and send, but die at the ``step``-th line of the ledger's code on the way."""
    remaining = step

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal remaining
        if not any(part in frame.f_code.co_filename for part in LEDGER_CODE):
            return None
        remaining -= event == "line"
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    with Site(directory).open(policy=POLICY) as ledger:
        begin(ledger, STUDY_CAP.epsilon)
        sys.settrace(trace)
        message = ask(ledger)
        sys.settrace(None)
        note(directory / "sent", hashlib.sha256(message).hexdigest())
    note(directory / "survivors", str(step))


def perform(directory: Path, task: str) -> None:
    """Do one task in a process of its own."""
    try:
        match task.split():
            case ["race", place, moment]:
                race(directory / place, float(moment))
            case ["die", step]:
                die_at(directory / step, int(step))
            case ["send", *first]:
                send_until_killed(directory, send_first=bool(first))
    except CapedjicaError as error:
        note(directory / "failures", f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def main(directory: Path) -> None:
    """Fork a process for each line of standard input; kill what is left when it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = []
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            random.seed(os.urandom(8))
            perform(directory, line.strip())
        children.append(child)
        print(child, flush=True)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]))
