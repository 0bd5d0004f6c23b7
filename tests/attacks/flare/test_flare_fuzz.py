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

from capedjica.coordinator.flare.jobs import session
from tests.attacks.flare.test_flare_trust import client_context, start_server
from tests.faults.flare.flare_faults import Running, audit, gated
from tests.federated.consortium import consortium

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
# The part of that time after which nothing may grow any more.
WARM_UP = 0.2
# A party takes about 100 MB, and a frame at most 50.
MOST = 500e6
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


def footprint(process: psutil.Process) -> tuple[int, int, int]:
    return process.memory_info().rss, process.num_fds(), process.num_threads()


def peak(process: psutil.Process) -> int:
    """Return the most memory that a process ever held, in bytes; 0 where the system does not say."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 0 if found is None else 1024 * int(found[1])


def settled(process: psutil.Process, at_most: tuple[int, int, int]) -> tuple[int, int, int]:
    """Wait until what is open was closed again, or long enough."""
    deadline = time.monotonic() + 60
    while True:
        now = footprint(process)
        if (now[1] <= at_most[1] and now[2] <= at_most[2]) or time.monotonic() > deadline:
            return now
        time.sleep(1)


def contexts(kit: Path) -> list[ssl.SSLContext | None]:
    """Return how to connect: in the clear, by TLS, and as the site whose kit it is."""
    return [None, client_context(kit, None), client_context(kit, kit)]


def fuzz_until(over: Callable[[], bool], parties) -> int:
    """Talk nonsense, one connection after another; return how many there were."""
    port, ways = parties.federation.seal.port, contexts(parties.kit("s1"))
    chance, count = random.Random(int(time.time())), 0
    while not over():
        count += talk(port, chance.choice(ways), chance)
    return count


def after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def check_growth(process: psutil.Process, before: tuple[int, int, int]) -> None:
    now = settled(process, (0, before[1] + 2, before[2] + 2))
    print(f"memory, files, threads: {before} -> {now}")
    assert now[0] < 1.05 * before[0]
    assert now[1] <= before[1] + 2
    assert now[2] <= before[2] + 2


def fuzz(parties, seconds: float) -> None:
    (server,) = parties.processes_of(parties.federation.server_kit)["party"]
    fuzz_until(after(WARM_UP * seconds), parties)
    before = settled(server, (0, 20, 40))
    print(fuzz_until(after((1 - WARM_UP) * seconds), parties), "connections")
    assert server.is_running(), "the server died"
    # What was reserved on somebody's word is given back with the connection, and is too much all the same.
    assert peak(server) < MOST
    check_growth(server, before)
    with session(parties.federation, 30.0) as line:
        assert "s1" not in line.connected()


@pytest.mark.full
def test_nonsense_at_the_port_neither_crashes_nor_swells_the_server(tmp_path):
    with consortium(tmp_path, started=False) as parties:
        start_server(parties)
        fuzz(parties, SECONDS)


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
        assert min(held, later) > 10
        running.finish()
        audit(parties)
        assert parties.run_folder.state().resumed == 0
