"""A peer in a process and an environment of its own, asked for one measurement at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from rich.console import Console

from benchmarks.framework import ROOT, Measure

_PATIENCE: Final = 900  # seconds for an installation


class PeerUnavailableError(Exception):
    """The peer cannot be run here; the text says why in one line."""


class Peer:
    """A running peer program: a task name in, the seconds it took out, one line each.

    Parameters
    ----------
    program : str
        The module ``benchmarks.peers.<program>``.
    package, requirement : str
        What it measures; the environment ``.venv-<package>`` is made from the requirement if it is missing.
    console : Console
        Where the installation is announced.
    """

    def __init__(self, program: str, package: str, requirement: str, console: Console) -> None:
        self._name = package
        python = _ensure_environment(package, requirement, console)
        # A session of its own: Ctrl-C reaches this program only, which then ends the peer in order.
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{program}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.version = str(self._ask("version"))
        except BaseException:
            self._close()
            raise

    def measure(self, task: str) -> Measure:
        """Return a measurement of ``task``, made by the peer itself."""
        return lambda: float(str(self._ask(task)))

    def _ask(self, task: str) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerUnavailableError(f"{self._name} ended unexpectedly") from None
        answer = self._process.stdout.readline()
        if not answer:
            raise PeerUnavailableError(f"{self._name} ended while measuring {task!r}")
        return json.loads(answer)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._process.terminate()
        self._process.communicate()


def _ensure_environment(package: str, requirement: str, console: Console) -> Path:
    folder = ROOT / f".venv-{package}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        console.print(f"installing {requirement} into {folder.name} (once) ...")
        _run(package, [sys.executable, "-m", "venv", "--clear", str(folder)])
        _run(package, [str(python), "-m", "pip", "install", "--quiet", requirement])
        complete.touch()
    return python


def _run(package: str, command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        raise PeerUnavailableError(
            f"{package} could not be installed (is there a network?): {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """Return the line in which pip says what went wrong, or else the error itself."""
    lines = str(getattr(error, "stderr", None) or "").splitlines()
    return next((line for line in lines if line.startswith("ERROR")), str(error))
