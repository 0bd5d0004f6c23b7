"""Commands of the command line, run for the web pages in processes of their own.

The web process opens no key, ledger or scan: everything that it shows or does is a ``capedjica`` command. The
commands are children of one loaded process, ``capedjica.cli.warm``, so that each takes a moment to start.
Arguments go over a socket and are not visible in the process list.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

from capedjica.errors import InputError

Role = Literal["site", "study"]
_MODULE: Final = "capedjica.cli.warm"
# Output beyond this is cut: a page is for reading.
_MOST: Final = 64 << 20
# As many as the loaded process reads.
_MOST_ARGUMENTS: Final = 1 << 20
# Lines are wrapped by the browser.
_UNWRAPPED: Final = "2000"
# Seconds that a command may take to exit after it was interrupted, when the pages are closed.
_GRACE: Final = 2.0
_LOST: Final = "the command was ended before it was done; the folder may say more"


@dataclass(frozen=True)
class Finished:
    """Outcome of a command: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.code == 0

    @property
    def error(self) -> str:
        """The reason for a failure, without the program's name."""
        words = self.err.strip() or self.out.strip() or f"exit code {self.code}"
        return words.removeprefix("capedjica: ")

    def json(self) -> Any:
        """Return the JSON that the command printed; None where it printed none."""
        with suppress(ValueError):
            return json.loads(self.out)
        return None


@dataclass(eq=False)
class Running:
    """A command that was started; ``out`` and ``err`` are pipes, or None where it writes to a file."""

    out: IO[bytes] | None
    err: IO[bytes] | None
    status: IO[bytes]
    process: int = 0
    closed: bool = False
    _errors: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _handle: int | None = None

    def __post_init__(self) -> None:
        """Open a handle of the process, whose ID may be reused once it has ended."""
        if self.process and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._handle = os.pidfd_open(self.process)
        # The handle is of the command itself only if the command was still running after it was opened.
        if _readable(self.status.fileno()):
            self._drop_handle()
            self.process = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints, until it ends."""
        assert self.out is not None
        for line in self.out:
            yield line.decode("utf-8", "replace")

    def result(self) -> Finished:
        """Wait until the command has ended; return its outcome."""
        reader = threading.Thread(target=self._read_errors, daemon=True)
        reader.start()
        out = b"" if self.out is None else self.out.read(_MOST)
        if self.out is not None:
            # A command that prints more than is read ends, and is not waited for.
            self.out.close()
        reader.join()
        code = self.status.readline().strip()
        self.close()
        err = b"".join(self._errors).decode("utf-8", "replace")
        if not code:
            return Finished(-1, out.decode("utf-8", "replace"), err or _LOST)
        return Finished(int(code), out.decode("utf-8", "replace"), err)

    def _read_errors(self) -> None:
        if self.err is not None:
            self._errors.append(self.err.read(_MOST))
            self.err.close()

    def interrupt(self) -> None:
        """Interrupt the command, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End the command at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self.process and not self.closed:
                os.kill(self.process, number)

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        with self._lock:
            return self.closed or not self.process or (self._handle is not None and _readable(self._handle))

    def close(self) -> None:
        """Close what it is read from."""
        with self._lock:
            self.closed = True
            self._drop_handle()
        for one in (self.out, self.err, self.status):
            if one is not None:
                one.close()

    def _drop_handle(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Commands:
    """Runs commands of a role, ``"site"`` or ``"study"``; the loaded process is started when needed."""

    def __init__(self, role: Role) -> None:
        self._role, self._lock = role, threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._running: list[Running] = []
        self._closed = False

    def launch(self, arguments: Sequence[str], log: Path | None = None) -> Running:
        """Start a command; with ``log`` its output is appended to that file, and it outlives the pages."""
        status_in, status_out = os.pipe()
        out_in = err_in = None
        if log is None:
            out_in, out_out = os.pipe()
            err_in, err_out = os.pipe()
        else:
            out_out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            err_out = os.dup(out_out)
        try:
            self._send(list(arguments), [out_out, err_out, status_out])
        except BaseException:
            for unread in (status_in, out_in, err_in):
                if unread is not None:
                    os.close(unread)
            raise
        finally:
            for one in (out_out, err_out, status_out):
                os.close(one)
        status = open(status_in, "rb")  # noqa: SIM115 (closed by Running)
        number = status.readline().strip()
        running = Running(
            None if out_in is None else open(out_in, "rb"),  # noqa: SIM115
            None if err_in is None else open(err_in, "rb"),  # noqa: SIM115
            status,
            int(number or 0),
        )
        if log is None:
            self._track(running)
        return running

    def _track(self, running: Running) -> None:
        with self._lock:
            self._running = [one for one in self._running if not one.closed]
            self._running.append(running)
            if self._closed:
                running.kill()

    def run(self, *arguments: str) -> Finished:
        """Run a command to its end."""
        return self.launch(arguments).result()

    def _send(self, arguments: list[str], descriptors: list[int]) -> None:
        data = json.dumps(arguments).encode()
        if len(data) > _MOST_ARGUMENTS:
            raise InputError(
                f"the form has {len(data):,} bytes for the command, expected at most {_MOST_ARGUMENTS:,}; "
                "nothing was changed"
            )
        message = len(data).to_bytes(4) + data
        with self._lock:
            if self._closed:
                raise InputError("the pages are being closed; nothing was changed")
            for attempt in range(2):
                link = self._connect()
                try:
                    socket.send_fds(link, [message[:4]], descriptors)
                    link.sendall(message[4:])
                    return
                except OSError:
                    self._forget()
                    if attempt:
                        raise

    def _connect(self) -> socket.socket:
        if self._link is None or self._process is None or self._process.poll() is not None:
            self._forget()
            self._link, other = socket.socketpair()
            with other:
                self._process = subprocess.Popen(  # noqa: S603 (our own module)
                    [sys.executable, "-P", "-m", _MODULE, self._role],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | {"COLUMNS": _UNWRAPPED, "NO_COLOR": "1"},
                    start_new_session=True,
                )
        return self._link

    def _forget(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._link = self._process = None

    def close(self) -> None:
        """End the loaded process and its commands; those with a log, in the background, continue."""
        with self._lock:
            self._closed = True
            self._forget()
            left = self._running
        for one in left:
            one.interrupt()
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and not all(one.ended for one in left):
            time.sleep(0.02)
        for one in left:
            one.kill()


def _readable(descriptor: int) -> bool:
    """Whether reading would not block: a pipe with data or at its end, a process that has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def shown(arguments: Sequence[str]) -> str:
    """Return a command as it is typed in a terminal."""
    return shlex.join(["capedjica", *arguments])
