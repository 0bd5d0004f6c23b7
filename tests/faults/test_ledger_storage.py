"""Disks that are full, locked, read-only or not there: a clear line, nothing sent, nothing lost."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

from capedjica.errors import InputError
from capedjica.privacy.charges import charge
from capedjica.privacy.ledger import LedgerError, SlotBurntError, StorageError
from tests.privacy.ledger.ledger_site import STUDY, Site, ask, begin, refuse_to_make
from tests.support.places import ROOT


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a given size, where the machine allows it."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "capedjica-test", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not let the tests mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_new(path: Path) -> Iterator[None]:
    """While a file can be read and not replaced."""
    replace = os.replace

    def failing(draft, target):
        if Path(target) == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(draft, target)

    with mock.patch.object(os, "replace", failing):
        yield


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) < 400


# Places where no ledger can be


@pytest.mark.parametrize(
    "where", ["missing/ledger.sqlite", "file/ledger.sqlite", "directory", "/proc/ledger.sqlite"]
)
def test_a_place_that_cannot_hold_a_ledger(site, tmp_path, where):
    (tmp_path / "file").write_text("a regular file")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError, match="cannot open the ledger") as error:
        site.open(path=tmp_path / where)
    assert one_line(error)


@pytest.mark.parametrize("where", ["missing/head", "file/head", "directory", "/proc/head"])
def test_a_place_that_cannot_hold_the_head(site, tmp_path, where):
    (tmp_path / "file").write_text("a regular file")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError, match=r"head|directory") as error:
        site.open(head_path=tmp_path / where)
    assert one_line(error)
    with site.open() as ledger:  # the ledger itself can go on with a better place
        begin(ledger)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to look at" * 100, b"SQLite format 3\0" + bytes(200)]
)
def test_a_file_that_is_no_database(site, content):
    site.path.write_bytes(content)
    with pytest.raises(StorageError, match=r"not a ledger|corrupt") as error:
        site.open()
    assert one_line(error)
    assert site.path.read_bytes() == content


def test_a_database_that_is_no_ledger(site):
    connection = sqlite3.connect(site.path)
    connection.execute("CREATE TABLE patients (name TEXT)")
    connection.commit()
    connection.close()
    before = site.path.read_bytes()
    with pytest.raises(InputError, match="not a ledger"):
        site.open()
    assert site.path.read_bytes() == before


def test_a_ledger_of_a_newer_program(site):
    with site.open() as ledger:
        begin(ledger)
    connection = sqlite3.connect(site.path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(InputError, match="schema 2, written by a newer version of capedjica"):
        site.open()


# Locks


def test_a_ledger_locked_for_too_long(site):
    with site.open(timeout=0.05) as ledger:
        begin(ledger)
        holder = sqlite3.connect(site.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="in use by another process") as error:
            ask(ledger, make_message=refuse_to_make)
        assert one_line(error)
        with pytest.raises(StorageError, match="in use by another process"):
            site.open(timeout=0.05)
        holder.execute("ROLLBACK")
        holder.close()
        ask(ledger)  # nothing was touched, so the slot is as good as before


def test_a_reader_that_blocks_the_commit_burns_the_slot(site):
    """The record cannot be committed, so the message does not leave; its mask was used, so none does."""
    with site.open(timeout=0.05) as ledger:
        begin(ledger)
        reader = sqlite3.connect(site.path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()
        with pytest.raises(StorageError, match="in use by another process"):
            ask(ledger)
        reader.execute("ROLLBACK")
        reader.close()
        assert ledger.totals().overall.n_releases == 0
        with pytest.raises(SlotBurntError):
            ask(ledger, make_message=refuse_to_make)
        ask(ledger, slot=1)
        assert ledger.verify_chain()


def test_a_short_lock_is_waited_for(site):
    with site.open(timeout=30) as ledger:
        begin(ledger)
        holder = sqlite3.connect(site.path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, holder.execute, ["ROLLBACK"])
        timer.start()
        ask(ledger)
        timer.join()
        holder.close()


# Full disks


def check_after_failure(ledger, n_releases: int) -> None:
    """Nothing charged, nothing lost, the touched slot burnt, and the site goes on."""
    assert ledger.totals().overall.n_releases == n_releases
    with pytest.raises(SlotBurntError):
        ask(ledger, 1, make_message=refuse_to_make)
    ask(ledger, 2)
    assert ledger.totals().overall.mu2 == 2 * charge(0.05)
    ledger.verify_chain()


def test_a_file_that_may_not_grow(site):
    with site.open() as ledger:
        message = ask(begin(ledger), 0)
        with file_size_limit(site.path.stat().st_size + 8192):
            with pytest.raises(StorageError, match="disk") as error:
                ask(ledger, 1, make_message=lambda: os.urandom(200_000))
            assert one_line(error)
            assert ask(ledger, 0, make_message=refuse_to_make) == message
        check_after_failure(ledger, 1)
    with site.open() as ledger:
        assert ask(ledger, 0, make_message=refuse_to_make) == message


def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", "400k") as disk:
        (tmp_path / "second-place").mkdir()
        site = Site(disk)
        site.head_path = tmp_path / "second-place" / "head"
        with site.open() as ledger:
            message = ask(begin(ledger), 0)
            with pytest.raises(StorageError, match="disk is full") as error:
                ask(ledger, 1, make_message=lambda: os.urandom(600_000))
            assert one_line(error)
            assert ask(ledger, 0, make_message=refuse_to_make) == message
            check_after_failure(ledger, 1)


def test_a_disk_full_to_the_last_byte(tmp_path):
    """Not even the burning can be recorded: memory keeps the slot burnt, and so does the next process."""
    with small_disk(tmp_path / "disk", "400k") as disk:
        site = Site(disk)
        with site.open() as ledger:
            message = ask(begin(ledger), 0)

            def fill() -> bytes:
                with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                    while True:
                        filler.write(bytes(1024))
                return os.urandom(9000)

            with pytest.raises(StorageError, match="disk"):
                ask(ledger, 1, make_message=fill)
            assert ask(ledger, 0, make_message=refuse_to_make) == message
            with pytest.raises((StorageError, SlotBurntError)):
                ask(ledger, 1, make_message=refuse_to_make)
            os.remove(disk / "filler")
            check_after_failure(ledger, 1)
        with site.open() as ledger, pytest.raises(SlotBurntError):
            ask(ledger, 1, make_message=refuse_to_make)


def test_a_head_that_cannot_be_written_holds_the_message_back(site):
    """The record stands, the bytes stay inside, nothing more is charged until the head can follow."""
    with site.open() as ledger:
        begin(ledger)
        with no_new(site.head_path):
            with pytest.raises(StorageError, match=r"cannot write .*head: Input/output error"):
                ask(ledger, 0)
            for slot in (0, 1):
                with pytest.raises(StorageError, match=r"cannot write .*head: Input/output error"):
                    ask(ledger, slot, make_message=refuse_to_make)
            assert ledger.totals().overall.n_releases == 1
        (recorded,) = ledger.outbox()
        assert ask(ledger, 0, make_message=refuse_to_make) == recorded.message
        ask(ledger, 1)
        assert site.head_path.read_bytes() == ledger.head


# Read-only


def test_a_disk_that_becomes_read_only(tmp_path):
    with small_disk(tmp_path / "disk", "4m") as disk:
        (tmp_path / "second-place").mkdir()
        site = Site(disk)
        site.head_path = tmp_path / "second-place" / "head"
        with site.open() as ledger:
            message = ask(begin(ledger), 0)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StorageError, match="Read-only file system"):
            site.open()
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        with site.open() as ledger:
            assert ask(ledger, 0, make_message=refuse_to_make) == message


def test_a_connection_that_became_read_only(site):
    with site.open() as ledger:
        begin(ledger)
        ledger._chain._log._execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match="read-only"):
            ask(ledger, make_message=refuse_to_make)
        ledger._chain._log._execute("PRAGMA query_only = OFF")
        assert ledger.totals().overall.n_releases == 0
        ask(ledger)


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not bind the superuser")
def test_a_file_without_write_permission(site):
    with site.open() as ledger:
        begin(ledger)
    site.path.chmod(0o400)
    with pytest.raises(StorageError, match="Permission denied"):
        site.open()


# Processes

FORK = """
import os, sys
from pathlib import Path
from tests.privacy.ledger.ledger_site import Site, ask, begin, refuse_to_make
with Site(Path(sys.argv[1])).open() as ledger:
    begin(ledger)
    if os.fork() == 0:
        try:
            ask(ledger, make_message=refuse_to_make)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
        os._exit(0)
    os.wait()
    ask(ledger)
    print(ledger.totals().overall.n_releases)
"""


def test_a_forked_child_cannot_use_its_parents_masks(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    refusal, count = result.stdout.splitlines()
    assert refusal.startswith("StorageError a ledger cannot be used after a fork")
    assert count == "1"


def test_the_file_is_synchronised_before_anything_leaves(site):
    with site.open() as ledger:
        settings = {
            name: ledger._chain._log._execute(f"PRAGMA {name}")[0][0]
            for name in ("synchronous", "journal_mode", "fullfsync", "trusted_schema")
        }
    assert settings == {"synchronous": 3, "journal_mode": "delete", "fullfsync": 1, "trusted_schema": 0}


def test_a_ledger_turned_into_a_write_ahead_log_is_turned_back(site):
    with site.open() as ledger:
        begin(ledger)
    connection = sqlite3.connect(site.path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    with site.open() as ledger:
        assert ledger._chain._log._execute("PRAGMA journal_mode") == [("delete",)]
        ledger.claim(STUDY, 1, 0)


def test_errors_of_a_ledger_are_errors_of_the_product(site, tmp_path):
    with pytest.raises(LedgerError) as error:
        site.open(path=tmp_path / "missing" / "ledger")
    assert error.value.exit_code == 5
