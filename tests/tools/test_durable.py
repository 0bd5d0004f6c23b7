"""Files that are whole or not there at all, whatever happens on the way."""

import fcntl
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from capedjica.errors import InputError
from capedjica.tools.atomic_files import TakenError, whole_file, write_whole, writing


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("new", [False, True])
def test_until_it_is_complete_nothing_has_its_name(file, new):
    with whole_file(file, new=new) as draft:
        draft.write(b"first")
        draft.flush()
        assert not file.exists()
    assert file.read_bytes() == b"first"
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_after_an_error_all_is_as_it_was(file, new, error):
    if not new:
        file.write_bytes(b"before")
    before = os.listdir(file.parent)

    def fail():
        with whole_file(file, new=new) as draft:
            draft.write(b"after")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert os.listdir(file.parent) == before
    assert new or file.read_bytes() == b"before"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_told_and_changes_nothing(file, monkeypatch, call):
    file.write_bytes(b"before")
    monkeypatch.setattr(os, call, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"file cannot be written: No space left on device"), writing(file):
        write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert os.listdir(file.parent) == ["file"]


def test_what_a_killed_process_left_makes_way(file):
    """Also where others could read it, and where it is a second name of a file that must not change."""
    file.write_bytes(b"before")
    other = file.with_name("other")
    other.write_bytes(b"other")
    os.link(other, file.with_name(f".file.{'0' * 16}.part"))
    write_whole(file, b"after", mode=0o600)
    assert (file.read_bytes(), other.read_bytes()) == (b"after", b"other")
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(file.parent)) == ["file", "other"]


def test_the_draft_of_a_process_is_swept_when_it_was_killed_and_not_before(file):
    script = (
        "import pathlib, sys, time; from capedjica.tools.atomic_files import whole_file\n"
        "with whole_file(pathlib.Path(sys.argv[1])): print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        write_whole(file, b"first")
        there = os.listdir(file.parent)
        writer.kill()
    assert len(there) == 2
    write_whole(file, b"second")
    assert os.listdir(file.parent) == ["file"]


def test_names_that_only_look_like_drafts_are_left_alone(file):
    others = [".file.part", ".file.notes.part", f".file.{'0' * 16}", f".other.{'0' * 16}.part"]
    for name in others:
        file.with_name(name).touch()
    write_whole(file, b"")
    assert sorted(os.listdir(file.parent)) == sorted([*others, "file"])


def test_of_two_who_write_at_once_each_leaves_a_whole_file(file):
    """The one that ends first has not the other's half."""
    with whole_file(file) as slow:
        slow.write(b"slow")
        slow.flush()
        with whole_file(file) as quick:
            quick.write(b"qu")
            quick.flush()
            assert len(os.listdir(file.parent)) == 2
            quick.write(b"ick")
        assert file.read_bytes() == b"quick"
        slow.write(b"er")
    assert file.read_bytes() == b"slower"
    assert os.listdir(file.parent) == ["file"]


def test_many_who_write_at_once_do_not_disturb_each_other(file):
    contents = [bytes([number]) * 100_000 for number in range(8)]

    def write(content):
        for _ in range(10):
            with whole_file(file) as draft:
                for start in range(0, len(content), 25_000):
                    draft.write(content[start : start + 25_000])
                    draft.flush()
                    time.sleep(0)
            assert file.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert os.listdir(file.parent) == ["file"]


def test_a_draft_that_was_swept_before_it_was_locked_is_made_again(file, monkeypatch):
    lock, names = fcntl.flock, []

    def late(draft, how):
        names.append(draft.name)
        if len(names) == 1:
            os.unlink(draft.name)
        lock(draft, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_whole(file, b"whole")
    assert file.read_bytes() == b"whole"
    assert len(set(names)) == 2


def test_a_file_system_without_locks_keeps_drafts(file, monkeypatch):
    left = file.with_name(f".file.{'0' * 16}.part")
    left.touch()
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    write_whole(file, b"whole")
    assert file.read_bytes() == b"whole"
    assert left.exists()


def test_a_private_file_is_private_from_its_first_byte(file):
    file.touch(0o644)
    with whole_file(file, mode=0o600) as draft:
        assert os.fstat(draft.fileno()).st_mode & 0o777 == 0o600
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_many_who_make_a_new_file_one_does(file):
    def make(number):
        try:
            write_whole(file, bytes([number]) * 1000, new=True)
        except TakenError as error:
            return str(error)
        return number

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(make, range(40)))
    refused = f"{file} already exists and is not overwritten"
    (winner,) = (one for one in done if one != refused)
    assert file.read_bytes() == bytes([winner]) * 1000
    assert os.listdir(file.parent) == ["file"]
