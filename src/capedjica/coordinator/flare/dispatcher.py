"""Who hands jobs to FLARE's server.

``python -m capedjica.coordinator.flare.dispatcher KIT HOST PORT SOCKET`` is a process of the carrier's, with
the coordinator's certificate for FLARE: what the server sends to it is unpacked by FLARE, so it has nothing
else of the coordinator's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from capedjica.coordinator.flare.jobs import Session, session
from capedjica.coordinator.flare.posts import DISPATCHER, Order, Report
from capedjica.errors import CapedjicaError
from capedjica.flare.link import VERSION, Greeting, LinkError, answer_calls, connect
from capedjica.flare.size_limits import MAX_FRAME

# How long the server may take until it can be talked to.
_SERVER_SECONDS: Final = 60.0


def obey(line: Session, data: bytes) -> bytes:
    """Return the report on an order."""
    try:
        return msgspec.msgpack.encode(_do(line, msgspec.msgpack.decode(data, type=Order)))
    except (CapedjicaError, ValueError) as error:
        return msgspec.msgpack.encode(Report(error=str(error)[:1000]))
    except Exception as error:
        return msgspec.msgpack.encode(Report(error=f"{type(error).__name__}: {error}"[:1000]))


def _do(line: Session, order: Order) -> Report:
    match order.what:
        case "sites":
            now = time.time()
            heard = {name: max(0.0, now - when) for name, when in line.connected().items()}
            return Report(line.server, heard)
        case "idle":
            return Report(line.server, idle=tuple(line.idle()))
        case "submit":
            return Report(line.server, job=line.submit(order.seed))
        case "has ended":
            ended = line.has_ended(order.job)
            return Report(line.server, ended=ended)
        case "end all":
            for job in line.unfinished():
                line.abort(job)
            return Report(line.server)


def main(kit: str, host: str, port: str, socket: str) -> None:
    """Obey the aggregator until it hangs up."""
    try:
        with session(Path(kit), host, int(port), _SERVER_SECONDS) as line:
            channel = connect(Path(socket), Greeting(VERSION, DISPATCHER), MAX_FRAME)
            answer_calls(channel, lambda data: obey(line, data))
    except (CapedjicaError, LinkError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
