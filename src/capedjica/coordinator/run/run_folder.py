"""The folder of one run: what it was asked to do, how far it is, and what came out."""

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
    """The content of ``run.json``: whose run this is and how far it came."""

    schema: int = SCHEMA
    # By which package, for people; the protocol is what counts, and runs from before it was noted had 1.
    capedjica: str = __version__
    protocol: int = 1
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

    @property
    def lock_path(self) -> Path:
        """Held by the process that runs it."""
        return self.path / ".lock"

    def state(self) -> RunState | None:
        """Return the run that is here; None where there is none."""
        file = self.path / "run.json"
        try:
            state = msgspec.json.decode(file.read_bytes(), type=RunState)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise InputError(f"{file} is not the state of a run: {error}") from None
        if state.schema != SCHEMA:
            raise InputError(f"{file}: schema must be {SCHEMA}, got {state.schema}")
        return state

    def check(self, study: Study) -> RunState | None:
        """Return the state of an earlier attempt at the same study; refuse a folder of anything else."""
        state = self.state()
        if state is None:
            self._check_empty()
            return None
        if state.contract != study.contract.hash.hex():
            raise InputError(
                f"{self.path} holds the run of another study, '{printable(state.title)}' "
                f"({state.study[:16]}); this one is '{study.content.title}' ({study.hash.hex()[:16]})"
                f"{self._difference(study)}: give another folder"
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
        raise InputError(f"{self.path} exists and holds no run: give a new or an empty folder")

    def _difference(self, study: Study) -> str:
        """Return in words what was changed about the study of this folder, if that can be told."""
        try:
            earlier = read_study_file(self.path / "study.toml")
        except InputError:
            return ""
        return f", changed: {'; '.join(changes(earlier, study.content))}"

    @contextmanager
    def claim(self, study: Study) -> Iterator[RunState]:
        """Begin or take up the run, alone; add the time it took when it ends, however it ends."""
        with locked(self.lock_path, f"{self.path} is in use by another process"):
            state, started = self._begin(study), time.monotonic()
            try:
                yield state
            finally:
                # On a full disk, the reason why the run ended matters and its time does not.
                with suppress(InputError):
                    self._add_time(state, time.monotonic() - started)

    def _add_time(self, state: RunState, seconds: float) -> None:
        """Add to the time of all attempts; that of an attempt that was killed is not known."""
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
        # First of all, so that a folder with anything in it is known as that of this run.
        self.write("run.json", _json(state))
        copy_files(study.content.with_files, study.folder, self.path)
        if not (self.path / "study.toml").exists():
            write_study(self.path / "study.toml", study.content)
        return state

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all these files are there."""
        return all((self.path / name).exists() for name in names)

    def finish(self, state: RunState) -> None:
        """Mark the run as complete, after everything else was written."""
        self.write("run.json", _json(msgspec.structs.replace(state, complete=True)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        self.produce(name, lambda file: file.write(content))

    def produce(self, name: str, make: Callable[[IO[bytes]], object]) -> None:
        """Let ``make(file)`` write a file; it gets its name when it is complete and on disk."""
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
        """Return a matrix of the results."""
        return read_matrix(self.path / name)

    def read_json(self, name: str, kind: type[_Content]) -> _Content:
        """Return what is wanted of a JSON file of the results."""
        file = self.path / name
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not as a run left it: {error}") from None

    def hash_of(self, name: str) -> str:
        """SHA-256 of a file."""
        return hash_of(self.path / name)


def _visible(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]


def _json(state: RunState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
