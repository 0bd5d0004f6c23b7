"""Supervision of a party's programs on this machine: start, restart, and stop with all child processes.

They run under a supervisor, ``python -m capedjica.flare.processes PLACE``, which restarts each program when
it dies and stops all of them when it is terminated. If the supervisor itself is killed, its remaining
processes are found by their folders and terminated before anything else is started there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from capedjica.errors import InputError
from capedjica.flare.launch import FINAL_CODE, program_input
from capedjica.tools.atomic_files import write_private
from capedjica.tools.confinement.calls import prctl
from capedjica.tools.confinement.carrier import Confinement
from capedjica.tools.locks import locked

_MODULE: Final = "capedjica.flare.processes"
_PID: Final = "supervisor.pid"
_PROGRAMS: Final = "programs.json"
# Seconds that a process may take to exit after it was asked to.
_GRACE: Final = 10.0
# Pauses in seconds before a process is restarted; the last one is used for all further restarts.
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_SET_CHILD_SUBREAPER: Final = 36


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program to run: its name, command, working folder and standard input."""

    name: str
    command: tuple[str, ...]
    folder: str
    input: str = ""


def confined(
    name: str,
    confinement: Confinement,
    folder: Path,
    command: Sequence[str],
    secrets: Sequence[Path],
    socket: Path,
) -> Program:
    """Return a program that is confined before it starts, and give it ownership of its folder."""
    # On use: a supervisor, which never gets here, would load all that a kit is checked with.
    from capedjica.flare.workspace import hand_over

    hand_over(folder, confinement)
    launcher = (sys.executable, "-P", "-m", "capedjica.flare.launch", str(folder))
    return Program(name, launcher, str(folder), program_input(confinement, folder, command, secrets, socket))


def mark(pid: int) -> str:
    """Return an identifier of a process: its ID and start time, since process IDs are reused.

    The start time is measured since boot, because the wall clock can be changed.
    """
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = repr(psutil.Process(pid).create_time())
    return f"{pid} {began}"


def marked(known: str) -> int | None:
    """Return the process ID of a mark; None if the process has ended."""
    try:
        process = psutil.Process(int(known.split()[0]))
        alive = process.status() != psutil.STATUS_ZOMBIE and mark(process.pid) == known
        return process.pid if alive else None
    except (psutil.Error, ValueError, IndexError):
        return None


def start(place: Path, programs: Sequence[Program], owner: str = "") -> int:
    """Start programs under a supervisor in the background; return the supervisor's process ID.

    If the mark of an ``owner`` is given, they end when that process ends.
    """
    place = place.resolve()
    if running(place) is not None:
        raise InputError(f"{place} is already running, as process {running(place)}")
    _write_programs(place, programs)
    with open(place / "supervisor.log", "ab") as console:
        subprocess.run(  # noqa: S603 (our own module)
            [sys.executable, "-P", "-m", _MODULE, str(place), owner],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            check=False,
        )
    wait_until(lambda: running(place) is not None, _GRACE)
    if (pid := running(place)) is None:
        raise InputError(f"{place} could not be started; see {place / 'supervisor.log'}")
    return pid


def _write_programs(place: Path, programs: Sequence[Program]) -> None:
    """Write the list of programs, which is needed to supervise them and to stop leftover processes."""
    # FLARE joins paths into one line and splits it again; with such characters no job could start.
    for path in (sys.executable, *(program.folder for program in programs)):
        if any(letter in path for letter in " \t\n\r\\\"'#"):
            raise InputError(
                f"{path!r}: NVIDIA FLARE does not support paths with spaces, quotes or '#'; move it to "
                "another folder"
            )
    write_private(place / _PROGRAMS, msgspec.json.encode(list(programs)))


def _read_programs(place: Path) -> list[Program]:
    try:
        return msgspec.json.decode((place / _PROGRAMS).read_bytes(), type=list[Program])
    except (OSError, ValueError):
        return []


def stop(place: Path) -> bool:
    """Stop programs and all their child processes; return whether there was anything to stop."""
    place = place.resolve()
    pid = running(place)
    # The supervisor first: it stops the others, and would restart a process that is stopped before it.
    supervisor = [] if pid is None else [psutil.Process(pid)]
    _end(supervisor, 3 * _GRACE)
    left = family(place)
    _end(left, _GRACE)
    return bool(supervisor or left)


def running(place: Path) -> int | None:
    """Return the process ID of the supervisor; None if it is not running."""
    try:
        return marked((place / _PID).read_text().strip())
    except (OSError, ValueError):
        return None


