"""A wall around a program with a network, which must not read a single file of the program beside it.

The program is taken to be hostile. The strongest wall is a user of its own: the operating system keeps all
files of others from it, and all of their programs. In the same user account Landlock keeps from it the files,
the memory of other programs and (ABI 6) signals to them.

What Landlock leaves open in the same user account, other programs' sockets before ABI 9 above all, is in
docs/concepts/threat-model.md; a user of its own is the answer to all of it.
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

# That there is nothing to open, too: a socket (ENXIO), a link that leads nowhere.
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
    """How a program is kept from the files of another.

    Attributes
    ----------
    kind : "user", "landlock" or "none"
        By a user of its own (and Landlock, if there is any), by Landlock in the same user account, or not.
    uid, gid : int or None
        The user of its own.
    words : str
        One sentence for people.
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
        The user account for the program; None for a number that nobody has, if this process is root's.
    needed : sequence of Path
        What the program must be able to read besides the interpreter and this package.
    seed : str
        What a number that nobody has is derived from: the same number every time.
    """
    user = users.account(account) if account is not None else None
    if os.geteuid() != 0:
        if user is not None and user[0] != os.geteuid():
            raise InputError(
                f"only root can start a program as the account {account}: "
                "start this as root, or by the systemd units"
            )
        return _in_the_same_account("only root can give it a user of its own")
    uid, gid = user or users.unused_user(seed)
    obstacle = users.obstacle(uid, gid, needed)
    if not obstacle:
        rules = f" and Landlock, ABI {landlock.abi()}" if landlock.abi() else ""
        return Confinement("user", uid, gid, f"a user of its own ({uid}){rules}")
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
    """Confine this process for good; to be done right before it executes the program, with one thread.

    Parameters
    ----------
    confinement : Confinement
        What `strongest` returned.
    reads, writes : iterable of Path
        What the program reads besides what every Python program reads, and what it does anything with.
    memory : int
        The most bytes of data for each of the program's processes.
    secrets : sequence of Path
        Nothing is granted that is one of these or above one of them.
    connects : sequence of Path
        Folders of the sockets that the program connects to.
    """
    process.close_on_execution()
    process.leave_terminal()
    process.forbid_core_files()
    process.limit_resources(memory)
    # The rules are made while every path can still be reached, and rights go after all that takes them.
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
            f"the interpreter {interpreter} lies in a folder with files that its program must not read: "
            "install it elsewhere"
        )


def openable(paths: Iterable[Path]) -> list[Path]:
    """Return those of some files that this process can open to read, and of some folders that it can list."""
    return [path for path in paths if _opens(path)]


def _opens(path: Path) -> bool:
    try:
        # A pipe without a writer would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    os.close(descriptor)
    return True


def environment(workspace: Path) -> dict[str, str]:
    """Return the variables for a program that is not trusted, with its files in a workspace.

    None leads to other programs of the same user, which would act for it: session bus, ssh-agent, display.
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
        # Memory that is given back is given to the system, and counts against the limit no more.
        "MALLOC_ARENA_MAX": "4",
        "MALLOC_MMAP_THRESHOLD_": "131072",
    }


def _in_the_same_account(why: str) -> Confinement:
    version = landlock.abi()
    if not version:
        return Confinement("none", None, None, f"nothing: this system has no Landlock, and {why}")
    left = "" if version >= landlock.UNIX_SOCKETS_SINCE else ", but not other programs' sockets"
    words = f"Landlock, ABI {version}, in the same user account: its files are out of reach{left} ({why})"
    return Confinement("landlock", None, None, words)
