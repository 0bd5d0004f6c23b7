"""User accounts for confined programs, and checks that a program can run as them."""

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

# systemd's range for dynamic users; no account is assigned an ID in it by hand.
FIRST_UID, LAST_UID = 61184, 65519


def account(name: str) -> tuple[int, int]:
    """Return the user ID and group ID of an account."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"there is no user account {name} on this machine") from None
    if found.pw_uid == 0:
        raise InputError(f"the account {name} is root, which can read every file; choose another account")
    return found.pw_uid, found.pw_gid


def unused_user(seed: str) -> tuple[int, int]:
    """Return an unused user ID and group ID, the same for the same seed."""
    n = LAST_UID - FIRST_UID + 1
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    for step in range(n):
        uid = FIRST_UID + (start + step) % n
        if not _is_taken(uid):
            return uid, uid
    raise InputError(f"all user IDs from {FIRST_UID} to {LAST_UID} are in use")


def _is_taken(number: int) -> bool:
    """Return whether a user or a group has this ID."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        try:
            look_up(number)
        except KeyError:
            continue
        return True
    return False


def obstacle(uid: int, gid: int, needed: Sequence[Path]) -> str:
    """Return why a program cannot run as another user, or "" if it can; determined by trying.

    It needs the interpreter, the standard library, this package, and the paths in ``needed``.
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
    """Return why this process cannot read a file or enter a folder, or "" if it can."""
    try:
        if path.is_dir():
            os.stat(path / ".")
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return f"another user cannot read {name}: {_closed_folder(path) or error.strerror}"
    return ""


def _closed_folder(path: Path) -> str:
    """Return which folder above a path this process cannot enter, or "" if it can enter all."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK):
            others = folder.stat().st_mode & 0o011
            return (
                f"it is inside {folder}, which {'not every user' if others else 'only its owner'} can enter"
            )
    return ""
