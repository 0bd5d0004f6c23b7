"""Strangers at the real port, and a dishonest server against real sites."""

import json
import os
import shutil
import socket
import ssl
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from capedjica.study.federated import jobs, processes
from capedjica.study.federated.federation import SETTINGS, write_json
from capedjica.study.federated.jobs import session
from capedjica.study.federated.provisioning import settle
from tests.attacks.test_hostile_messages import check
from tests.federated.consortium import Consortium, consortium
from tests.study.small_study import make_study

ROOT = Path(__file__).parent.parent.parent
# Of a message of 64 bytes, as FLARE frames it; no beginning of a handshake of TLS.
BEGINNING = struct.pack(">I", 64) + bytes(4)


def start_server(parties: Consortium) -> None:
    settle(parties.federation.server_kit)
    processes.start(parties.federation.server_kit, "server", "localhost")
    with session(parties.federation, 60.0):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a study, without sites; and the kit of another study's site."""
    folder = tmp_path_factory.mktemp("trust")
    with consortium(folder / "ours", started=False) as parties:
        start_server(parties)
        yield parties, Consortium(make_study(folder / "theirs"))


def client_context(root: Path, kit: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(root / "startup" / "rootCA.pem")
    context.check_hostname = False
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    return context


def is_turned_away(port: int, context: ssl.SSLContext | None, seconds: float = 60.0) -> bool:
    """Whether the server hangs up; it waits for the rest of the message of somebody who was let in."""
    with ExitStack() as held:
        try:
            line = held.enter_context(socket.create_connection(("localhost", port), timeout=60.0))
            if context is not None:
                line = held.enter_context(context.wrap_socket(line, server_hostname="localhost"))
        except OSError:
            return True
        line.settimeout(seconds)
        try:
            line.sendall(BEGINNING)
            return line.recv(4096) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def test_who_has_no_certificate_of_this_study_gets_not_a_word(server):
    ours, theirs = server
    port, own, other = ours.federation.seal.port, ours.kit("s1"), theirs.kit("s1")
    assert is_turned_away(port, None)
    assert is_turned_away(port, client_context(own, None))
    assert is_turned_away(port, client_context(own, other))
    with session(ours.federation, 30.0) as line:
        assert line.connected() == {}
    # The control: with a certificate it is waited for the rest.
    assert not is_turned_away(port, client_context(own, own), seconds=5.0)


def test_a_site_under_another_name_is_not_let_in(server, tmp_path):
    """The kit of s1, started as s2: the certificate says who it is."""
    ours, _ = server
    kit = tmp_path / "kit"
    shutil.copytree(ours.kit("s1"), kit)
    refusal = "authenticated as 's1' but claimed endpoint 's2'"
    said = ours.federation.server_kit / "console.log"
    processes.start(kit, "client", "s2")
    try:
        deadline = time.monotonic() + 120
        while refusal not in said.read_text() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert refusal in said.read_text()
        with session(ours.federation, 30.0) as line:
            assert line.connected() == {}
    finally:
        processes.stop(kit)


@pytest.mark.full
def test_a_dishonest_server_obtains_nothing_from_real_sites(tmp_path, monkeypatch):
    hostile = "tests.attacks.hostile_party.HostileParty"
    with consortium(tmp_path) as parties:
        kit = parties.federation.server_kit
        allowed = json.loads((kit / "local" / "resources.json").read_text())
        write_json(kit / "local" / "resources.json", allowed | {"class_allow_list": [hostile]})
        out = tmp_path / "hostile"
        write_json(kit / "local" / SETTINGS, {"out": str(out)})
        monkeypatch.setattr(jobs, "AGGREGATOR_CLASS", hostile)
        monkeypatch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        )
        start_server(parties)
        with session(parties.federation, 60.0) as line:
            while len(line.connected()) < 4:
                time.sleep(0.5)
            job = line.submit(parties.study.hash.hex())
            while not (out / "outcomes.json").exists():
                assert not line.has_ended(job) or (out / "outcomes.json").exists()
                time.sleep(0.5)
        parties.stop()
        check(json.loads((out / "outcomes.json").read_text()), parties.study, parties.homes.values())
