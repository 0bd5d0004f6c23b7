"""What a party takes from whoever connects, before it knows more of them than a certificate.

A frame on FLARE's wire begins with its length, and memory for all of it is reserved at once, up to 2 GB. A
party gone mad could fill another's memory by a few bytes, so frames are limited to what is ever sent. FLARE's
server also waits for one stranger's handshake before it listens to the next; here each is waited for apart,
and not for long.
"""

from __future__ import annotations

import logging
import ssl
from functools import wraps
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.drivers import socket_conn
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from capedjica.flare.size_limits import MAX_FRAME

# A name and a few properties.
MAX_GREETING: Final = 1 << 14
# Seconds for the handshake of TLS.
PATIENCE: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


def install() -> None:
    """Limit what this process takes."""
    # defence: frames-are-limited
    socket_conn.MAX_FRAME_SIZE = MAX_FRAME
    # defence: greetings-are-short
    _limit_greetings(ConnManager)
    _wait_for_each_apart(TcpStreamServer)


def make_no_connections(kind: type[CoreCell] = CoreCell) -> None:
    """Let no cell of this process make a connection that somebody else asks for."""

    def refuse(cell: CoreCell, to_cell: str, url: str) -> None:
        _LOG.warning("made no connection that %r asked for", to_cell)

    # defence: no-connection-for-the-asking
    kind._add_adhoc_connector = refuse


def _limit_greetings(kind: type[ConnManager]) -> None:
    plain = kind.process_frame

    @wraps(plain)
    def process(manager: ConnManager, connection: SfmConnection, frame: Any) -> None:
        greets = Prefix.from_bytes(frame).type in (Types.HELLO, Types.READY)
        if greets and len(frame) > MAX_GREETING:
            _LOG.warning("closed a connection that greeted with %d bytes", len(frame))
            connection.conn.close()
        else:
            plain(manager, connection, frame)

    kind.process_frame = process


def _wait_for_each_apart(kind: type[TcpStreamServer]) -> None:
    begin, serve = kind.__init__, kind.finish_request

    @wraps(begin)
    def listen(server: TcpStreamServer, *args: Any) -> None:
        begin(server, *args)
        if isinstance(server.socket, ssl.SSLSocket):
            # Sockets that this one accepts do as it says.
            # defence: handshakes-one-beside-the-other
            server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]

    @wraps(serve)
    def shake_hands(server: TcpStreamServer, request: Any, address: Any) -> None:
        """In a thread of its own."""
        if isinstance(request, ssl.SSLSocket):
            # defence: patience-with-a-handshake
            request.settimeout(PATIENCE)
            try:
                request.do_handshake()
            except OSError as error:
                _LOG.info("no handshake with %s: %s", address, error)
                return
            request.settimeout(None)
        serve(server, request, address)

    kind.__init__ = listen
    kind.finish_request = shake_hands
