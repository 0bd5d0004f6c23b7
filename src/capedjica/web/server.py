"""The server of the local web pages: on the loopback interface, until it is interrupted."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from capedjica.errors import InputError
from capedjica.web.application import Pages, make_application
from capedjica.web.security import Guard

LOOPBACK: Final = "127.0.0.1"
# Seconds in which a connection must have sent the head of a request.
_REQUEST_SECONDS: Final = 10.0
_MOST_CONNECTIONS: Final = 64
# An interruption too: before the server has its own handler, asyncio would only cancel its start.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(pages: Pages, *, port: int | None, idle_minutes: float, browser: bool) -> None:
    """Serve pages until interrupted; the opening address is printed, and opened in a browser if wanted."""
    try:
        if not 0 < idle_minutes <= 24 * 60:
            raise InputError(f"--idle must be more than 0 and at most 1440 minutes, got {idle_minutes:g}")
        with _ended_by_signals(), _listen(port or 0) as listener:
            _serve(pages, listener, idle_minutes, browser)
    finally:
        pages.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn termination and the end of the terminal into an exit that removes uploaded files."""
    # A hangup that is ignored already, as by nohup, stays ignored.
    numbers = [one for one in _ENDING if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _exit) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _listen(port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be from 1 to 65535, got {port}")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # defence: web-loopback-only
        listener.bind((LOOPBACK, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise InputError(f"port {port} of {LOOPBACK} cannot be used: {error.strerror}") from None
    return listener


class _Connection(H11Protocol):
    """A connection that is closed if it sends no whole request in time, or to make room for another one.

    Only connections without a request under way are closed, the oldest first: silent connections of other
    users of the machine do not keep the owner out.
    """

    _since = 0.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a connection."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._expect_request()
        known = [one for one in self.connections if isinstance(one, _Connection)]
        present = [one for one in known if not one.transport.is_closing()]
        if len(present) > _MOST_CONNECTIONS:
            min((one for one in present if one.idle), key=lambda one: one._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        if self._waiting is None and self.idle:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        self._waiting = self.loop.call_later(_REQUEST_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._waiting = None
        if self.idle:
            self.transport.abort()


def configuration(application: ASGIApp) -> uvicorn.Config:
    """Return how the application is served."""
    return uvicorn.Config(
        application,
        http=_Connection,
        access_log=False,
        log_level="critical",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )


def _serve(pages: Pages, listener: socket.socket, idle_minutes: float, browser: bool) -> None:
    guard = Guard(listener.getsockname()[1], 60 * idle_minutes, _announce)
    server = uvicorn.Server(configuration(make_application(pages, guard)))
    address = guard.renew()
    print("Press Enter for a new address, Ctrl-C to end.", flush=True)  # noqa: T201 (a program's words)
    if browser:
        page = pages.uploads.opening_page(address)
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
    if sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=_renew_on_enter, args=(guard,), daemon=True).start()
    asyncio.run(_until_ended(server, listener, pages))


async def _until_ended(server: uvicorn.Server, listener: socket.socket, pages: Pages) -> None:
    try:
        await server.serve(sockets=[listener])
    finally:
        # The loop waits for the threads that wait for commands.
        pages.close()


def _renew_on_enter(guard: Guard) -> None:
    for _ in sys.stdin:
        guard.renew()


def _announce(address: str) -> None:
    print(f"Open, once: {address}", flush=True)  # noqa: T201 (a program's words)
