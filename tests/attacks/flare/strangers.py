"""Who connects to a port of FLARE's by hand."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import ExitStack
from pathlib import Path

import psutil

from capedjica.flare import processes

# Of a message of 64 bytes, as FLARE frames it; no beginning of a handshake of TLS.
BEGINNING = struct.pack(">I", 64) + bytes(4)


def client_context(root: Path, workspace: Path | None) -> ssl.SSLContext:
    """Return how to connect to those whose root a workspace has, with the certificate of another or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(root / "startup" / "rootCA.pem")
    context.check_hostname = False
    if workspace is not None:
        context.load_cert_chain(workspace / "startup" / "client.crt", workspace / "startup" / "client.key")
    return context


def is_turned_away(port: int, context: ssl.SSLContext | None, seconds: float = 60.0) -> bool:
    """Whether somebody hangs up; they wait for the rest of the message of somebody who was let in."""
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


def handshakes(port: int, context: ssl.SSLContext, seconds: float) -> bool:
    """Whether a handshake comes to its end in some time."""
    try:
        with socket.create_connection(("localhost", port), timeout=seconds) as line:
            context.wrap_socket(line, server_hostname="localhost").close()
    except TimeoutError:
        return False
    return True


def internal_ports(place: Path) -> set[int]:
    """Return the ports by which a site's client and its jobs talk to each other."""
    lines = [line for one in processes.family(place, "carrier") for line in one.net_connections(kind="tcp")]
    return {line.laddr.port for line in lines if line.status == psutil.CONN_LISTEN}
