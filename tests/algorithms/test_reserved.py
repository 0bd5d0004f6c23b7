"""Room for what a site keeps: allocated at once, bounded in memory, and nothing is lost of it on disk."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from capedjica.algorithms import kernels, reserved
from capedjica.algorithms.reserved import IN_MEMORY, Reserved
from capedjica.errors import InputError
from tests.algorithms.ica.test_scan_length import rows_at_every_stage, scans
from tests.support.places import ROOT


def resident():
    """Return the bytes of memory of this process, with its mapped pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def files(monkeypatch):
    """Keep the sizes of the files that are made."""
    made, allocate = [], reserved._allocate

    def noted(file, n_bytes):
        made.append(n_bytes)
        allocate(file, n_bytes)

    monkeypatch.setattr(reserved, "_allocate", noted)
    return made


def test_every_page_of_memory_is_in_use():
    """In a fresh process: one that ran other tests has pages to hand out again."""
    code = (
        "from tests.algorithms.test_reserved import *\n"
        "before = resident()\n"
        "kept = [Reserved(IN_MEMORY, 'tests') for _ in range(4)]\n"
        "print(resident() - before, any(room.on_disk for room in kept))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    grown, on_disk = done.stdout.split()
    assert int(grown) >= 0.9 * 4 * IN_MEMORY
    assert on_disk == "False"


def test_every_block_of_a_file_is_allocated(monkeypatch):
    sizes, allocate = [], reserved._allocate

    def noted(file, n_bytes):
        allocate(file, n_bytes)
        sizes.append(512 * os.fstat(file.fileno()).st_blocks)

    monkeypatch.setattr(reserved, "_allocate", noted)
    assert Reserved(2 * IN_MEMORY, "tests").on_disk
    assert sizes[0] >= 2 * IN_MEMORY


def test_a_file_system_that_only_writes_will_do(monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    room = Reserved(IN_MEMORY + 4096, "tests")
    assert room.on_disk
    assert not room.array((IN_MEMORY + 4096,), np.uint8).any()


def test_a_full_disk_is_an_error_before_anything_is_written(monkeypatch, tmp_path, files):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(InputError, match=rf"500 scans need .* GB on disk, which {tmp_path} does not have"):
        Reserved(1 << 60, "500 scans")
    assert not files


def test_nobody_can_find_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    room = Reserved(2 * IN_MEMORY, "tests")
    assert room.on_disk
    assert list(tmp_path.iterdir()) == []
    del room


def test_large_files_are_where_they_belong(monkeypatch, tmp_path):
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(reserved, "_LARGE_FILES", tmp_path)
    assert reserved.folder() == tmp_path
    monkeypatch.setattr(reserved, "_LARGE_FILES", tmp_path / "missing")
    assert reserved.folder() == Path(tempfile.gettempdir())


def test_what_is_written_stays_and_memory_does_not_grow():
    size = 16 * IN_MEMORY
    room = Reserved(size, "tests")
    rows = room.array((size // 2**20, 2**20 // 8), np.int64)
    before, most = resident(), 0
    for number in range(len(rows)):
        room.touch(rows[number].nbytes)
        rows[number] = np.arange(len(rows[number])) + number
        most = max(most, resident())
    for number in range(len(rows)):
        room.touch(rows[number].nbytes)
        assert_array_equal(rows[number], np.arange(len(rows[number])) + number)
        most = max(most, resident())
    assert most - before < 2 * IN_MEMORY


@pytest.mark.parametrize("kind", ["subject", "paper"])
def test_a_site_on_disk_computes_what_it_computes_in_memory(monkeypatch, kind, files):
    subjects = scans(40, 55, 0, 30, 90, 61, 33)
    inside = rows_at_every_stage(kind, subjects, 100)
    assert not files
    for module in (reserved, kernels):
        monkeypatch.setattr(module, "IN_MEMORY", 2500)
    for rows, expected in zip(rows_at_every_stage(kind, subjects, 100), inside, strict=True):
        assert_array_equal(rows, expected)
    assert files
