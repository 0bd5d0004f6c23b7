"""Nonsense at the real port: from strangers, from a stranger with TLS, and from a site gone mad."""

import os
import random
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from capedjica.flare.launch import MEMORY
from tests.attacks.flare.attacked import connected, serving, soon
from tests.attacks.flare.strangers import client_context
from tests.faults.flare.flare_faults import Running, audit, gated
from tests.federated.consortium import consortium

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
# How long a study is held meanwhile; a site is given up after 120 seconds (CALM).
HELD = min(SECONDS, 60.0)


def nonsense(chance: random.Random) -> bytes:
    """Return bytes such as a fuzzer sends: noise, lengths that lie, text, nothing."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 2000))
    if kind == 1:
        # The frame of FLARE begins with its length, the length of its headers, and its type.
        length = chance.choice([0, 1, 16, 2**20, 2**31 - 2**22, 2**31 - 1, 2**32 - 1])
        head = struct.pack(">IHBBHHI", length, chance.randrange(65536), *chance.randbytes(2), 0, 0, 0)
        return head + chance.randbytes(chance.randrange(200))
    if kind == 2:
        return b"GET / HTTP/1.1\r\nHost: " + b"a" * chance.randrange(5000) + b"\r\n\r\n"
    return b""


def talk(port: int, context: ssl.SSLContext | None, chance: random.Random) -> bool:
    """Connect and talk nonsense; whether there was anybody to talk to."""
    try:
        plain = socket.create_connection(("localhost", port), timeout=5)
    except OSError:
        return False
    with suppress(OSError), plain:
        line = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with line:
            line.settimeout(chance.choice([0.01, 0.1]))
            for _ in range(chance.randrange(1, 4)):
                line.sendall(nonsense(chance))
            with suppress(TimeoutError):
                line.recv(1000)
    return True


def peak(process: psutil.Process) -> int:
    """Return the most memory that a process ever held, in bytes; 0 where the system does not say."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 0 if found is None else 1024 * int(found[1])


def contexts(workspace: Path) -> list[ssl.SSLContext | None]:
    """Return how to connect: in the clear, by TLS, and as the site whose workspace it is."""
    return [None, client_context(workspace, None), client_context(workspace, workspace)]


def fuzz_until(over: Callable[[], bool], parties) -> int:
    """Talk nonsense, one connection after another; return how many there were."""
    port, ways = parties.federation.seal.port, contexts(parties.kit("s1").workspace)
    chance, count = random.Random(int(time.time())), 0
    while not over():
        count += talk(port, chance.choice(ways), chance)
    return count


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


@pytest.mark.full
def test_nonsense_at_the_port_takes_no_more_memory_than_the_server_is_given(tmp_path):
    """FLARE puts memory aside on somebody's word; should it die, it is started again, and lets sites in."""
    with consortium(tmp_path, started=False) as parties, serving(parties) as carrier:
        (before,) = parties.processes_of("server")["server"]
        print(fuzz_until(after(SECONDS), parties), "connections")
        (now,) = soon(lambda: parties.processes_of("server")["server"], "there is a server")
        print("the server", "lives" if now == before else "was started again", "peak", peak(now))
        assert peak(now) < MEMORY
        assert connected(carrier) == set()
        parties.start("s1")
        soon(lambda: connected(carrier) == {"s1"}, "a site is let in")


@pytest.mark.full
def test_nonsense_at_the_port_does_not_disturb_a_study_under_way(tmp_path):
    """A site is held in a release, so that the study is under way meanwhile; then it goes on to its end."""
    with gated(tmp_path) as parties:
        parties.hold("s2", "Ask-1")
        running = Running(parties)
        parties.reached("s2", "Ask-1", running)
        held = fuzz_until(after(HELD), parties)
        assert not running.over
        parties.let_go("s2", "Ask-1")
        later = fuzz_until(lambda: running.over, parties)
        print(held, later, "connections")
        assert min(held, later) > 0
        running.finish()
        audit(parties)
