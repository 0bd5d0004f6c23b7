"""Strangers at the real port, and a dishonest server against real sites."""

import shutil
import socket
from contextlib import ExitStack

import msgspec
import pytest

from capedjica.coordinator.flare.transport import Courier, Patience
from capedjica.flare import processes
from capedjica.flare.launch import start_command
from capedjica.flare.parcels import Notice, write_notice
from capedjica.mechanisms.messages import VERSION
from capedjica.securesum.identity import Identity
from tests.attacks.flare.attacked import NOTHING, connected, insisting, serving, soon
from tests.attacks.flare.strangers import client_context, handshakes, internal_ports, is_turned_away
from tests.attacks.messages.hostile_messages import attack
from tests.attacks.messages.test_hostile_messages import check
from tests.faults.flare.flare_faults import Running, audit, gated
from tests.federated.consortium import Consortium, consortium
from tests.support.small_study import make_study


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a study with one site; and the kit of another study's site."""
    folder = tmp_path_factory.mktemp("trust")
    with consortium(folder / "ours", started=False) as parties, serving(parties) as carrier:
        parties.start("s1")
        soon(lambda: connected(carrier) == {"s1"}, "s1 is connected")
        yield parties, carrier, Consortium(make_study(folder / "theirs"))


def test_who_has_no_certificate_of_this_study_gets_not_a_word(server):
    ours, carrier, theirs = server
    port, own, other = ours.federation.seal.port, ours.kit("s1").workspace, theirs.kit("s1").workspace
    assert is_turned_away(port, None)
    assert is_turned_away(port, client_context(own, None))
    assert is_turned_away(port, client_context(own, other))
    assert connected(carrier) == {"s1"}
    # The control: with a certificate it is waited for the rest.
    assert not is_turned_away(port, client_context(own, own), seconds=5.0)


def test_a_site_and_its_jobs_talk_among_themselves(server):
    """Others with an account on the site's machine are turned away at the port between them."""
    ours, _, theirs = server
    own, other = ours.kit("s1").workspace, theirs.kit("s1").workspace
    (port,) = internal_ports(ours.place("s1"))
    assert is_turned_away(port, None)
    assert is_turned_away(port, client_context(own, other))
    assert not is_turned_away(port, client_context(own, own), seconds=5.0)


def test_a_site_under_another_name_is_not_let_in(server, tmp_path):
    """The workspace of s1, started as s2: the certificate says who it is."""
    ours, carrier, _ = server
    workspace = tmp_path / "workspace"
    shutil.copytree(ours.kit("s1").workspace, workspace)
    for name in ("fed_client.json", "sub_start.sh"):
        file = workspace / "startup" / name
        file.write_text(file.read_text().replace('"fqsn": "s1"', '"fqsn": "s2"').replace("uid=s1", "uid=s2"))
    said = ours.federation.server_kit / "log.txt"
    command = start_command(workspace)
    program = processes.confined("carrier", NOTHING, workspace, command, [], workspace / "socket")
    processes.start(tmp_path, [program])
    try:
        refusal = "authenticated as 's1' but claimed endpoint 's2'"
        soon(lambda: refusal in said.read_text(), "the server refuses it")
        assert connected(carrier) == {"s1"}
    finally:
        processes.stop(tmp_path)


def test_one_stranger_who_says_nothing_keeps_newcomers_out(server):
    """A limit of FLARE's server: it waits for one handshake of TLS at a time, however long that takes.

    Who is connected stays so; newcomers are let in when the stranger is gone.
    """
    ours, carrier, _ = server
    port, own = ours.federation.seal.port, ours.kit("s1").workspace
    context = client_context(own, own)
    assert handshakes(port, context, 60.0)
    with socket.create_connection(("localhost", port)):
        assert not handshakes(port, context, 5.0)
        assert connected(carrier) == {"s1"}
    assert handshakes(port, context, 60.0)


@pytest.mark.full
def test_a_study_under_way_goes_on_whatever_strangers_do_not_say(tmp_path):
    """Silent connections stand at the port from the middle of a release to the end of the run."""
    with gated(tmp_path) as parties, ExitStack() as held:
        parties.hold("s2", "Ask-1")
        running = Running(parties)
        parties.reached("s2", "Ask-1", running)
        port, own = parties.federation.seal.port, parties.kit("s1").workspace
        # The system queues a few more than the one whom the server waits for.
        for _ in range(3):
            held.enter_context(socket.create_connection(("localhost", port)))
        assert not handshakes(port, client_context(own, own), 5.0)
        parties.let_go("s2", "Ask-1")
        running.finish()
        audit(parties)


@pytest.mark.full
def test_a_dishonest_server_obtains_nothing_from_real_sites(tmp_path):
    """Every lie is refused by real sites, over the real port, in their own words; no forged notice counts."""
    with consortium(tmp_path) as parties, serving(parties) as carrier:
        names, contract = parties.study.contract.roster.names, parties.study.contract
        courier = Courier(contract, carrier.send, Patience(joining=60.0, silence=20.0))
        soon(lambda: connected(carrier) == set(names), "all sites are connected")
        courier.gather(names)
        for notice in forged_notices(parties):
            courier.tell(names, notice)
        outcomes = attack(contract, insisting(contract, carrier.send))
        assert not any(over(parties, name).exists() for name in names)
        # The control: what the coordinator says is believed.
        courier.tell(names, signed(parties, parties.federation.key()))
        soon(lambda: all(over(parties, name).exists() for name in names), "the study is over")
        parties.stop(*names)
        check(outcomes, parties.study, parties.homes.values())
        for name in names:
            log = (parties.home(name).folder / "site.log").read_text()
            assert log.count("ignored a notice that is not signed by the coordinator of this study") == 4


def over(parties, name):
    return parties.place(name) / "over.txt"


def signed(parties, key, **changed):
    notice = Notice(VERSION, parties.study.hash, "over", "2031-01-01T00:00:00+00:00")
    notice = msgspec.structs.replace(notice, **changed)
    return write_notice(msgspec.structs.replace(notice, signature=key.sign(notice.content)))


def forged_notices(parties):
    """Return notices that are not signed, by another key, of another study, and altered."""
    true = msgspec.msgpack.decode(signed(parties, parties.federation.key()), type=Notice)
    return [
        write_notice(msgspec.structs.replace(true, signature=b"")),
        signed(parties, Identity.generate()),
        signed(parties, parties.federation.key(), study=bytes(32)),
        write_notice(msgspec.structs.replace(true, when="2032-01-01T00:00:00+00:00")),
    ]
