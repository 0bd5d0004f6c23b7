"""A server's end that says what FLARE would believe, against real processes of a site."""

import socket
import ssl
import subprocess
import sys
import threading
import time

import psutil
import pytest
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.private.defs import CellChannel

from capedjica.flare import connections
from capedjica.flare.wire import CHANNEL, TOPIC
from tests.attacks.flare.false_server import FalseServer, context, make_keys, soon
from tests.flare.test_flare_unpacking import SECRET, asking_for, wire

ADMIN, COMMAND = CellChannel.CLIENT_MAIN, CellChannel.CLIENT_COMMAND
SITE, JOB = "s1", "s1.j1"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


class Cell:
    """A process of the site, and what it says."""

    def __init__(self, keys, name, port, *parent):
        command = [
            sys.executable,
            "-m",
            "tests.attacks.flare.guarded_cell",
            str(keys),
            name,
            str(port),
            *parent,
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said, self.errors = [], []
        places = ((self.process.stdout, self.said), (self.process.stderr, self.errors))
        self._readers = [threading.Thread(target=self._read, args=place, daemon=True) for place in places]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, kept):
        with stream as lines:
            for line in lines:
                kept.append(line)

    def reached_by(self):
        return [line.split()[-1] for line in self.said if line.startswith("reached by")]

    def address(self):
        return soon(
            lambda: next((one.split()[-1] for one in self.said if one.startswith("listens at")), None)
        )

    def memory(self):
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()


@pytest.fixture(scope="module")
def site(keys):
    """A client and its job, and a false server that has their connections."""
    server = FalseServer(keys)
    client = Cell(keys, SITE, server.port)
    job = Cell(keys, JOB, server.port, client.address())
    for name in (SITE, JOB):
        server.line(name).greet("server")
    yield server, client, job
    client.end()
    job.end()
    server.close()


def alive(line, client, word):
    """What the server may say still arrives, so what was said before it was looked at."""
    line.tell("server", SITE, ADMIN, "admin", number=word)
    soon(lambda: word in client.reached_by() or line.closed.is_set())
    assert word in client.reached_by()


def working(line, job, word):
    """The same for a job and its aggregator."""
    line.tell("server.j1", JOB, CHANNEL, TOPIC, number=word)
    soon(lambda: word in job.reached_by() or line.closed.is_set())
    assert word in job.reached_by()


def test_no_connection_is_made_for_the_asking(site):
    """FLARE would dial, in the clear, whatever address a message of another site has in its headers."""
    server, client, _ = site
    line = server.line(SITE)
    with socket.create_server(("localhost", 0)) as trap:
        trap.settimeout(3)
        address = f"tcp://localhost:{trap.getsockname()[1]}"
        line.tell("s2", SITE, "any", "any", CONN_URL=address)
        line.tell("s2", SITE, ADMIN, "admin", CONN_URL=address)
        with pytest.raises(TimeoutError):
            trap.accept()
    alive(line, client, "after-the-trap")


@pytest.mark.parametrize(("by", "origin", "to"), [(SITE, SITE, JOB), (JOB, JOB, SITE)])
def test_nothing_is_carried_into_the_site_under_its_own_name(site, by, origin, to):
    """FLARE would hand it on, and the other would take it for its own family's."""
    server, client, job = site
    word = f"forged-to-{to}"
    server.line(by).tell(origin, to, COMMAND, "any", number=word)
    server.line(by).tell("server", to, COMMAND, "any", number=word)
    server.line(to).tell(origin, to, COMMAND, "any", number=word)
    alive(server.line(SITE), client, f"after-{word}")
    assert word not in client.reached_by() + job.reached_by()


def test_answers_that_nobody_asked_for_keep_nobody_waiting(site):
    """FLARE would ask each sender for its key and wait an hour, with a hundred threads in all."""
    server, client, _ = site
    line = server.line(SITE)
    for number in range(150):
        line.tell(
            "s2",
            SITE,
            "any",
            "any",
            "reply",
            f"r{number}",
            b"x",
            SECURE=True,
            ENCRYPTED=True,
            CLEAR_PAYLOAD_LEN=1,
        )
        line.tell("s2", SITE, ADMIN, "secret", "req", f"s{number}", b"x", SECURE=True, ENCRYPTED=True)
    alive(line, client, "after-the-answers")
    assert not any("credential_manager" in str(header.values()) for header in line.headers)


def send_piece(line, stream, place, size, data):
    """A piece of a large message of the aggregator's to a job."""
    more = {
        StreamHeaderKey.CHANNEL: CellChannel.RETURN_ONLY,
        StreamHeaderKey.TOPIC: "any",
        StreamHeaderKey.STREAM_ID: stream,
        StreamHeaderKey.SEQUENCE: place,
        StreamHeaderKey.SIZE: size,
        StreamHeaderKey.OFFSET: 0,
        StreamHeaderKey.DATA_TYPE: 1,
    }
    line.tell_more("server.j1", JOB, STREAM_CHANNEL, STREAM_DATA_TOPIC, more, data)


def test_announcing_a_large_message_takes_no_memory(site):
    server, _, job = site
    line, before = server.line(JOB), job.memory()
    for number in range(5):
        send_piece(line, 70 + number, 0, 1 << 30, b"x")
    working(line, job, "after-the-announcement")
    time.sleep(1)
    assert job.memory() < before + (100 << 20)


