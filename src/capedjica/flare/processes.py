"""FLARE's server and clients as processes of this machine: started, kept running, stopped with their jobs.

Each runs under a supervisor, ``python -m capedjica.flare.processes KIT ROLE NAME``, which starts it
again when it dies and takes it down, with the processes of its jobs, when it is told to end. A supervisor may
itself be killed: what it leaves behind is found by its kit, and ended before anything else is started there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import psutil

from capedjica.errors import InputError
from capedjica.flare.kit import ORGANISATION
from capedjica.tools.locks import locked

Role = Literal["server", "client"]
_MODULE: Final = "capedjica.flare.processes"
_PROGRAMS: Final = {
    "server": "capedjica.coordinator.flare.program",
    "client": "capedjica.site.flare.program",
}
# Where FLARE keeps what it runs as processes.
_FLARE: Final = "nvflare.private.fed.app."
_DETACHED: Final = "detached"
_PID: Final = "supervisor.pid"
_LOG: Final = "console.log"
# How long a process may take to end by itself.
_GRACE: Final = 10.0
# Pauses before a process that died is started again, the last for all further deaths.
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Mark:
    """A process: numbers are used again, but not with the same time at which it began."""

    pid: int
    began: str

    @classmethod
    def own(cls) -> Mark:
        """Return that of this process."""
        return cls(os.getpid(), _began(os.getpid()))

    @classmethod
    def read(cls, text: str) -> Mark:
        """Return what ``str`` wrote."""
        pid, began = text.split()
        return cls(int(pid), began)

    def __str__(self) -> str:
        return f"{self.pid} {self.began}"

    def is_alive(self) -> bool:
        """Whether the process runs."""
        try:
            ended = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
            return not ended and _began(self.pid) == self.began
        except psutil.Error:
            return False


def _began(pid: int) -> str:
    """Return when a process began, by the clock since the start of the machine: the other one is set."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return repr(psutil.Process(pid).create_time())


def start(kit: Path, role: Role, name: str, owner: Mark | None = None) -> int:
    """Start a party under a supervisor, in the background; return the supervisor's process number.

    With an ``owner`` it ends when that process does.
    """
    kit = kit.absolute()
    _check_paths(kit)
    if running(kit) is not None:
        raise InputError(f"{kit} is running already, as process {running(kit)}")
    with open(log(kit), "ab") as console:
        subprocess.run(  # noqa: S603 (our own module)
            [sys.executable, "-m", _MODULE, str(kit), role, name, _DETACHED, str(owner or "")],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            check=False,
        )
    deadline = time.monotonic() + _GRACE
    while (pid := running(kit)) is None:
        if time.monotonic() > deadline:
            raise InputError(f"{kit} could not be started; {log(kit)} says why")
        time.sleep(0.05)
    return pid


def stop(kit: Path) -> bool:
    """Stop a party and all that it began; return whether there was anything to stop."""
    kit = kit.absolute()
    pid = running(kit)
    # It takes down the others, and would start again what is ended before it.
    supervisor = [] if pid is None else [psutil.Process(pid)]
    _end(supervisor, 3 * _GRACE)
    left = family(kit)
    _end(left, _GRACE)
    return bool(supervisor or left)


def running(kit: Path) -> int | None:
    """Return the number of the supervisor's process of a kit; None where none runs."""
    try:
        mark = Mark.read((kit / _PID).read_text())
    except (OSError, ValueError):
        return None
    return mark.pid if mark.is_alive() else None


def log(kit: Path) -> Path:
    """Return where a kit's party writes what it prints, and its supervisor why it was started again."""
    return kit / _LOG


def family(kit: Path) -> list[psutil.Process]:
    """Return the processes of FLARE that work in a kit, those of jobs included, whoever began them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(kit) in (words := process.cmdline()) and any(word.startswith(_FLARE) for word in words):
                found.append(process)
    return found


def supervise(kit: Path, role: Role, name: str, owner: Mark | None = None) -> None:
    """Run a party until told to end, or until its owner ends; start it again when it dies. Blocks."""
    kit = kit.absolute()
    _check_paths(kit)
    with locked(kit / ".supervisor.lock", f"{kit} is running already"):
        _end(family(kit), _GRACE)
        (kit / _PID).write_text(f"{Mark.own()}\n")
        try:
            with _ending() as told:
                _keep_running(
                    kit, role, name, lambda: bool(told) or (owner is not None and not owner.is_alive())
                )
        finally:
            (kit / _PID).unlink(missing_ok=True)


def _check_paths(kit: Path) -> None:
    """Refuse a kit in which FLARE could start no job: it puts paths into a line that it splits again."""
    for path in (str(kit), sys.executable):
        if any(letter in path for letter in " \t\n\r\\\"'#"):
            raise InputError(
                f"{path!r}: NVIDIA FLARE cannot work with a path that holds spaces, quotes or '#'; move it "
                "to another place"
            )


def _keep_running(kit: Path, role: Role, name: str, ended: Callable[[], bool]) -> None:
    attempt = 0
    while not ended():
        began = time.monotonic()
        process = subprocess.Popen(_command(kit, role, name), cwd=kit, env=_environment())  # noqa: S603 (FLARE)
        try:
            _wait_until(lambda: process.poll() is not None or ended())  # noqa: B023 (called at once)
        finally:
            # Of a party that was killed the jobs are left.
            _end(family(kit), _GRACE)
            process.wait()
        if ended():
            return
        attempt = 1 if time.monotonic() - began > 10 * _PAUSES[-1] else attempt + 1
        pause = _PAUSES[min(attempt, len(_PAUSES)) - 1]
        _say(f"the {role} ended with code {process.returncode}; it is started again in {pause:.0f} s")
        until = time.monotonic() + pause
        _wait_until(lambda: time.monotonic() > until or ended())  # noqa: B023 (called at once)


def _wait_until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.1)


def _end(processes: list[psutil.Process], grace: float) -> None:
    """End processes, first kindly."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace)
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
    module = f"{_FLARE}{role}.{role}_train"
    identity = [f"uid={name}"] if role == "client" else []
    settings = ["secure_train=true", *identity, f"org={ORGANISATION}", "config_folder=config"]
    program = [sys.executable, "-u", "-m", _PROGRAMS[role], module]
    return [*program, "-m", str(kit), "-s", f"fed_{role}.json", "--set", *settings]


def _environment() -> dict[str, str]:
    # With a fixed threshold glibc gives large buffers back to the system when they are done with. No code is
    # taken from the folder that a party runs in, which is the kit.
    return os.environ | {
        "MALLOC_ARENA_MAX": "4",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "PYTHONSAFEPATH": "1",
    }


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens at a port of this machine; nothing does under a name that is not known."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex((host, port)) != 0
        except OSError:
            return True


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(path: str, role: str, name: str, detached: str = "", owner: str = "") -> None:
    """Supervise a party; detached, as nobody's child: whoever started it need not wait for its end."""
    if detached and os.fork():
        os._exit(0)
    mark = Mark.read(owner) if owner else None
    supervise(Path(path), "server" if role == "server" else "client", name, mark)


if __name__ == "__main__":
    main(*sys.argv[1:])
