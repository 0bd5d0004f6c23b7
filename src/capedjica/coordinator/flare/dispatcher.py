"""Dispatcher that submits jobs to FLARE's server: a relay for each party, as settings without code.

``python -m capedjica.coordinator.flare.dispatcher KIT HOST PORT SOCKET`` runs as a process of the carrier,
with the coordinator's certificate for FLARE. FLARE decodes whatever the server sends to it, so it has access
to nothing else of the coordinator.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec

from capedjica.coordinator.flare.carrier_messages import DISPATCHER, Order, Report
from capedjica.errors import CapedjicaError, InputError, ProtocolError
from capedjica.flare.kit import AGGREGATOR_CLASS, COORDINATOR, SITE_CLASS, write_json
from capedjica.flare.link import VERSION, Greeting, answer_calls, connect
from capedjica.flare.processes import port_is_free
from capedjica.flare.wire import MAX_FRAME

# Time limit for connecting to the server.
_SERVER_SECONDS: Final = 60.0
_PAUSE: Final = 0.5
# FLARE's status of a client without jobs.
_NO_JOBS: Final = "no_jobs"


class Dispatcher:
    """Coordinator's connection to the server, renewed if the server was restarted."""

    def __init__(self, kit: Path, host: str, port: int) -> None:
        self._where = kit, host, port
        self._open()

    def _open(self) -> None:
        self._api = _connect(*self._where)
        self._server = str(self._api.get_system_info().server_info.start_time)

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._api.close()

    def obey(self, data: bytes) -> bytes:
        """Carry out an encoded order, and return the encoded report."""
        try:
            done = self._do(msgspec.msgpack.decode(data, type=Order))
            # Of the server that carried it out, which may have been restarted.
            report = msgspec.structs.replace(done, server=self._server)
        except (CapedjicaError, ValueError) as error:
            report = Report(error=str(error)[:1000])
        except Exception as error:
            report = Report(error=f"{type(error).__name__}: {error}"[:1000])
        return msgspec.msgpack.encode(report)

    def _do(self, order: Order) -> Report:
        match order.what:
            case "sites":
                sites, now = self._ask(lambda api: api.get_system_info()).client_info, time.time()
                return Report(heard={one.name: max(0.0, now - float(one.last_connect_time)) for one in sites})
            case "idle":
                sites = self._ask(lambda api: api.get_client_job_status()) or []
                return Report(
                    idle=tuple(one["client_name"] for one in sites if one.get("status") == _NO_JOBS)
                )
            case "submit":
                return Report(job=self._submit(order.seed))
            case "has ended":
                # A job that the server does not know has ended.
                return Report(ended=order.job not in self._unfinished())

    def _unfinished(self) -> list[str]:
        """Return the jobs that have not ended."""
        jobs = self._ask(lambda api: api.list_jobs()) or []
        return [job["job_id"] for job in jobs if not str(job.get("status", "")).startswith("FINISHED")]

    def _submit(self, seed: int | None) -> str:
        """Submit a job to the server, replacing all others; return its name."""
        # A restarted server may still list an earlier job as running.
        for earlier in self._unfinished():
            with suppress(Exception):
                self._api.abort_job(earlier)
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "relay"
            _write_job(job, seed)
            return str(self._ask(lambda api: api.submit_job(str(job))))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Return the answer to a query; if there is none, reconnect to the server and try once more."""
        try:
            return question(self._api)
        except Exception:
            self.close()
        try:
            self._open()
            return question(self._api)
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError(f"the server does not answer: {type(error).__name__}: {error}") from None


def _connect(kit: Path, host: str, port: int) -> Any:
    """Return a FLARE session with the server, as soon as one can be opened."""
    from nvflare.fuel.flare_api.flare_api import Session

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    deadline = time.monotonic() + _SERVER_SECONDS
    # FLARE leaks a socket with every failed attempt to connect.
    while port_is_free(host, port) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    while True:
        opened = Session(COORDINATOR, str(kit))
        try:
            # FLARE prints a message for every attempt.
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                opened.try_connect(5.0)
            return opened
        except Exception as error:
            with suppress(Exception):
                opened.close()
            if time.monotonic() > deadline:
                raise ProtocolError(f"the server at {host}:{port} cannot be reached: {error}") from None
        time.sleep(_PAUSE)


def _write_job(folder: Path, insecure_noise_seed: int | None) -> None:
    """Write the settings of a job, which name the relay of each party."""
    seed = {} if insecure_noise_seed is None else {"insecure_noise_seed": insecure_noise_seed}
    config = folder / "app" / "config"
    try:
        config.mkdir(parents=True)
        # The protocol, which knows the threshold, decides whether enough sites are connected.
        meta = {"name": "capedjica", "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}
        write_json(folder / "meta.json", meta)
        aggregator = {"id": "aggregator", "path": AGGREGATOR_CLASS, "args": {}}
        write_json(config / "config_fed_server.json", {"format_version": 2, "workflows": [aggregator]})
        site = {"tasks": ["none"], "executor": {"path": SITE_CLASS, "args": seed}}
        write_json(config / "config_fed_client.json", {"format_version": 2, "executors": [site]})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def main(kit: str, host: str, port: str, socket: str) -> None:
    """Carry out the aggregator's orders until it closes the connection."""
    try:
        with closing(Dispatcher(Path(kit), host, int(port))) as dispatcher:
            channel = connect(Path(socket), Greeting(VERSION, DISPATCHER), MAX_FRAME)
            answer_calls(channel, dispatcher.obey)
    except CapedjicaError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
