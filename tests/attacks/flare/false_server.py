"""The server's end of a site's connections, in the hands of somebody who writes whatever they like."""

import contextlib
import socket
import ssl
import struct
import threading
import time

import msgpack
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

PREFIX = struct.Struct(">IHBBHHHH")


def make_keys(folder):
    """Certificates of a consortium: ``server``, and two sites."""
    authority, public = generate_keys()
    root = generate_cert(Identity("ca"), Identity("ca"), authority, public, ca=True)
    (folder / "ca.crt").write_bytes(serialize_cert(root))
    for name in ("server", "s1", "s2"):
        key, public = generate_keys()
        made = generate_cert(
            Identity(name), Identity("ca"), authority, public, server_default_host="localhost"
        )
        (folder / f"{name}.crt").write_bytes(serialize_cert(made))
        (folder / f"{name}.key").write_bytes(serialize_pri_key(key))


def context(keys, name, purpose=ssl.Purpose.CLIENT_AUTH):
    made = ssl.create_default_context(purpose)
    made.check_hostname = False
    made.load_verify_locations(keys / "ca.crt")
    made.load_cert_chain(keys / f"{name}.crt", keys / f"{name}.key")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


class Line:
    """One connection: frames that came in are kept."""

    def __init__(self, sock):
        self._socket, self.headers, self.payloads, self.closed = sock, [], [], threading.Event()
        self.peer = None
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, kind, headers, payload, app=1):
        packed = b"" if headers is None else msgpack.packb(headers)
        length = PREFIX.size + len(packed) + len(payload)
        self._socket.sendall(PREFIX.pack(length, len(packed), kind, 0, 0, app, 20, 1) + packed + payload)

    def greet(self, name, **more):
        """Say who is here: ``name``."""
        said = msgpack.packb({"endpoint_name": name, "timestamp": time.time(), **more})
        self.send(Types.READY, None, said, app=0)

    def tell(self, origin, destination, channel, topic, kind="req", number="q", payload=b"", **more):
        """Send a message; ``more`` are further headers, by FLARE's names for them."""
        named = {getattr(Key, key): value for key, value in more.items()}
        self.tell_more(origin, destination, channel, topic, named, payload, kind, number)

    def tell_more(self, origin, destination, channel, topic, more, payload, kind="req", number="q"):
        headers = {
            Key.MSG_TYPE: kind,
            Key.REQ_ID: number,
            Key.REPLY_EXPECTED: True,
            Key.ORIGIN: origin,
            Key.DESTINATION: destination,
            Key.FROM_CELL: "server",
            Key.TO_CELL: destination,
            Key.CHANNEL: channel,
            Key.TOPIC: topic,
        }
        self.send(Types.DATA, headers | more, payload)

    def _read(self):
        with contextlib.suppress(OSError):
            while len(head := self._exactly(PREFIX.size)) == PREFIX.size:
                length, n_header, kind, *_ = PREFIX.unpack(head)
                rest = self._exactly(length - PREFIX.size)
                if kind == Types.HELLO:
                    self.peer = msgpack.unpackb(rest[n_header:])["endpoint_name"]
                elif kind == Types.DATA:
                    self.headers.append(msgpack.unpackb(rest[:n_header]))
                    self.payloads.append(rest[n_header:])
        self._socket.close()
        self.closed.set()

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.closed.wait(10)

    def _exactly(self, count):
        data = b""
        while len(data) < count and (piece := self._socket.recv(count - len(data))):
            data += piece
        return data


class FalseServer:
    """Listens as ``server``, or with the certificate of somebody else."""

    def __init__(self, keys, name="server"):
        self._listener, self._context, self._lines = (
            socket.create_server(("localhost", 0)),
            context(keys, name),
            [],
        )
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:  # closed
                return
            with contextlib.suppress(OSError):  # a handshake that failed is tried again
                self._lines.append(Line(self._context.wrap_socket(plain, server_side=True)))

    def line(self, peer):
        """The connection of a cell, when it has come."""
        return soon(lambda: next((one for one in self._lines if one.peer == peer), None))

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            line.close()


def soon(get):
    """What ``get`` returns once it returns anything."""
    deadline = time.monotonic() + 60
    while not (got := get()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return got
