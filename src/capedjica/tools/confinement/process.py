"""Restrictions that a process applies to itself: capabilities, user, network, visibility of its memory."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Final

from capedjica.tools.confinement.calls import LINUX, call, in_child, n_threads, prctl

_SET_DUMPABLE: Final = 4
_HAS_IN_BOUND, _DROP_FROM_BOUND = 23, 24
_SET_NO_NEW_PRIVILEGES: Final = 38
_AMBIENT, _CLEAR_AMBIENT = 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
_NEW_USERS, _NEW_NETWORK = 0x10000000, 0x40000000

_OPEN_FILES: Final = 4096
# Stacks count as data, 8 MB each by default: the 500 threads that FLARE may have would reach 4 GB.
_STACK: Final = 2 << 20


def hide_memory() -> None:
    """Prevent other processes of this user from reading this one's memory (debugger, ``/proc``, core files).

    The memory of a program that this process executes is readable again.
    """
    forbid_core_files()
    if LINUX:
        # defence: memory-out-of-sight
        prctl(_SET_DUMPABLE, 0)


def forbid_core_files() -> None:
    """Disable core files, so that a crash leaves no memory on disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_resources(memory: int) -> None:
    """Limit the memory, open files and stack size of this process and of each of its children.

    A limit that is already lower is kept.
    """
    bounds = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_STACK: _STACK,
    }
    for limit, value in bounds.items():
        hard = resource.getrlimit(limit)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bound, bound))


def no_new_privileges() -> None:
    """Prevent programs executed later, such as ``sudo``, from gaining more privileges than this process."""
    if LINUX:
        # defence: no-new-privileges
        prctl(_SET_NO_NEW_PRIVILEGES, 1)


def drop_capability_bound() -> None:
    """Prevent programs that this process executes from gaining capabilities, even as root.

    Only root can do this and only root needs to; other users gain none once no_new_privileges is set.
    """
    if not LINUX:
        return
    prctl(_AMBIENT, _CLEAR_AMBIENT)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text("ascii"))
    for capability in range(last + 1):
        if os.geteuid() == 0 and prctl(_HAS_IN_BOUND, capability):
            # defence: no-capabilities
            prctl(_DROP_FROM_BOUND, capability)


def drop_capabilities() -> None:
    """Drop all capabilities of this process."""
    if LINUX:
        # Both 32-bit halves of the effective, permitted and inheritable sets are cleared.
        call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())


def switch_user(uid: int, gid: int) -> None:
    """Switch permanently to another user without supplementary groups."""
    os.setgroups([])
    if sys.platform == "linux":
        os.setresgid(gid, gid, gid)
        # defence: another-user
        os.setresuid(uid, uid, uid)
    else:
        os.setgid(gid)
        os.setuid(uid)


def leave_terminal() -> None:
    """Detach from the terminal, since a process with a terminal can inject commands into its shell.

    Interrupts typed there no longer reach this process.
    """
    try:
        os.setsid()
    except PermissionError:
        _disown_terminal()


def _disown_terminal() -> None:
    """Detach from the terminal as a process group leader, which cannot start a new session."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            signal.signal(signal.SIGHUP, before)
            os.close(terminal)


def close_on_execution() -> None:
    """Pass no open descriptors except the first three to the next program."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            # The descriptor used to list the folder is already closed.
            with suppress(OSError):
                os.set_inheritable(int(name), False)


def without_network(*, user_namespace: bool = True) -> bool:
    """Leave all networks, including loopback, for this process and its children; return whether it worked.

    Sockets with a path still work. The process must have one thread. Root moves to an empty network
    namespace. Another user also needs a user namespace, in which all others appear as ``nobody`` (65534),
    also as peers of sockets; this is not attempted if ``user_namespace`` is False. On failure nothing is
    changed.
    """
    if not LINUX or n_threads() > 1:
        return False
    try:
        # defence: no-network
        call("unshare", _NEW_NETWORK)
    except OSError:
        # Tried in a child first: a partial success would leave this process without a mapped user.
        if not user_namespace or in_child(_enter_namespaces):
            return False
        _enter_namespaces()
    return True


def _enter_namespaces() -> str:
    """Move to an empty network in a user namespace that keeps this user's ID; return an empty string."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _NEW_USERS | _NEW_NETWORK)
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")
    # The process gained all capabilities within its new namespace.
    drop_capabilities()
    return ""
