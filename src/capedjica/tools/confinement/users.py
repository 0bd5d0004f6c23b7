"""User accounts for a program, and whether the program can run as them."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from capedjica.errors import InputError
from capedjica.tools.confinement import process
from capedjica.tools.confinement.calls import in_child

# What systemd takes users from that have no name; nobody is given a number in it by hand.
FIRST_UID, LAST_UID = 61184, 65519


def account(name: str) -> tuple[int, int]:
    """Return the numbers of an account and of its group."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"there is no user account {name} on this machine") from None
    if found.pw_uid == 0:
        raise InputError(f"the account {name} is root's, from whom nothing can be kept; name another one")
    return found.pw_uid, found.pw_gid


def unused_user(seed: str) -> tuple[int, int]:
    """Return a number for a user and for its group that no account has; the same one for the same seed."""
    n = LAST_UID - FIRST_UID + 1
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    for step in range(n):
        uid = FIRST_UID + (start + step) % n
        if not _is_taken(uid):
            return uid, uid
    raise InputError(f"all user numbers from {FIRST_UID} to {LAST_UID} are taken")


def _is_taken(number: int) -> bool:
    """Whether a user or a group has a number."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        try:
            look_up(number)
        except KeyError:
            continue
        return True
    return False


def obstacle(uid: int, gid: int, needed: Sequence[Path]) -> str:
    """Return why a program cannot run as another user, by trying; nothing if it can.

    It needs the interpreter, the standard library, this package, and some more paths.
    """
    executables = (os.path.realpath(sys.executable), sys.executable)
    named = [(f"the interpreter {path}", Path(path)) for path in executables]
    named += [(str(path), path) for path in (Path(os.__file__), Path(__file__), *needed)]

    def attempt() -> str:
        try:
            process.switch_user(uid, gid)
        except OSError as error:
            return f"this process cannot become another user ({error.strerror})"
        return next((why for name, path in named if (why := _unreadable(name, path))), "")

    return in_child(attempt)


def _unreadable(name: str, path: Path) -> str:
    """Return why this process cannot read a file, or enter a folder; nothing if it can."""
    try:
        if path.is_dir():
            os.stat(path / ".")
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return f"another user cannot read {name}: {_closed_folder(path) or error.strerror}"
    return ""


def _closed_folder(path: Path) -> str:
    """Return in words which folder above a path this process cannot enter; nothing if it can enter all."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK):
            others = folder.stat().st_mode & 0o011
            return (
                f"it lies under {folder}, which {'not everybody' if others else 'only its owner'} can enter"
            )
    return ""
