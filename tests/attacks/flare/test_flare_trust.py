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
from nvflare.fuel.f3.cellnet.defs import ReturnCode

from capedjica.coordinator.flare import jobs
from capedjica.coordinator.flare.jobs import session
from capedjica.coordinator.flare.provisioning import settle
from capedjica.flare import processes
from capedjica.flare.kit import SETTINGS, write_json
from tests.attacks.messages.test_hostile_messages import check
from tests.federated.consortium import Consortium, consortium
from tests.support.places import ROOT
from tests.support.small_study import make_study

# For parties that run programs of this folder.
REACHABLE = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# What a dishonest operator has the server run.
HOSTILE = "tests.attacks.flare.hostile_party.HostileParty"
PROBING = "tests.attacks.flare.hostile_party.ProbingParty"
# The server may send jobs; what is in them is looked at. It hands on nothing from one site to another.
REFUSED = {
    "shell": "invalid_request",
    "environment": "invalid_request",
    "job": "refused",
    "class": "refused",
    "processes": "invalid_request",
}
ANSWERS = {"server": REFUSED, "s2": dict.fromkeys(REFUSED, ReturnCode.TIMEOUT)}
# A name in which a site forges messages.
FORGED = "server.forged-by-s2"
# Of a message of 64 bytes, as FLARE frames it; no beginning of a handshake of TLS.
BEGINNING = struct.pack(">I", 64) + bytes(4)


def start_server(parties: Consortium) -> None:
    settle(parties.federation.server_kit)
    processes.start(parties.federation.server_kit, "server", "localhost")
    with session(parties.federation, 60.0):
        pass


def allow(kit: Path, kind: str) -> None:
    """Let a server run a class of its operator's."""
    allowed = json.loads((kit / "local" / "resources.json").read_text())
    write_json(kit / "local" / "resources.json", allowed | {"class_allow_list": [kind]})


