"""Landlock: restriction of files, network and signals for a Linux process and its children.

The ABI version states what a kernel can enforce (1: Linux 5.13, 4: 6.7, 6: 6.12, 9: 7.1); rights that the
kernel does not know are omitted. Landlock does not restrict descriptors that are already open, or operations
that need no open file: names, sizes and modes of files can be queried, and modes of one's own files changed.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from capedjica.tools.confinement.calls import LINUX, call
from capedjica.tools.confinement.process import no_new_privileges

# The numbers are the same on all architectures except Alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_FOR_ABI: Final = 1
_PATH_BENEATH: Final = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_REFER, _TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = (1 << bit for bit in range(13, 17))
# All rights to files and folders of the first ABI, and those added by later ones.
_FIRST_RIGHTS: Final = (1 << 13) - 1
_LATER_RIGHTS: Final = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV, 9: _RESOLVE_UNIX}
# The kernel refuses rules that give a file the rights of a folder.
_RIGHTS_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
_TO_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR

_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
TCP_SINCE: Final = 4
SCOPES_SINCE: Final = 6
UNIX_SOCKETS_SINCE: Final = 9


class _Ruleset(ctypes.Structure):
    """Actions denied unless a rule allows them; old kernels require zeros in fields they do not know."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    """Actions allowed beneath an opened path."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


@cache
def abi() -> int:
    """Return the Landlock ABI version of this system; 0 if there is none."""
    if not LINUX:
        return 0
    try:
        return call("syscall", _CREATE_RULESET, 0, 0, _ASK_FOR_ABI)
    except OSError:
        return 0


def rights_of_files(version: int) -> int:
    """Return all rights to files and folders of an ABI version."""
    later = (right for since, right in _LATER_RIGHTS.items() if since <= version)
    return sum(later, start=_FIRST_RIGHTS)


def restrict(reads: Iterable[Path], writes: Iterable[Path], connects: Iterable[Path] = ()) -> None:
    """Permanently restrict file access of this thread and its children to the given paths.

    Parameters
    ----------
    reads : iterable of Path
        Files, and folders with their content, that can still be read and executed.
    writes : iterable of Path
        Files and folders with full access. Paths that do not exist are ignored.
    connects : iterable of Path
        Folders of sockets that can still be connected to (ABI 9 and later forbid all others).
    """
    rights = rights_of_files(abi())
    wanted = ((_TO_READ, reads), (rights, writes), (_RESOLVE_UNIX, connects))
    rules = [(path, allowed & rights) for allowed, paths in wanted if allowed & rights for path in paths]
    _enforce(_Ruleset(rights, 0, _scopes()), rules)


def forbid_tcp() -> None:
    """Deny TCP, and nothing else, for this thread and its children (ABI 4)."""
    _enforce(_Ruleset(0, _BIND_TCP | _CONNECT_TCP, 0), [])


def _scopes() -> int:
    """Return what is confined to this process and its children: signals, and sockets without a path."""
    # defence: signals-stay-inside
    scopes = _ABSTRACT_SOCKETS | _SIGNALS
    return scopes if abi() >= SCOPES_SINCE else 0


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Add a rule for a path, if the path exists and this process can reach it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _PathBeneath(rights if folder else rights & _RIGHTS_OF_FILES, descriptor)
        call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _enforce(forbidden: _Ruleset, rules: Iterable[tuple[Path, int]]) -> None:
    """Permanently deny what no rule allows."""
    ruleset = call("syscall", _CREATE_RULESET, forbidden, ctypes.sizeof(forbidden), 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights)
        no_new_privileges()
        # defence: files-out-of-reach
        call("syscall", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
