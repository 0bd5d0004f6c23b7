"""Confinement of a program that has the network, so that it cannot read any file of the other program.

The program is assumed to be hostile. The strongest confinement is a separate user account: the operating
system denies it access to the files and processes of other users. In the same user account, Landlock denies
access to files and to the memory of other programs, and (ABI 6) sending signals to them.

docs/concepts/threat-model.md lists what Landlock does not restrict in the same user account, in particular
the sockets of other programs before ABI 9. A separate user account closes all of these gaps.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from capedjica.errors import InputError
from capedjica.tools.confinement import landlock, process, users
from capedjica.tools.confinement.grants import runtime_reads, runtime_writes, without_secrets

# Including paths that cannot be opened: a socket (ENXIO), a dangling link.
_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ELOOP)
_PASSED_ON: Final = (
    "TZ",
    "PYTHONPATH",
    "LD_PRELOAD",
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_PASSED_ON_PREFIXES: Final = ("CAPEDJICA_", "NVFLARE_")


@dataclass(frozen=True)
class Confinement:
    """Method by which a program is denied access to another program's files.

    Attributes
    ----------
    kind : "user", "landlock" or "none"
        A separate user account (and Landlock, if available), Landlock in the same user account, or none.
    uid, gid : int or None
        The separate user account.
    words : str
        Description for the user.
    """

    kind: Literal["user", "landlock", "none"]
    uid: int | None
    gid: int | None
    words: str


def strongest(account: str | None, needed: Sequence[Path], seed: str) -> Confinement:
    """Return the strongest confinement that this process can give a program.

    Parameters
    ----------
    account : str or None
        The user account for the program; None for an unused user ID, if this process runs as root.
    needed : sequence of Path
        Paths that the program must be able to read in addition to the interpreter and this package.
    seed : str
        Seed from which an unused user ID is derived, so that it is the same every time.
    """
    user = users.account(account) if account is not None else None
    if os.geteuid() != 0:
        if user is not None and user[0] != os.geteuid():
            raise InputError(
                f"only root can start a program as the account {account}; "
                "start this as root, or use the systemd units"
            )
        return _in_the_same_account("only root can use a separate user account")
    uid, gid = user or users.unused_user(seed)
    obstacle = users.obstacle(uid, gid, needed)
    if not obstacle:
        rules = f" and Landlock, ABI {landlock.abi()}" if landlock.abi() else ""
        return Confinement("user", uid, gid, f"a separate user account ({uid}){rules}")
    if account is not None:
        raise InputError(f"the account {account} cannot be used: {obstacle}")
    return _in_the_same_account(obstacle)


def confine(
    confinement: Confinement,
    reads: Iterable[Path],
    writes: Iterable[Path],
    memory: int,
    *,
    secrets: Sequence[Path],
    connects: Sequence[Path] = (),
) -> None:
    """Confine this process permanently; call right before executing the program, with one thread.

    Parameters
    ----------
    confinement : Confinement
        The return value of `strongest`.
    reads, writes : iterable of Path
        Paths that the program may read, in addition to those of every Python program, and paths with full
        access.
    memory : int
        Memory limit of each of the program's processes, in bytes of data.
    secrets : sequence of Path
        Paths to which, and to whose parents, no access is granted.
    connects : sequence of Path
        Folders of the sockets that the program connects to.
    """
    process.close_on_execution()
    process.leave_terminal()
    process.forbid_core_files()
    process.limit_resources(memory)
    # Rules are created while every path can still be reached; privileges are dropped after their last use.
    process.drop_capability_bound()
    if confinement.kind != "none" and landlock.abi():
        readable = without_secrets([*reads, *runtime_reads()], secrets)
        _check_interpreter(readable)
        writable = without_secrets([*writes, *runtime_writes()], secrets)
        landlock.restrict(readable, writable, connects)
    if confinement.uid is not None and confinement.gid is not None:
        process.switch_user(confinement.uid, confinement.gid)
    process.drop_capabilities()
    process.no_new_privileges()


def _check_interpreter(readable: Iterable[Path]) -> None:
    interpreter = Path(os.path.realpath(sys.executable))
    if not any(interpreter.is_relative_to(os.path.realpath(path)) for path in readable):
        raise InputError(
            f"the interpreter {interpreter} is in a folder with files that the confined program must not "
            "read; install it elsewhere"
        )


def openable(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that this process can open for reading (files) or list (folders)."""
    return [path for path in paths if _opens(path)]


def _opens(path: Path) -> bool:
    try:
        # Non-blocking: opening a pipe without a writer would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    os.close(descriptor)
    return True


def environment(workspace: Path) -> dict[str, str]:
    """Return the environment variables of an untrusted program that works in a workspace folder.

    None of them refers to other programs of the same user that could act for it: session bus, ssh-agent,
    display.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    return {
        **passed,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(workspace),
        "TMPDIR": str(workspace),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PYTHONSAFEPATH": "1",
        # Freed memory is returned to the system, so that it no longer counts towards the limit.
        "MALLOC_ARENA_MAX": "4",
        "MALLOC_MMAP_THRESHOLD_": "131072",
    }


def _in_the_same_account(why: str) -> Confinement:
    version = landlock.abi()
    if not version:
        return Confinement("none", None, None, f"nothing: this system has no Landlock, and {why}")
    left = "" if version >= landlock.UNIX_SOCKETS_SINCE else ", but not other programs' sockets"
    words = f"Landlock, ABI {version}, in the same user account: files are out of reach{left} ({why})"
    return Confinement("landlock", None, None, words)
