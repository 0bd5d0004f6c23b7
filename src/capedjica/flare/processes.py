"""Programs of a party as processes of this machine: started, kept running, stopped with all they began.

They run under a supervisor, ``python -m capedjica.flare.processes PLACE``, which starts each again when it
dies and takes all of them down when it is told to end. A supervisor may itself be killed: what it leaves
behind is found by its folders, and ended before anything else is started there.
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
from capedjica.flare.workspace import hand_over
from capedjica.tools.atomic_files import write_private
from capedjica.tools.confinement.calls import prctl
from capedjica.tools.confinement.carrier import Confinement
from capedjica.tools.locks import locked

_MODULE: Final = "capedjica.flare.processes"
_PID: Final = "supervisor.pid"
_PROGRAMS: Final = "programs.json"
# How long a process may take to end by itself.
_GRACE: Final = 10.0
# Pauses before a process that died is started again, the last for all further deaths.
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_SET_CHILD_SUBREAPER: Final = 36


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is run: a name for people, the command, what it reads first, and the folder that it works in."""

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
    """Return a program that is confined before it begins, to a folder that is its own from now on."""
    hand_over(folder, confinement)
    launcher = (sys.executable, "-m", "capedjica.flare.launch", str(folder))
    return Program(name, launcher, str(folder), program_input(confinement, folder, command, secrets, socket))


def mark(pid: int) -> str:
    """Return what a process is known by: numbers are used again, but not with the time at which it began.

    That is by the clock since the start of the machine: the other one is set.
    """
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = repr(psutil.Process(pid).create_time())
    return f"{pid} {began}"


def marked(known: str) -> int | None:
    """Return the number of the process of a mark; None if it has ended."""
    try:
        process = psutil.Process(int(known.split()[0]))
        alive = process.status() != psutil.STATUS_ZOMBIE and mark(process.pid) == known
        return process.pid if alive else None
    except (psutil.Error, ValueError, IndexError):
        return None


def start(place: Path, programs: Sequence[Program], owner: str = "") -> int:
    """Start programs under a supervisor, in the background; return the supervisor's process number.

    With the mark of an ``owner`` they end when that process does.
    """
    place = place.resolve()
    if running(place) is not None:
        raise InputError(f"{place} is running already, as process {running(place)}")
    _write_programs(place, programs)
    with open(place / "supervisor.log", "ab") as console:
        subprocess.run(  # noqa: S603 (our own module)
            [sys.executable, "-m", _MODULE, str(place), owner],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            check=False,
        )
    wait_until(lambda: running(place) is not None, _GRACE)
    if (pid := running(place)) is None:
        raise InputError(f"{place} could not be started; {place / 'supervisor.log'} says why")
    return pid


def _write_programs(place: Path, programs: Sequence[Program]) -> None:
    """Write down what is to run: whoever supervises needs it, and whoever stops what was left behind."""
    # FLARE puts paths into a line that it splits again, and could start no job.
    for path in (sys.executable, *(program.folder for program in programs)):
        if any(letter in path for letter in " \t\n\r\\\"'#"):
            raise InputError(
                f"{path!r}: NVIDIA FLARE cannot work with a path that holds spaces, quotes or '#'; move it "
                "to another place"
            )
    write_private(place / _PROGRAMS, msgspec.json.encode(list(programs)))


def _read_programs(place: Path) -> list[Program]:
    try:
        return msgspec.json.decode((place / _PROGRAMS).read_bytes(), type=list[Program])
    except (OSError, ValueError):
        return []


def stop(place: Path) -> bool:
    """Stop programs and all that they began; return whether there was anything to stop."""
    place = place.resolve()
    pid = running(place)
    # It takes down the others, and would start again what is ended before it.
    supervisor = [] if pid is None else [psutil.Process(pid)]
    _end(supervisor, 3 * _GRACE)
    left = family(place)
    _end(left, _GRACE)
    return bool(supervisor or left)


def running(place: Path) -> int | None:
    """Return the number of the supervisor's process; None where none runs."""
    try:
        return marked((place / _PID).read_text().strip())
    except (OSError, ValueError):
        return None


def log(place: Path, program: str) -> Path:
    """Return where what a program prints is written, and why it was started again."""
    return place / f"{program}.log"


def family(place: Path, program: str | None = None) -> list[psutil.Process]:
    """Return the processes of all programs or of one, those that they began included, whoever began them."""
    folders = {one.folder for one in _read_programs(place.resolve()) if program in (None, one.name)}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "-m" in words and folders & set(words) and _MODULE not in words:
                found.append(process)
    return found


def supervise(place: Path, programs: Sequence[Program]) -> None:
    """Run programs until told to end; start each again when it dies. Blocks."""
    place = place.resolve()
    _write_programs(place, programs)
    _supervise(place)


def _supervise(place: Path, owner: str = "") -> None:
    """Supervise until told to end, or until the owner ends, or a program refuses to run."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    with locked(place / ".supervisor.lock", f"{place} is running already"):
        _end(family(place), _GRACE)
        # What a program leaves behind when it dies becomes a child of this process.
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
    """End what a program began and left behind, under whatever name it hides."""
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
        """Start the program if it does not run and it is time; whether it is given up for good."""
        if self._process is None:
            if time.monotonic() >= self._due:
                self._start()
            return False
        code = self._process.poll()
        if code is None:
            return False
        # Of a program that was killed, what it began is left.
        _end(family(self._place, self._program.name), _GRACE)
        self._process = None
        if code == FINAL_CODE:
            self._say(f"{self._program.name} refuses to run, and is not started again")
            return True
        long = time.monotonic() - self._began > 10 * _PAUSES[-1]
        self._attempt = 1 if long else self._attempt + 1
        pause = _PAUSES[min(self._attempt, len(_PAUSES)) - 1]
        self._due = time.monotonic() + pause
        self._say(f"{self._program.name} ended with code {code}; it is started again in {pause:.0f} s")
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
    """End processes, first kindly."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens at a port of this machine; nothing does under a name that is not known."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex((host, port)) != 0
        except OSError:
            return True


def refusal(log_file: Path) -> str:
    """Return why a program refused to run: the line that it printed before its supervisor's last."""
    with suppress(OSError):
        lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "is not started again" not in line), "")
    return ""


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until something has happened; whether it did in time."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def main(path: str, owner: str) -> None:
    """Supervise programs as nobody's child: whoever started it need not wait for its end."""
    if os.fork():
        os._exit(0)
    _supervise(Path(path), owner)


if __name__ == "__main__":
    main(*sys.argv[1:])