def test_pieces_that_wait_for_others_take_little_memory(site):
    """FLARE would keep a thousand of any size until the first has come, which need not be."""
    server, _, job = site
    line, before = server.line(JOB), job.memory()
    for place in range(1, 11):
        send_piece(line, 90, place, 0, bytes(40 << 20))
    working(line, job, "after-the-pieces")
    time.sleep(1)
    assert job.memory() < before + (150 << 20)


def test_a_client_takes_no_message_in_pieces(site):
    server, client, _ = site
    line, before = server.line(SITE), len(server.line(SITE).headers)
    more = {StreamHeaderKey.CHANNEL: ADMIN, StreamHeaderKey.TOPIC: "admin", StreamHeaderKey.STREAM_ID: 1}
    line.tell_more("server", SITE, STREAM_CHANNEL, STREAM_DATA_TOPIC, more, b"x", number="in-pieces")
    alive(line, client, "after-the-piece")
    soon(lambda: any("refused" in header.values() for header in line.headers[before:]))


@pytest.mark.parametrize("header", ["TOPIC", "ROUTE"])
def test_what_is_refused_is_not_remembered(site, header):
    """FLARE would keep a table of messages under each name and each sender that it ever heard of."""
    server, client, _ = site
    line, before = server.line(SITE), client.memory()
    for number in range(1500):
        word = f"{number:06}" * 8000
        topic, more = (word, {}) if header == "TOPIC" else ("any", {"ROUTE": [(word, 0.0)]})
        line.tell("server", SITE, "any", topic, number=f"long-{number}", **more)
    alive(line, client, f"after-many-{header}")
    assert client.memory() < before + (100 << 20)


def test_a_name_of_several_lines_does_not_come_into_a_log(site):
    server, client, job = site
    said = "x\n2026-11-16 FORGED"
    server.line(JOB).tell("server.j1", JOB, STREAM_CHANNEL, said, number="lines")
    working(server.line(JOB), job, "after-the-lines")
    server.line(SITE).tell("server", SITE, ADMIN, said, number="lines")
    alive(server.line(SITE), client, "after-the-lines-too")
    assert "lines" not in client.reached_by() + job.reached_by()
    assert not any("FORGED" in line for line in (*client.errors, *job.errors))


def test_a_file_of_the_site_does_not_come_back_in_an_answer(site, tmp_path):
    """FLARE would put it there for whoever sends an object that stands for it."""
    server, client, _ = site
    line = server.line(SITE)
    (tmp_path / "identity.pem").write_bytes(SECRET)
    more = {MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}
    for name, body in (("plain", wire({"a": 1})), ("asking", asking_for(tmp_path / "identity.pem"))):
        line.tell_more("server", SITE, ADMIN, "admin", more, body, number=name)
    soon(lambda: any(wire({"a": 1}) in payload for payload in line.payloads))
    alive(line, client, "after-the-file")
    time.sleep(1)
    assert "plain" in client.reached_by()
    assert not any(SECRET in payload for payload in line.payloads)
    assert "asking" not in client.reached_by()


def test_a_part_of_the_site_is_not_at_the_servers_end(keys):
    """Whoever provisioned the site has its certificate; FLARE would believe the name that goes with it."""
    server = FalseServer(keys, SITE)
    client = Cell(keys, SITE, server.port)
    try:
        line = server.line(SITE)
        line.greet("s1.evil")
        assert line.closed.wait(30)
        assert client.reached_by() == []
    finally:
        client.end()
        server.close()


def test_a_greeting_is_short(keys):
    server = FalseServer(keys)
    client = Cell(keys, SITE, server.port)
    try:
        line = server.line(SITE)
        line.greet("server", properties="x" * (2 * connections.MAX_GREETING))
        assert line.closed.wait(30)
    finally:
        client.end()
        server.close()


def test_strangers_who_say_nothing_keep_nobody_out(keys, monkeypatch):
    """FLARE's listener would wait for the first of them for ever."""
    for name in ("__init__", "finish_request"):
        monkeypatch.setattr(TcpStreamServer, name, getattr(TcpStreamServer, name))
    connections._wait_for_each_apart(TcpStreamServer)
    with socket.create_server(("localhost", 0)) as probe:
        port = probe.getsockname()[1]

    class Connector:
        params = {  # noqa: RUF012
            "host": "localhost",
            "port": port,
            "scheme": "stcp",
            "secure": True,
            "ca_cert": str(keys / "ca.crt"),
            "server_cert": str(keys / "server.crt"),
            "server_key": str(keys / "server.key"),
            "connection_security": "mtls",
        }

    class Driver:
        served = 0

        def add_connection(self, connection):
            self.served += 1
            assert connection.get_conn_properties()["peer_cn"] == SITE

        def close_connection(self, connection):
            pass

    driver = Driver()
    server = TcpStreamServer(driver, Connector())
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    strangers = [socket.create_connection(("localhost", port)) for _ in range(20)]
    try:
        plain = socket.create_connection(("localhost", port), timeout=30)
        with context(keys, SITE, ssl.Purpose.SERVER_AUTH).wrap_socket(plain):
            soon(lambda: driver.served)
        monkeypatch.setattr(connections, "PATIENCE", 0.2)
        late = socket.create_connection(("localhost", port), timeout=30)
        assert late.recv(1) == b""  # not waited for
        late.close()
    finally:
        for one in strangers:
            one.close()
        server.shutdown()
        server.server_close()
