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

from capedjica.errors import InputError
from capedjica.web.application import Pages, make_application
from capedjica.web.security import Guard

LOOPBACK: Final = "127.0.0.1"
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


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


def _serve(pages: Pages, listener: socket.socket, idle_minutes: float, browser: bool) -> None:
    guard = Guard(listener.getsockname()[1], 60 * idle_minutes, _announce)
    config = uvicorn.Config(
        make_application(pages, guard),
        access_log=False,
        log_level="critical",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = uvicorn.Server(config)
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
