"""Nonsense at the real port: from strangers, from a stranger with TLS, and from a site gone mad."""

import os
import random
import socket
import ssl
import struct
import time
from contextlib import suppress

import psutil
import pytest

from capedjica.study.federated.jobs import session
from tests.attacks.test_flare_trust import client_context, start_server
from tests.federated.consortium import consortium

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))


def nonsense(chance: random.Random) -> bytes:
    """Return bytes such as a fuzzer sends: noise, lengths that lie, text, nothing."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 2000))
    if kind == 1:
        # The frame of FLARE begins with its length, the length of its headers, and its type.
        length = chance.choice([0, 1, 16, 2**20, 2**31 - 1, 2**32 - 1])
        head = struct.pack(">IHBBHHI", length, chance.randrange(65536), *chance.randbytes(2), 0, 0, 0)
        return head + chance.randbytes(chance.randrange(200))
    if kind == 2:
        return b"GET / HTTP/1.1\r\nHost: " + b"a" * chance.randrange(5000) + b"\r\n\r\n"
    return b""


def talk(port: int, context: ssl.SSLContext | None, chance: random.Random) -> None:
    with suppress(OSError), socket.create_connection(("localhost", port), timeout=5) as plain:
        line = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with line:
            line.settimeout(chance.choice([0.01, 0.1]))
            for _ in range(chance.randrange(1, 4)):
                line.sendall(nonsense(chance))
            with suppress(TimeoutError):
                line.recv(1000)


def footprint(process: psutil.Process) -> tuple[int, int, int]:
    return process.memory_info().rss, process.num_fds(), process.num_threads()


def settled(process: psutil.Process, at_most: tuple[int, int, int]) -> tuple[int, int, int]:
    """Wait until what is open was closed again, or long enough."""
    deadline = time.monotonic() + 60
    while True:
        now = footprint(process)
        if (now[1] <= at_most[1] and now[2] <= at_most[2]) or time.monotonic() > deadline:
            return now
        time.sleep(1)


def fuzz(parties, seconds: float) -> None:
    port, kit = parties.federation.seal.port, parties.kit("s1")
    contexts = [None, client_context(kit, None), client_context(kit, kit)]
    (server,) = parties.processes_of(parties.federation.server_kit)["party"]
    chance, count = random.Random(int(time.time())), 0
    warm_until = time.monotonic() + seconds / 2
    before, until = None, time.monotonic() + seconds
    while time.monotonic() < until:
        talk(port, chance.choice(contexts), chance)
        count += 1
        if before is None and time.monotonic() > warm_until:
            before = settled(server, (0, 20, 40))
    assert server.is_running(), "the server died"
    assert before is not None
    after = settled(server, (0, before[1] + 2, before[2] + 2))
    print(f"{count} connections; memory, files, threads: {before} -> {after}")
    assert after[0] < 1.05 * before[0]
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2] + 2
    with session(parties.federation, 30.0) as line:
        assert "s1" not in line.connected()


@pytest.mark.full
def test_nonsense_at_the_port_neither_crashes_nor_swells_the_server(tmp_path):
    with consortium(tmp_path, started=False) as parties:
        start_server(parties)
        fuzz(parties, SECONDS)
