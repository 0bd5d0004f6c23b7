"""Relays handed to the server as a job of FLARE: settings only, no code."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Final

from capedjica.errors import InputError, ProtocolError
from capedjica.flare.kit import AGGREGATOR_CLASS, COORDINATOR, SITE_CLASS, write_json
from capedjica.flare.processes import port_is_free

_PAUSE: Final = 0.5
# In FLARE's words.
_NO_JOBS: Final = "no_jobs"


@contextmanager
def session(kit: Path, host: str, port: int, seconds: float) -> Iterator[Session]:
    """Talk to the server as its coordinator, with the coordinator's kit; wait until it can be reached."""
    opened = Session(kit, host, port, seconds)
    try:
        yield opened
    finally:
        opened.close()


class Session:
    """The coordinator's line to the server; found again if the server was started again.

    Attributes
    ----------
    server : str
        By which one server is told from the next: when it began. What it did is lost with it.
    """

    def __init__(self, kit: Path, host: str, port: int, seconds: float) -> None:
        self._where, self._seconds = (kit, host, port), seconds
        self._open()

    def _open(self) -> None:
        self._api = _connect(*self._where, self._seconds)
        self.server = str(self._api.get_system_info().server_info.start_time)

    def close(self) -> None:
        """Hang up."""
        with suppress(Exception):
            self._api.close()

    def connected(self) -> dict[str, float]:
        """Return the sites that are connected, and when each was heard last (seconds since 1970)."""
        info = self._ask(lambda: self._api.get_system_info())
        return {client.name: float(client.last_connect_time) for client in info.client_info}

    def idle(self) -> list[str]:
        """Return the sites that say that they run no job."""
        found = self._ask(lambda: self._api.get_client_job_status()) or []
        return [one["client_name"] for one in found if one.get("status") == _NO_JOBS]

    def submit(self, insecure_noise_seed: int | None = None) -> str:
        """Hand a job to the server; return its name."""
        with tempfile.TemporaryDirectory() as folder:
            _write_job(Path(folder) / "relay", insecure_noise_seed)
            return str(self._ask(lambda: self._api.submit_job(str(Path(folder) / "relay"))))

    def has_ended(self, job: str) -> bool:
        """Whether a job has come to an end, however; one that the server does not know has."""
        return job not in self.unfinished()

    def abort(self, job: str) -> None:
        """End a job."""
        with suppress(Exception):
            self._api.abort_job(job)

    def unfinished(self) -> list[str]:
        """Return the jobs that have not ended."""
        jobs = self._ask(lambda: self._api.list_jobs()) or []
        return [job["job_id"] for job in jobs if not str(job.get("status", "")).startswith("FINISHED")]

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return an answer; where there is none, find the server again and ask once more."""
        try:
            return question()
        except Exception:
            self.close()
        try:
            self._open()
            return question()
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError(f"the server does not answer: {type(error).__name__}: {error}") from None


def _connect(kit: Path, host: str, port: int, seconds: float) -> Any:
    from nvflare.fuel.flare_api.flare_api import Session as FlareSession

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    deadline = time.monotonic() + seconds
    # FLARE leaves a socket open each time that it finds nobody.
    while port_is_free(host, port) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    while True:
        opened = FlareSession(COORDINATOR, str(kit))
        try:
            # FLARE announces every attempt.
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                opened.try_connect(5.0)
        except Exception as error:
            with suppress(Exception):
                opened.close()
            if time.monotonic() > deadline:
                raise ProtocolError(f"the server at {host}:{port} cannot be reached: {error}") from None
            time.sleep(_PAUSE)
        else:
            return opened


def _write_job(folder: Path, insecure_noise_seed: int | None) -> None:
    """Write a job's settings: which relay runs where."""
    seed = {} if insecure_noise_seed is None else {"insecure_noise_seed": insecure_noise_seed}
    config = folder / "app" / "config"
    try:
        config.mkdir(parents=True)
        meta = {
            "name": "capedjica",
            "resource_spec": {},
            "deploy_map": {"app": ["@ALL"]},
            # Whether enough sites are there is decided by the protocol, which knows the threshold.
            "min_clients": 1,
        }
        write_json(folder / "meta.json", meta)
        aggregator = {"id": "aggregator", "path": AGGREGATOR_CLASS, "args": {}}
        write_json(config / "config_fed_server.json", {"format_version": 2, "workflows": [aggregator]})
        site = {"tasks": ["none"], "executor": {"path": SITE_CLASS, "args": seed}}
        write_json(config / "config_fed_client.json", {"format_version": 2, "executors": [site]})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None
