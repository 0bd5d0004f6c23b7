"""The means of a run as they were made, on disk, so that a run that was interrupted goes on where it was.

An algorithm is a function of its means. Running it again with the means of the journal leads to the state in
which it was interrupted, without asking a site for anything; from there on means are made and written down.
All that the journal holds was published.
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
    """One mean: the stage, its numbers, and the releases that it took, those given up included."""

    stage: int
    value: bytes
    releases: tuple[ReleaseRecord, ...]


class Journal:
    """The records of one run; one that was cut off by a crash is dropped, the others are sound or refused."""

    def __init__(self, path: Path, file: FileIO, records: list[MeanRecord], contract: Contract) -> None:
        self._path, self._file, self.records, self._contract = path, file, records, contract

    @classmethod
    def open(cls, path: Path, contract: Contract) -> Self:
        """Open the journal of a run of this contract, or begin it."""
        header = _MAGIC + contract.hash
        with writing(path):
            content = path.read_bytes() if path.exists() else b""
        # A file shorter than its header was cut off by its very first write.
        if not content.startswith(header) and not header.startswith(content):
            raise InputError(f"{path} is not the journal of this study")
        records, end = _read(content, len(header), path)
        with writing(path):
            # Without a buffer, what could not be written is not tried again when the file is closed.
            file = open(path, "r+b" if content else "wb", buffering=0)  # noqa: SIM115 (closed by close)
            _write_at(file, 0, header)
            file.truncate(end)
            file.seek(end)
            sync_folder(path.parent)
        return cls(path, file, records, contract)

    def append(self, record: MeanRecord) -> None:
        """Write a record and wait until it is on disk."""
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
        """All releases in order."""
        return [release for record in self.records for release in record.releases]

    @property
    def released(self) -> list[ReleasedMean]:
        """All means in order, each with the noise of the release that made it."""
        return _released(self.records, self._contract)

    def n_done(self, n_stages: int) -> list[int]:
        """Return how many means of each stage were completed."""
        return [sum(record.stage == stage for record in self.records) for stage in range(n_stages)]


class JournaledMeans:
    """Means from the journal as long as it has them, then from the aggregator, into the journal.

    Parameters
    ----------
    journal : Journal
        What was made before, and where to write the rest.
    aggregator : Aggregator
        Made with the journal's releases as done.
    report : callable
        ``report(stage)`` after each mean, whether it was made before or now.
    """

    def __init__(self, journal: Journal, aggregator: Aggregator, report: Callable[[int], None]) -> None:
        self._journal, self._aggregator, self._report = journal, aggregator, report
        self._earlier = list(journal.records)
        self._unpublished: bytes | None = None

    @property
    def released(self) -> list[ReleasedMean]:
        """The means that were asked for so far."""
        made = self._journal.released
        return made[: len(made) - len(self._earlier)]

    def publish(self, data: bytes) -> None:
        """Hand public data to all sites, once there is something to ask them."""
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
            raise InputError("the journal of this run does not fit the analysis: it cannot be resumed")
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
    """Return the means of a journal of this contract, which stays as it is."""
    return _released(read_records(path, contract), contract)


def read_records(path: Path, contract: Contract) -> list[MeanRecord]:
    """Return the records of a journal of this contract, which stays as it is."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    header = _MAGIC + contract.hash
    if not content.startswith(header):
        raise InputError(f"{path} is not the journal of this study")
    return _read(content, len(header), path)[0]


def _released(records: list[MeanRecord], contract: Contract) -> list[ReleasedMean]:
    return [
        ReleasedMean(
            record.stage,
            np.frombuffer(record.value, dtype="<f8"),
            record.releases[-1].noise,
            sum(contract.enrolled[name] for name in record.releases[-1].participants),
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
    """Return the records and where they end; what follows was cut off while it was written."""
    records: list[MeanRecord] = []
    while True:
        body = start + _LENGTH_BYTES + _CHECK_BYTES
        end = body + int.from_bytes(content[start : start + _LENGTH_BYTES])
        # A crash may also leave the length of a file without its content: zeros.
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
