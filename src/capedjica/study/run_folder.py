"""The folder of one run: what it was asked to do, how far it is, and what came out."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from capedjica import __version__
from capedjica.errors import InputError
from capedjica.study.study_file import Study, write_study

SCHEMA: Final = 1


class RunState(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``run.json``: whose run this is and how far it came."""

    schema: int = SCHEMA
    capedjica: str = __version__
    title: str
    study: str
    contract: str
    started: str
    complete: bool = False
    # Time spent in all attempts, and how often the run was taken up again.
    seconds: float = 0.0
    resumed: int = 0


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps everything; :meth:`claim` it before writing."""

    path: Path

    @property
    def journal_path(self) -> Path:
        """The releases made so far."""
        return self.path / "releases.bin"

    @property
    def log_path(self) -> Path:
        """What happened, line by line."""
        return self.path / "log.txt"

    def state(self) -> RunState | None:
        """Return the run that is here; None for a folder that is new or empty, InputError for any other."""
        file = self.path / "run.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=RunState)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise InputError(f"{file} is not the state of a run: {error}") from None
        if self.path.exists() and (not self.path.is_dir() or _visible(self.path)):
            raise InputError(f"{self.path} exists and holds no run: give a new or an empty folder")
        return None

    def check(self, study: Study) -> RunState | None:
        """Return the state of an earlier attempt at the same study; refuse a folder of any other run."""
        state = self.state()
        if state is None:
            return None
        if state.contract != study.contract.hash.hex():
            raise InputError(
                f"{self.path} holds the run of another study, '{state.title}' ({state.study[:16]}); "
                f"this one is '{study.content.title}' ({study.hash.hex()[:16]}): give another folder"
            )
        if state.capedjica != __version__ and not state.complete:
            raise InputError(
                f"{self.path} was begun by capedjica {state.capedjica} and can only be resumed by it; "
                f"this is {__version__}"
            )
        return state

    @contextmanager
    def claim(self, study: Study) -> Iterator[RunState]:
        """Begin or take up the run, alone; add the time it took when it ends, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "wb")  # noqa: SIM115 (released below)
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path} is in use by another process") from None
            state, started = self._begin(study), time.monotonic()
            try:
                yield state
            finally:
                # What was lost to a kill is not known; the time of the attempts that ended is.
                latest = self.state() or state
                spent = latest.seconds + time.monotonic() - started
                self.write("run.json", _json(msgspec.structs.replace(latest, seconds=round(spent, 3))))

    def _begin(self, study: Study) -> RunState:
        earlier = self.check(study)
        if earlier is not None:
            state = msgspec.structs.replace(earlier, resumed=earlier.resumed + 1)
        else:
            write_study(self.path / "study.toml", study.content)
            state = RunState(
                title=study.content.title,
                study=study.hash.hex(),
                contract=study.contract.hash.hex(),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        self.write("run.json", _json(state))
        return state

    def finish(self, state: RunState) -> None:
        """Mark the run as complete, after everything else was written."""
        self.write("run.json", _json(msgspec.structs.replace(state, complete=True)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        self.produce(name, lambda draft: draft.write_bytes(content))

    def produce(self, name: str, make: Callable[[Path], object]) -> None:
        """Let ``make(path)`` write a file; it gets its name when it is complete and on disk."""
        draft = self.path / f".{name}.part"
        try:
            make(draft)
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
            draft.replace(self.path / name)
        except OSError as error:
            raise InputError(f"{self.path / name} cannot be written: {error.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)

    def write_array(self, name: str, array: NDArray[np.float64]) -> None:
        """Write an array as ``.npy``."""
        buffer = BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self.write(name, buffer.getvalue())

    def write_json(self, name: str, content: Any) -> None:
        """Write indented JSON."""
        self.write(name, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def read_array(self, name: str) -> NDArray[np.float64]:
        """Return an array of the results."""
        try:
            return np.asarray(np.load(self.path / name, allow_pickle=False), dtype=np.float64)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path / name} cannot be read: {error}") from None

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file of the results."""
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path / name} cannot be read: {error}") from None

    def hash_of(self, name: str) -> str:
        """SHA-256 of a file."""
        return hashlib.sha256((self.path / name).read_bytes()).hexdigest()


def _visible(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]


def _json(state: RunState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