def outcomes_of(line, study: str, out: Path) -> dict:
    """Hand the server a job that names a study, and return what its aggregator wrote down."""
    job = line.submit(study)
    while not (out / "outcomes.json").exists():
        assert not line.has_ended(job) or (out / "outcomes.json").exists()
        time.sleep(0.5)
    while not line.has_ended(job):
        time.sleep(0.5)
    return json.loads((out / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a study, without sites; and the kit of another study's site."""
    folder = tmp_path_factory.mktemp("trust")
    with consortium(folder / "ours", started=False) as parties, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", REACHABLE)
        for who, kit in (("server", parties.federation.server_kit), ("s2", parties.kit("s2"))):
            loot = {"file": str(parties.home("s1").identity_path), "out": str(folder / f"{who}.json")}
            add_part(kit, "burglar.Burglar", loot | {"target": "s1", "patience": 3 * (who == "s2")})
        forgery = {"target": "s1", "origin": FORGED, "out": str(folder / "forged.txt")}
        add_part(parties.kit("s2"), "forger.Forger", forgery)
        allow(parties.federation.server_kit, PROBING)
        start_server(parties)
        yield parties, Consortium(make_study(folder / "theirs"))


def add_part(kit: Path, kind: str, arguments: dict) -> None:
    """Let a party, by its own settings, run a part that does harm to site s1."""
    settings = json.loads((kit / "local" / "resources.json").read_text())
    settings["components"].append({"id": kind, "path": f"tests.attacks.flare.{kind}", "args": arguments})
    write_json(kit / "local" / "resources.json", settings)


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


def connected(parties: Consortium) -> set[str]:
    """The sites that the server knows, those included that left a moment ago."""
    with session(parties.federation, 120.0) as line:
        return set(line.connected())


def test_who_has_no_certificate_of_this_study_gets_not_a_word(server):
    ours, theirs = server
    port, own, other = ours.federation.seal.port, ours.kit("s1"), theirs.kit("s1")
    before = connected(ours)
    assert is_turned_away(port, None)
    assert is_turned_away(port, client_context(own, None))
    assert is_turned_away(port, client_context(own, other))
    assert connected(ours) == before
    # The control: with a certificate it is waited for the rest.
    assert not is_turned_away(port, client_context(own, own), seconds=5.0)


def test_a_site_under_another_name_is_not_let_in(server, tmp_path):
    """The kit of s1, started as s2: the certificate says who it is."""
    ours, _ = server
    kit = tmp_path / "kit"
    shutil.copytree(ours.kit("s1"), kit)
    refusal = "authenticated as 's1' but claimed endpoint 's2'"
    said, before = ours.federation.server_kit / "console.log", connected(ours)
    processes.start(kit, "client", "s2")
    try:
        deadline = time.monotonic() + 300
        while refusal not in said.read_text() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert refusal in said.read_text()
        assert connected(ours) == before
    finally:
        processes.stop(kit)


def internal_port(kit: Path) -> int:
    """The port by which a client and its jobs talk to each other."""
    lines = [line for process in processes.family(kit) for line in process.net_connections(kind="tcp")]
    (port,) = {line.laddr.port for line in lines if line.status == "LISTEN"}
    return port


def test_neither_the_server_nor_a_site_can_read_a_sites_files_or_run_code(server):
    """By FLARE's own commands, sent by programs of theirs; nor can whoever has an account on its machine."""
    ours, theirs = server
    parties = ("s1", "s2")
    for name in parties:
        processes.start(ours.kit(name), "client", name)
    try:
        outs = [ours.folder.parent / f"{who}.json" for who in ANSWERS]
        deadline = time.monotonic() + 300
        while not all(out.exists() for out in outs) and time.monotonic() < deadline:
            time.sleep(0.5)
        for out in outs:
            assert json.loads(out.read_text()) == ANSWERS[out.stem]
        check_nothing_was_forged(ours)
        port = internal_port(ours.kit("s1"))
        assert is_turned_away(port, None)
        assert is_turned_away(port, client_context(ours.kit("s1"), theirs.kit("s1")))
        assert not is_turned_away(port, client_context(ours.kit("s1"), ours.kit("s1")), seconds=5.0)
    finally:
        for name in parties:
            processes.stop(ours.kit(name))


def check_nothing_was_forged(parties: Consortium) -> None:
    """What s2 sent with the server's own credentials came to the server, and no further."""
    sent, dropped = parties.folder.parent / "forged.txt", "dropped a message that 's2' had no reason to send"
    deadline = time.monotonic() + 300
    while not sent.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert "token" in sent.read_text()
    assert dropped in (parties.federation.server_kit / "console.log").read_text()
    assert FORGED not in (parties.kit("s1") / "console.log").read_text()


@pytest.mark.full
def test_a_job_about_another_study_is_refused_by_a_real_site(server, tmp_path, monkeypatch):
    """Not a greeting is answered and no block begun; in a job about its own study the same site answers."""
    ours, _ = server
    kit, home = ours.federation.server_kit, ours.home("s3")
    monkeypatch.setattr(jobs, "AGGREGATOR_CLASS", PROBING)
    processes.start(ours.kit("s3"), "client", "s3")
    try:
        with session(ours.federation, 60.0) as line:
            while "s3" not in line.connected():
                time.sleep(0.5)
            write_json(kit / "local" / SETTINGS, {"site": "s3", "out": str(tmp_path / "other")})
            refused = {"replies": 0, "lost": {"s3": "it does not take part; its own log says why"}}
            other = outcomes_of(line, "ab" * 32, tmp_path / "other")
            assert other == {"Hello": refused, "Begin": refused, "Ask": refused}
            assert "the job is about study abababababababab" in (home.folder / "site.log").read_text()
            with home.open_ledger(must_exist=True) as ledger:
                assert ledger.totals().overall.n_releases == 0
                assert ledger.last_block(ours.study.contract.hash) == -1
            write_json(kit / "local" / SETTINGS, {"site": "s3", "out": str(tmp_path / "own")})
            own = outcomes_of(line, ours.study.hash.hex(), tmp_path / "own")
            assert all(outcome == {"replies": 1, "lost": {}} for outcome in own.values())
    finally:
        processes.stop(ours.kit("s3"))
    assert ours.spent("s3") == 0.0


@pytest.mark.full
def test_a_dishonest_server_obtains_nothing_from_real_sites(tmp_path, monkeypatch):
    """Every lie is refused by real sites, over the real port, in their own words."""
    with consortium(tmp_path) as parties:
        kit, out = parties.federation.server_kit, tmp_path / "hostile"
        allow(kit, HOSTILE)
        write_json(kit / "local" / SETTINGS, {"out": str(out)})
        monkeypatch.setattr(jobs, "AGGREGATOR_CLASS", HOSTILE)
        monkeypatch.setenv("PYTHONPATH", REACHABLE)
        start_server(parties)
        with session(parties.federation, 60.0) as line:
            while len(line.connected()) < 4:
                time.sleep(0.5)
            outcomes = outcomes_of(line, parties.study.hash.hex(), out)
        parties.stop()
        check(outcomes, parties.study, parties.homes.values())
