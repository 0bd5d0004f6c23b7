"""FLARE's server and clients as processes of this machine: started, kept running, stopped with their jobs.

Each runs under a supervisor, ``python -m capedjica.study.federated.processes KIT ROLE NAME``, which starts it
again when it dies and takes it down, with the processes of its jobs, when it is told to end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import psutil

from capedjica.errors import InputError
from capedjica.study.federated.federation import ORGANISATION
from capedjica.study.locks import locked

Role = Literal["server", "client"]
_MODULE: Final = "capedjica.study.federated.processes"
_DETACHED: Final = "detached"
_PID: Final = "supervisor.pid"
_LOG: Final = "console.log"
# How long a process may take to end by itself.
_GRACE: Final = 10.0
# Pauses before a process that died is started again, the last for all further deaths.
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


def start(kit: Path, role: Role, name: str) -> int:
    """Start a party under a supervisor, in the background; return the supervisor's process number."""
    kit = kit.absolute()
    if running(kit) is not None:
        raise InputError(f"{kit} is running already, as process {running(kit)}")
    with open(kit / _LOG, "ab") as log:
        subprocess.run(  # noqa: S603 (our own module)
            [sys.executable, "-m", _MODULE, str(kit), role, name, _DETACHED],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    deadline = time.monotonic() + _GRACE
    while (pid := running(kit)) is None:
        if time.monotonic() > deadline:
            raise InputError(f"{kit} could not be started; {kit / _LOG} says why")
        time.sleep(0.05)
    return pid


def stop(kit: Path) -> bool:
    """Stop a party and all that it began; return whether there was anything to stop."""
    pid = running(kit)
    if pid is None:
        return False
    supervisor = psutil.Process(pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    supervisor.terminate()
    _, left = psutil.wait_procs(family, timeout=2 * _GRACE)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)
    return True


def running(kit: Path) -> int | None:
    """Return the number of the supervisor's process of a kit; None where none runs."""
    try:
        pid, began = (kit / _PID).read_text().split()
        # Numbers of processes are used again; the time at which one began tells which it is.
        return int(pid) if psutil.Process(int(pid)).create_time() == float(began) else None
    except (OSError, ValueError, psutil.Error):
        return None


def supervise(kit: Path, role: Role, name: str) -> None:
    """Run a party until told to end; start it again when it dies. Blocks."""
    kit = kit.absolute()
    with locked(kit / ".supervisor.lock", f"{kit} is running already"):
        (kit / _PID).write_text(f"{os.getpid()} {psutil.Process().create_time()!r}\n")
        try:
            with _ending() as ended:
                _keep_running(kit, role, name, ended)
        finally:
            (kit / _PID).unlink(missing_ok=True)


def _keep_running(kit: Path, role: Role, name: str, ended: list[bool]) -> None:
    for attempt in range(1 << 30):
        began = time.monotonic()
        process = subprocess.Popen(_command(kit, role, name), cwd=kit, env=_environment())  # noqa: S603 (FLARE)
        try:
            while process.poll() is None and not ended:
                time.sleep(0.1)
        finally:
            take_down(process.pid)
        if ended:
            return
        if time.monotonic() - began > 10 * _PAUSES[-1]:
            attempt = 0
        pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
        _say(f"the {role} ended with code {process.returncode}; it is started again in {pause:.0f} s")
        until = time.monotonic() + pause
        while time.monotonic() < until and not ended:
            time.sleep(0.1)
        if ended:
            return


def take_down(pid: int) -> None:
    """End a process and everything that it began."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(family, timeout=_GRACE)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)


@contextmanager
def _ending() -> Iterator[list[bool]]:
    """Yield a list that holds something once this process was told to end."""
    ended: list[bool] = []

    def note(number: int, frame: FrameType | None) -> None:
        ended.append(True)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(kit: Path, role: Role, name: str) -> list[str]:
    module = f"nvflare.private.fed.app.{role}.{role}_train"
    identity = [f"uid={name}"] if role == "client" else []
    settings = ["secure_train=true", *identity, f"org={ORGANISATION}", "config_folder=config"]
    return [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", f"fed_{role}.json", "--set", *settings]


def _environment() -> dict[str, str]:
    return os.environ | {"MALLOC_ARENA_MAX": "4"}


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens at a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) != 0


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(path: str, role: str, name: str, detached: str = "") -> None:
    """Supervise a party; detached, as nobody's child: whoever started it need not wait for its end."""
    if detached and os.fork():
        os._exit(0)
    supervise(Path(path), "server" if role == "server" else "client", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
