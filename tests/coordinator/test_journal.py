"""The journal of a run: what was made is kept whatever happens, and what was cut off is dropped."""

import dataclasses

import numpy as np
import pytest

from capedjica.coordinator.run.journal import Journal, MeanRecord
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.history import ReleaseRecord
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster

ROSTER = Roster.of([Identity.generate().public(f"s{i}") for i in range(4)])
CONTRACT = Contract(
    title="t",
    roster=ROSTER,
    subjects=(5, 5, 5, 5),
    stages=(Stage(Query("a", 3, 1.0), 2, 0.5), Stage(Query("b", 2, 1.0), 1, 0.5)),
    epsilon=(1.0,) * 4,
    delta=1e-5,
)


def record(number):
    releases = (
        ReleaseRecord("a", {"s0": 0.1 * number, "s1": 0.2}, ("s0", "s1"), True, 0.5),
        ReleaseRecord("a", {"s0": 0.3, "s1": 0.4}, ("s0", "s1"), False, 0.25),
    )
    return MeanRecord(0, np.arange(3.0).tobytes() * number, releases)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "releases.bin"
    with Journal.open(path, CONTRACT) as journal:
        journal.append(record(1))
        journal.append(record(2))
    return path


def test_what_was_written_is_read(path):
    with Journal.open(path, CONTRACT) as journal:
        assert journal.records == [record(1), record(2)]
        assert journal.n_done(2) == [2, 0]
        assert [release.aborted for release in journal.releases] == [True, False, True, False]
        journal.append(record(3))
    with Journal.open(path, CONTRACT) as journal:
        assert journal.records == [record(1), record(2), record(3)]


def test_a_journal_cut_anywhere_keeps_its_whole_records(path, tmp_path):
    content = path.read_bytes()
    with Journal.open(tmp_path / "one", CONTRACT) as journal:
        journal.append(record(1))
    first = len((tmp_path / "one").read_bytes())
    for length in range(0, len(content), 7):
        cut = tmp_path / f"cut-{length}"
        cut.write_bytes(content[:length])
        with Journal.open(cut, CONTRACT) as journal:
            assert journal.records == [record(1)][: length >= first]
            journal.append(record(3))
        with Journal.open(cut, CONTRACT) as journal:
            assert journal.records[-1] == record(3)


def test_a_last_record_full_of_zeros_is_dropped(path):
    """After a power loss a file may have its length but not its content."""
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes(20))
    with Journal.open(path, CONTRACT) as journal:
        assert journal.records == [record(1)]


def test_zeros_after_the_last_record_are_dropped(path):
    content = path.read_bytes()
    path.write_bytes(content + bytes(100))
    with Journal.open(path, CONTRACT) as journal:
        assert journal.records == [record(1), record(2)]


def test_damage_before_the_end_is_refused(path):
    content = bytearray(path.read_bytes())
    content[len(b"capedjica releases 1\n") + 32 + 12 + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        Journal.open(path, CONTRACT)


def test_the_journal_of_another_study_is_refused(path, tmp_path):
    with pytest.raises(InputError, match="not the journal of this study"):
        Journal.open(path, dataclasses.replace(CONTRACT, title="u"))
    (tmp_path / "text").write_text("something else, longer than the header of a journal is...............")
    with pytest.raises(InputError, match="not the journal of this study"):
        Journal.open(tmp_path / "text", CONTRACT)
