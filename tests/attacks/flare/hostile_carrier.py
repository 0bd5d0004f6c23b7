"""A program in the place of FLARE at a site: it tries every door, and then serves a dishonest aggregator.

``python hostile_carrier.py TOLD``, launched as the product launches a carrier. TOLD is a file with all that
an attacker could hope to know. What came of it is written beside it; after that every parcel that comes to a
port of this machine is handed to the agent, and its answer back.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from capedjica.flare.link import VERSION, Call, Caller, Greeting, LinkError, Return, connect
from capedjica.flare.parcels import write_parcel
from capedjica.flare.wire import MAX_FRAME
from capedjica.mechanisms.messages import question_hash

LENGTH = struct.Struct(">I")
GUESSES = 50
_SEIZE, _PATIENCE = 0x4206, 240.0


def said(attempt: Callable[[], object]) -> str:
    """Return "did" for what could be done, and how everything else was refused."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except LinkError as error:
        return str(error)
    return "did"


class Attacker:
    """Tries the doors of one site."""

    def __init__(self, told: dict) -> None:
        self._files = told["files"]
        self._carrier, self._owner, self._place = Path(told["carrier"]), Path(told["owner"]), told["place"]

    def results(self) -> dict:
        """Try everything; the connection to the agent is the last."""
        agent = self._agent()
        return {
            "who": os.getuid(),
            "read": {path: said(lambda path=path: _read(path)) for path in self._files},
            "write": {
                path: said(lambda path=path: os.close(os.open(path, os.O_WRONLY))) for path in self._files
            },
            "agent": {name: said(attempt) for name, attempt in self._attempts_at(agent).items()},
            "owner": [said(lambda token=token: self._greet_owner(token)) for token in _tokens()],
            "frames": self._frames(),
            "second": self._second(),
        }

    def _agent(self) -> int:
        """Return the agent's process, which is to be seen by its command, once it listens."""
        until = time.monotonic() + _PATIENCE
        while said(lambda: self._connect().close()) != "did":
            assert time.monotonic() < until, "no agent"
            time.sleep(0.1)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"capedjica.site.agent" in words and self._place.encode() in words:
                    return int(folder.name)
        raise AssertionError("the agent is not to be seen")

    def _attempts_at(self, agent: int) -> dict[str, Callable[[], object]]:
        doors = {name: f"/proc/{agent}/{name}" for name in ("mem", "environ", "maps", "stack")}
        attempts: dict[str, Callable[[], object]] = {
            name: lambda path=path: _read(path) for name, path in doors.items()
        }
        attempts |= {name: lambda name=name: os.listdir(f"/proc/{agent}/{name}/") for name in ("root", "cwd")}
        attempts |= {
            f"descriptor {number}": lambda number=number: os.readlink(f"/proc/{agent}/fd/{number}")
            for number in range(3)
        }
        attempts["ptrace"] = lambda: _ptrace(agent)
        attempts |= {
            one.name: lambda one=one: os.kill(agent, one) for one in (signal.SIGSTOP, signal.SIGKILL)
        }
        return attempts

    def _connect(self, role: str = "carrier", version: int = VERSION) -> Caller:
        return Caller(connect(self._carrier, Greeting(version, role), MAX_FRAME))

    def _greet_owner(self, token: bytes) -> None:
        connect(self._owner, Greeting(VERSION, "owner", token), MAX_FRAME).close()

    def _frames(self) -> dict[str, str]:
        """Return, for each kind of nonsense, whether a carrier that behaves is served after it."""
        kinds: dict[str, bytes] = {
            "too long": LENGTH.pack(MAX_FRAME + 1),
            "longest": LENGTH.pack((1 << 32) - 1) + bytes(1000),
            "garbage": LENGTH.pack(64) + secrets.token_bytes(64),
            "nothing in it": LENGTH.pack(0),
            "cut off": LENGTH.pack(64) + b"x",
            "nested": LENGTH.pack(5000) + b"\x91" * 5000,
        }
        outcome = {name: self._after(lambda raw=raw: self._raw(raw)) for name, raw in kinds.items()}
        outcome["an answer"] = self._after(lambda: self._sent([Return(1, b"")]))
        outcome["flood"] = self._after(lambda: self._sent([Call(n, _probe(n)) for n in range(2000)]))
        outcome["role"] = said(lambda: self._connect("owner"))
        outcome["version"] = said(lambda: self._connect(version=99))
        return outcome

    def _raw(self, data: bytes) -> None:
        channel = connect(self._carrier, Greeting(VERSION, "carrier"), MAX_FRAME)
        with suppress(OSError):
            channel._line.sendall(data)
        channel.close()

    def _sent(self, messages: list) -> None:
        channel = connect(self._carrier, Greeting(VERSION, "carrier"), MAX_FRAME)
        with suppress(LinkError):
            for message in messages:
                channel.send(message)
        channel.close()

    def _after(self, attempt: Callable[[], object]) -> str:
        """Return whether the agent answers a probe, after an attempt that may be cut off."""
        until = time.monotonic() + _PATIENCE
        said(attempt)
        while (outcome := said(self._ask)) != "did" and time.monotonic() < until:
            time.sleep(0.1)
        return outcome

    def _ask(self) -> None:
        caller = self._connect()
        try:
            if not caller.call(_probe(0), 30.0):
                raise LinkError("an empty answer")
        finally:
            caller.close()

    def _second(self) -> str:
        """Return what a second connection is told while the first is there; the first is kept."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self.caller = self._connect()
                return said(lambda: self._connect())
            except LinkError:
                assert time.monotonic() < until, "the agent lets nobody in any more"
                time.sleep(0.1)


def _read(path: str) -> None:
    if os.path.isdir(path):
        os.listdir(path)
        return
    with open(path, "rb") as file:
        file.read(1)


def _ptrace(process: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_SEIZE, process, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


def _tokens() -> list[bytes]:
    return [b"", bytes(32), b"x" * 64, *(secrets.token_bytes(32) for _ in range(GUESSES))]


def _probe(number: int) -> bytes:
    """Return a parcel that asks for an answer that there is not."""
    return write_parcel(b"", question_hash(number.to_bytes(8, "big")))


def serve(caller: Caller, listener: socket.socket) -> None:
    """Hand each parcel that comes to the agent, and its answer back; nothing if there is none."""
    while True:
        line, _ = listener.accept()
        threading.Thread(target=_bridge, args=(caller, line), daemon=True).start()


def _bridge(caller: Caller, line: socket.socket) -> None:
    with line, line.makefile("rwb") as stream:
        while head := stream.read(LENGTH.size):
            parcel = stream.read(LENGTH.unpack(head)[0])
            try:
                answer = caller.call(parcel, 60.0)
            except LinkError:
                answer = b""
            stream.write(LENGTH.pack(len(answer)) + answer)
            stream.flush()


def main(told: Path) -> None:
    """Attack, tell, and serve."""
    attacker = Attacker(json.loads(told.read_text()))
    listener = socket.create_server(("127.0.0.1", 0))
    results = attacker.results() | {"port": listener.getsockname()[1]}
    (told.parent / "results.part").write_text(json.dumps(results))
    (told.parent / "results.part").rename(told.parent / "results.json")
    serve(attacker.caller, listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
