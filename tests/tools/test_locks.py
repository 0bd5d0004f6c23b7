"""One process at a time, and a disk that knows no locks is not taken for a busy one."""

import errno
import fcntl
import os

import pytest

from capedjica.errors import InputError
from capedjica.tools.locks import BusyError, locked


def test_one_at_a_time(tmp_path):
    with locked(tmp_path / "deep" / ".lock", "busy"), pytest.raises(BusyError, match="busy"):
        locked(tmp_path / "deep" / ".lock", "busy").__enter__()
    with locked(tmp_path / "deep" / ".lock", "busy"):
        pass


def test_a_disk_without_locks_is_not_busy(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(InputError, match=r"\.lock cannot be locked: No locks available") as refused:
        locked(tmp_path / ".lock", "busy").__enter__()
    assert not isinstance(refused.value, BusyError)
