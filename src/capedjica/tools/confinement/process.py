"""What a process gives up: its rights as root, its user, its network, the sight of its memory."""

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
    """Let no other process of this user read this one's memory, by debugging, in ``/proc`` or in a core file.

    A program that this process executes can be read again.
    """
    forbid_core_files()
    if LINUX:
        # defence: memory-out-of-sight
        prctl(_SET_DUMPABLE, 0)


def forbid_core_files() -> None:
    """Leave no memory on the disk if this process crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_resources(memory: int) -> None:
    """Bound the bytes of data, the open files and the stacks of this process and of each that it starts.

    A limit that is lower already stays as it is.
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
    """Let no program that is executed from here on have more rights than this process, such as ``sudo``."""
    if LINUX:
        # defence: no-new-privileges
        prctl(_SET_NO_NEW_PRIVILEGES, 1)


def drop_capability_bound() -> None:
    """Let no program that this process executes get a capability, even as root.

    Only root can do so and only root needs to: others get none once there are no new privileges.
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
    """Give up all capabilities that this process has now."""
    if LINUX:
        # Of this process, no set of either half: effective, permitted, inheritable.
        call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())


def switch_user(uid: int, gid: int) -> None:
    """Become another user, who is in no other groups, for good."""
    os.setgroups([])
    if sys.platform == "linux":
        os.setresgid(gid, gid, gid)
        # defence: another-user
        os.setresuid(uid, uid, uid)
    else:
        os.setgid(gid)
        os.setuid(uid)


def leave_terminal() -> None:
    """Leave the terminal that this process was started from: who has one can type commands into its shell.

    Interrupts typed there reach this process no more.
    """
    try:
        os.setsid()
    except PermissionError:
        _disown_terminal()


def _disown_terminal() -> None:
    """Leave the terminal as the leader of a group of processes, which cannot begin a new session."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            signal.signal(signal.SIGHUP, before)
            os.close(terminal)


def close_on_execution() -> None:
    """Hand no open descriptor to the next program but the first three."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            # The one by which the folder is listed is closed by now.
            with suppress(OSError):
                os.set_inheritable(int(name), False)


def without_network(*, user_namespace: bool = True) -> bool:
    """Leave all networks, loopback too, for this process and all that it starts; return whether it worked.

    Sockets that have a path still work. It takes one thread. Root moves to an empty network namespace;
    another user needs a user namespace for it, in which all users but the own one are seen as "nobody"
    (65534), also as peers of sockets; without ``user_namespace`` it is not tried. If it does not work,
    nothing has changed.
    """
    if not LINUX or n_threads() > 1:
        return False
    try:
        # defence: no-network
        call("unshare", _NEW_NETWORK)
    except OSError:
        # Half of it may work, which leaves a process without its own name.
        if not user_namespace or in_child(_enter_namespaces):
            return False
        _enter_namespaces()
    return True


def _enter_namespaces() -> str:
    """Move to an empty network in a namespace in which this user is who it is; return nothing."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _NEW_USERS | _NEW_NETWORK)
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")
    # Within its namespace it was given all of them.
    drop_capabilities()
    return ""