def log(place: Path, program: str) -> Path:
    """Return the log file of a program's output and restarts."""
    return place / f"{program}.log"


def family(place: Path, program: str | None = None) -> list[psutil.Process]:
    """Return the processes of one or all programs and their children, regardless of their supervisor."""
    folders = {one.folder for one in _read_programs(place.resolve()) if program in (None, one.name)}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "-m" in words and folders & set(words) and _MODULE not in words:
                found.append(process)
    return found


def supervise(place: Path, programs: Sequence[Program]) -> None:
    """Run programs until terminated, and restart each when it dies. Blocks."""
    place = place.resolve()
    _write_programs(place, programs)
    _supervise(place)


def _supervise(place: Path, owner: str = "") -> None:
    """Supervise until terminated, until the owner ends, or until a program refuses to run."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    with locked(place / ".supervisor.lock", f"{place} is already running"):
        _end(family(place), _GRACE)
        # Orphaned children of a program become children of this process.
        with suppress(AttributeError, OSError):
            prctl(_SET_CHILD_SUBREAPER, 1)
        (place / _PID).write_text(f"{mark(os.getpid())}\n")
        kept = [_Kept(place, program) for program in _read_programs(place)]
        try:
            while not told and (not owner or marked(owner) is not None):
                if any(one.look() for one in kept):
                    break
                _end_orphans(kept)
                time.sleep(0.1)
        finally:
            _end([process for one in kept for process in one.processes()], _GRACE)
            _end(family(place), _GRACE)
            _end(psutil.Process().children(recursive=True), _GRACE)
            (place / _PID).unlink(missing_ok=True)


def _end_orphans(kept: Sequence[_Kept]) -> None:
    """End orphaned processes of programs, whatever their name."""
    own = {process.pid for one in kept for process in one.processes()}
    # defence: nothing-outlives-a-carrier
    _end([child for child in psutil.Process().children() if child.pid not in own], _GRACE)


class _Kept:
    """A program that is kept running."""

    def __init__(self, place: Path, program: Program) -> None:
        self._place, self._program = place, program
        self._process: subprocess.Popen[bytes] | None = None
        self._attempt, self._began, self._due = 0, 0.0, 0.0

    def look(self) -> bool:
        """Start the program if it is due; return whether it must not be restarted."""
        if self._process is None:
            if time.monotonic() >= self._due:
                self._start()
            return False
        code = self._process.poll()
        if code is None:
            return False
        # The children of a killed program are still running.
        _end(family(self._place, self._program.name), _GRACE)
        self._process = None
        if code == FINAL_CODE:
            self._say(f"{self._program.name} refuses to run and is not started again")
            return True
        long = time.monotonic() - self._began > 10 * _PAUSES[-1]
        self._attempt = 1 if long else self._attempt + 1
        pause = _PAUSES[min(self._attempt, len(_PAUSES)) - 1]
        self._due = time.monotonic() + pause
        self._say(f"{self._program.name} ended with exit code {code}; restarting in {pause:.0f} s")
        return False

    def _start(self) -> None:
        self._began = time.monotonic()
        with open(log(self._place, self._program.name), "ab") as console:
            self._process = subprocess.Popen(  # noqa: S603 (written down by our own code)
                self._program.command,
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                cwd=self._place,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(self._program.input.encode())
            self._process.stdin.close()

    def processes(self) -> list[psutil.Process]:
        """Return the program's own process, if it runs."""
        try:
            return [] if self._process is None else [psutil.Process(self._process.pid)]
        except psutil.Error:
            return []

    def _say(self, text: str) -> None:
        with open(log(self._place, self._program.name), "a") as console:
            console.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def _end(processes: list[psutil.Process], grace: float) -> None:
    """Terminate processes, and kill those that do not exit in time."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)


def port_is_free(host: str, port: int) -> bool:
    """Return whether no process listens on a port; also True for an unknown host name."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex((host, port)) != 0
        except OSError:
            return True


def refusal(log_file: Path) -> str:
    """Return why a program refused to run: its last line before the supervisor's."""
    with suppress(OSError):
        lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "is not started again" not in line), "")
    return ""


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition is true; return whether it became true in time."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def main(path: str, owner: str) -> None:
    """Supervise programs in a detached process, for whose end the caller need not wait."""
    if os.fork():
        os._exit(0)
    _supervise(Path(path), owner)


if __name__ == "__main__":
    main(*sys.argv[1:])
