"""Folder of one run: its study, its state and its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec
import numpy as np

from capedjica.errors import InputError
from capedjica.mechanisms.messages import VERSION as PROTOCOL
from capedjica.study.public_files import copy_files, hash_of
from capedjica.study.study_file import Study, changes, read_study_file, write_study
from capedjica.tools.arrays import FloatArray, read_matrix
from capedjica.tools.atomic_files import whole_file, writing
from capedjica.tools.locks import locked
from capedjica.tools.text import printable
from capedjica.tools.version import __version__

SCHEMA: Final = 1
_Content = TypeVar("_Content")


class RunState(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``run.json``: the study of the run, and its progress.

    Attributes
    ----------
    schema : int
        Version of this format.
    capedjica : str
        Version of the package that began the run, for information.
    protocol : int
        Version of the protocol, which must be the same when the run is resumed; the default is for old files.
    title : str
        Title of the study.
    study, contract : str
        Hashes of the study and of the contract that the sites approved.
    started : str
        Time at which the run began (UTC).
    complete : bool
        Whether all results were written.
    seconds : float
        Total time of all attempts, except those that were killed.
    resumed : int
        Number of times that the run was resumed.
    """

    schema: int = SCHEMA
    capedjica: str = __version__
    protocol: int = 1
    title: str
    study: str
    contract: str
    started: str
    complete: bool = False
    seconds: float = 0.0
    resumed: int = 0


@dataclass(frozen=True)
class RunFolder:
    """Folder with all files of a run; call :meth:`claim` before writing."""

    path: Path

    @property
    def journal_path(self) -> Path:
        """Journal of the releases made so far."""
        return self.path / "releases.bin"

    @property
    def log_path(self) -> Path:
        """Log file."""
        return self.path / "log.txt"

    @property
    def lock_path(self) -> Path:
        """Lock held by the process that runs the study."""
        return self.path / ".lock"

    def state(self) -> RunState | None:
        """Return the state of the run in this folder; None if there is no run."""
        file = self.path / "run.json"
        try:
            state = msgspec.json.decode(file.read_bytes(), type=RunState)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise InputError(f"{file} is not a valid state of a run: {error}") from None
        if state.schema != SCHEMA:
            raise InputError(f"{file}: schema must be {SCHEMA}, got {state.schema}")
        return state

    def check(self, study: Study) -> RunState | None:
        """Return the state of an earlier attempt at the same study; refuse a folder with other content."""
        state = self.state()
        if state is None:
            self._check_empty()
            return None
        if state.contract != study.contract.hash.hex():
            raise InputError(
                f"{self.path} contains a run of another study, '{printable(state.title)}' "
                f"({state.study[:16]}); this one is '{study.content.title}' ({study.hash.hex()[:16]})"
                f"{self._difference(study)}; give another folder"
            )
        # defence: version-of-a-run
        if state.protocol != PROTOCOL and not state.complete:
            raise InputError(
                f"{self.path} was begun by version {state.protocol} of the protocol (capedjica "
                f"{printable(state.capedjica)}) and cannot go on by version {PROTOCOL}: it needs a new study."
                " What was spent stays spent"
            )
        return state

    def _check_empty(self) -> None:
        try:
            if not self.path.exists() or (self.path.is_dir() and not _visible(self.path)):
                return
        except OSError as error:
            raise InputError(f"{self.path} cannot be used: {error.strerror}") from None
        raise InputError(f"{self.path} exists and is not the folder of a run; give a new or an empty folder")

    def _difference(self, study: Study) -> str:
        """Return the differences between a study and that of this folder, as text; empty if not known."""
        try:
            earlier = read_study_file(self.path / "study.toml")
        except InputError:
            return ""
        return f", changed: {'; '.join(changes(earlier, study.content))}"

    @contextmanager
    def claim(self, study: Study) -> Iterator[RunState]:
        """Start or resume the run under an exclusive lock; add its duration however it ends."""
        with locked(self.lock_path, f"{self.path} is in use by another process"):
            state, started = self._begin(study), time.monotonic()
            try:
                yield state
            finally:
                # On a full disk, the error that ended the run is more important than its duration.
                with suppress(InputError):
                    self._add_time(state, time.monotonic() - started)

    def _add_time(self, state: RunState, seconds: float) -> None:
        """Add to the total time of all attempts, which does not include attempts that were killed."""
        latest = self.state() or state
        self.write(
            "run.json", _json(msgspec.structs.replace(latest, seconds=round(latest.seconds + seconds, 3)))
        )

    def _begin(self, study: Study) -> RunState:
        earlier = self.check(study)
        if earlier is not None:
            state = msgspec.structs.replace(earlier, resumed=earlier.resumed + 1)
        else:
            state = RunState(
                protocol=PROTOCOL,
                title=study.content.title,
                study=study.hash.hex(),
                contract=study.contract.hash.hex(),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        # Written first, so that a folder with any other file is recognised as that of this run.
        self.write("run.json", _json(state))
        copy_files(study.content.with_files, study.folder, self.path)
        if not (self.path / "study.toml").exists():
            write_study(self.path / "study.toml", study.content)
        return state

    def holds(self, names: Iterable[str]) -> bool:
        """Return whether all of these files exist."""
        return all((self.path / name).exists() for name in names)

    def finish(self, state: RunState) -> None:
        """Mark the run as complete, after all other files were written."""
        self.write("run.json", _json(msgspec.structs.replace(state, complete=True)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        self.produce(name, lambda file: file.write(content))

    def produce(self, name: str, make: Callable[[IO[bytes]], object]) -> None:
        """Write a file atomically by calling ``make(file)``."""
        target = self.path / name
        with writing(target):
            if target.parent != self.path:
                target.parent.mkdir(exist_ok=True)
            with whole_file(target) as file:
                make(file)

    def write_array(self, name: str, array: FloatArray) -> None:
        """Write an array as ``.npy``."""
        self.produce(name, lambda file: np.save(file, array, allow_pickle=False))

    def write_json(self, name: str, content: Any) -> None:
        """Write indented JSON."""
        self.write(name, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def read_array(self, name: str) -> FloatArray:
        """Read a matrix of the results."""
        return read_matrix(self.path / name)

    def read_json(self, name: str, kind: type[_Content]) -> _Content:
        """Read a JSON file of the results as ``kind``."""
        file = self.path / name
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not a valid file of a run: {error}") from None

    def hash_of(self, name: str) -> str:
        """Return the SHA-256 hash of a file."""
        return hash_of(self.path / name)


def _visible(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]


def _json(state: RunState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
