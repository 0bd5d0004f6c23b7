"""Append-only journal of the means of a run, from which an interrupted run resumes.

An algorithm is a function of its means. Replaying the means of the journal restores the state in which the
run was interrupted, without any message to a site; from there on, means are released and appended. The
journal contains only published data.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np

from capedjica.algorithms.analysis import ReleasedMean
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.driving import Aggregator
from capedjica.mechanisms.aggregator.history import ReleaseRecord
from capedjica.mechanisms.contract import Contract
from capedjica.tools.arrays import FloatArray
from capedjica.tools.atomic_files import sync_folder, writing

_MAGIC: Final = b"capedjica releases 1\n"
_LENGTH_BYTES: Final = 8
_CHECK_BYTES: Final = 4


class MeanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One mean: its stage, its numbers, and the releases needed for it, including aborted ones."""

    stage: int
    value: bytes
    releases: tuple[ReleaseRecord, ...]


class Journal:
    """Records of one run; an incomplete last record is dropped, any other invalid record is an error."""

    def __init__(self, path: Path, file: FileIO, records: list[MeanRecord], contract: Contract) -> None:
        self._path, self._file, self.records, self._contract = path, file, records, contract

    @classmethod
    def open(cls, path: Path, contract: Contract) -> Self:
        """Open the journal of a run of this contract, or create it."""
        header = _MAGIC + contract.hash
        with writing(path):
            content = path.read_bytes() if path.exists() else b""
        # A file shorter than its header was interrupted during its first write.
        if not content.startswith(header) and not header.startswith(content):
            raise InputError(f"{path} is not the journal of this study; give the folder of its own run")
        records, end = _read(content, len(header), path)
        with writing(path):
            # Unbuffered, so that a failed write is not repeated when the file is closed.
            file = open(path, "r+b" if content else "wb", buffering=0)  # noqa: SIM115 (closed by close)
            _write_at(file, 0, header)
            file.truncate(end)
            file.seek(end)
            sync_folder(path.parent)
        return cls(path, file, records, contract)

    def append(self, record: MeanRecord) -> None:
        """Append a record and sync it to disk."""
        payload = msgspec.msgpack.encode(record)
        frame = len(payload).to_bytes(_LENGTH_BYTES) + zlib.crc32(payload).to_bytes(_CHECK_BYTES) + payload
        with writing(self._path):
            _write_at(self._file, self._file.tell(), frame)
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def releases(self) -> list[ReleaseRecord]:
        """All releases, in order."""
        return [release for record in self.records for release in record.releases]

    @property
    def released(self) -> list[ReleasedMean]:
        """All means, in order, each with the noise of its release."""
        return _released(self.records, self._contract)

    def n_done(self, n_stages: int) -> list[int]:
        """Return the number of completed means of each stage."""
        return [sum(record.stage == stage for record in self.records) for stage in range(n_stages)]


class JournaledMeans:
    """Means replayed from the journal, then requested from the aggregator and appended to the journal.

    Parameters
    ----------
    journal : Journal
        Earlier means; new ones are appended.
    aggregator : Aggregator
        Aggregator created with the journal's releases as done.
    report : callable
        ``report(stage)`` is called after each mean, replayed or new.
    """

    def __init__(self, journal: Journal, aggregator: Aggregator, report: Callable[[int], None]) -> None:
        self._journal, self._aggregator, self._report = journal, aggregator, report
        self._earlier = list(journal.records)
        self._unpublished: bytes | None = None

    @property
    def released(self) -> list[ReleasedMean]:
        """Means requested so far."""
        made = self._journal.released
        return made[: len(made) - len(self._earlier)]

    def publish(self, data: bytes) -> None:
        """Send public data to all sites, together with the next request."""
        self._unpublished = data

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query."""
        value = self._replay(stage) if self._earlier else self._make(stage, state)
        self._report(stage)
        return value

    def _replay(self, stage: int) -> FloatArray:
        record = self._earlier.pop(0)
        size = self._aggregator.contract.stages[stage].query.size
        if record.stage != stage or len(record.value) != 8 * size:
            raise InputError(
                "the journal of this run does not match the analysis, so the run cannot be resumed; start a "
                "new study"
            )
        return np.frombuffer(record.value, dtype="<f8").astype(np.float64)

    def _make(self, stage: int, state: bytes) -> FloatArray:
        if self._unpublished is not None:
            self._aggregator.publish(self._unpublished)
            self._unpublished = None
        before = len(self._aggregator.releases)
        value = self._aggregator.mean(stage, state)
        made = tuple(self._aggregator.releases[before:])
        self._journal.append(MeanRecord(stage, value.astype("<f8").tobytes(), made))
        return value


def read_journal(path: Path, contract: Contract) -> list[ReleasedMean]:
    """Return the means of a journal of this contract, without changing the file."""
    return _released(read_records(path, contract), contract)


def read_records(path: Path, contract: Contract) -> list[MeanRecord]:
    """Return the records of a journal of this contract, without changing the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    header = _MAGIC + contract.hash
    if not content.startswith(header):
        raise InputError(f"{path} is not the journal of this study; give the folder of its own run")
    return _read(content, len(header), path)[0]


def _released(records: list[MeanRecord], contract: Contract) -> list[ReleasedMean]:
    return [
        ReleasedMean(
            record.stage,
            np.frombuffer(record.value, dtype="<f8"),
            record.releases[-1].noise,
            sum(contract.enrolled[name] for name in record.releases[-1].participants),
            tuple(record.releases[-1].participants),
        )
        for record in records
    ]


def _write_at(file: FileIO, place: int, data: bytes) -> None:
    file.seek(place)
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _read(content: bytes, start: int, path: Path) -> tuple[list[MeanRecord], int]:
    """Return the records and the position of their end; anything after it is an incomplete write."""
    records: list[MeanRecord] = []
    while True:
        body = start + _LENGTH_BYTES + _CHECK_BYTES
        end = body + int.from_bytes(content[start : start + _LENGTH_BYTES])
        # A crash may also leave zeros at the end of a file.
        if body > len(content) or end > len(content) or not any(content[start:]):
            return records, start
        payload = content[body:end]
        if zlib.crc32(payload).to_bytes(_CHECK_BYTES) != content[body - _CHECK_BYTES : body]:
            if end == len(content):
                return records, start
            raise InputError(f"{path} is damaged at byte {start}: the run cannot be resumed")
        try:
            records.append(msgspec.msgpack.decode(payload, type=MeanRecord))
        except (msgspec.MsgspecError, ValueError):
            raise InputError(f"{path} is damaged at byte {start}: the run cannot be resumed") from None
        start = end
