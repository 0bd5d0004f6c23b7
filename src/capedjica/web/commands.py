"""Commands of the command line, run for the web pages in processes of their own.

The web process opens no key, ledger or scan: everything that it shows or does is a ``capedjica`` command. The
commands are children of one loaded process, ``capedjica.cli.warm``, so that each takes a moment to start.
Arguments go over a socket and are not visible in the process list.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

Role = Literal["site", "study"]
_MODULE: Final = "capedjica.cli.warm"
# Output beyond this is cut: a page is for reading.
_MOST: Final = 64 << 20
# Lines are wrapped by the browser.
_UNWRAPPED: Final = "2000"
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


@dataclass
class Running:
    """A command that was started; ``out`` and ``err`` are pipes, or None where it writes to a file."""

    out: IO[bytes] | None
    err: IO[bytes] | None
    status: IO[bytes]
    process: int = 0
    _errors: list[bytes] = field(default_factory=list)

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
        if self.process:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGINT)

    def close(self) -> None:
        """Close what it is read from."""
        for one in (self.out, self.err, self.status):
            if one is not None:
                one.close()


class Commands:
    """Runs commands of a role, ``"site"`` or ``"study"``; the loaded process is started when needed."""

    def __init__(self, role: Role) -> None:
        self._role, self._lock = role, threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

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
        finally:
            for one in (out_out, err_out, status_out):
                os.close(one)
        status = open(status_in, "rb")  # noqa: SIM115 (closed by Running)
        number = status.readline().strip()
        return Running(
            None if out_in is None else open(out_in, "rb"),
            None if err_in is None else open(err_in, "rb"),
            status,
            int(number or 0),
        )

    def run(self, *arguments: str) -> Finished:
        """Run a command to its end."""
        return self.launch(arguments).result()

    def _send(self, arguments: list[str], descriptors: list[int]) -> None:
        data = json.dumps(arguments).encode()
        message = len(data).to_bytes(4) + data
        with self._lock:
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
        """End the loaded process; commands that run in the background go on."""
        with self._lock:
            self._forget()


def shown(arguments: Sequence[str]) -> str:
    """Return a command as it is typed in a terminal."""
    return shlex.join(["capedjica", *arguments])
