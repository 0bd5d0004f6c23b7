"""Confinement of a process that holds secrets: it gives up the network and hides its memory."""

from __future__ import annotations

from pathlib import Path

from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.calls import LINUX, n_threads
from capedjica.tools.confinement.process import hide_memory, without_network


def isolate_agent(*, knows_users: bool = False) -> str:
    """Leave the network and hide this process's memory; return a description for the user.

    Set ``knows_users`` for a process that must identify another user by its socket connections. It then does
    not enter a user namespace, and a service manager must remove the network beforehand.

    Call this before anything else in a process, while it has one thread. Sockets with a path still work and
    report the user ID of peers of the same user; those of other users only if this process runs as root (see
    `process.without_network`).
    """
    # The network first: a hidden process cannot write its own entries in /proc, as a user namespace requires.
    network = _leave_network(knows_users)
    hide_memory()
    memory = "no other program of this user can read its memory" if LINUX else "it leaves no core files"
    return f"{network}; {memory}"


def _leave_network(knows_users: bool) -> str:
    if without_network(user_namespace=not knows_users):
        return "no network, by an empty network namespace"
    # defence: the-network-it-was-started-in
    if knows_users and _interfaces() <= {"lo"}:
        return "no network, by the empty network namespace that it was started in"
    if landlock.abi() >= landlock.TCP_SINCE and n_threads() == 1:
        landlock.forbid_tcp()
        return f"no TCP, by Landlock, ABI {landlock.abi()} (UDP is left: no empty network namespace)"
    return "the network is unchanged: this system offers neither network namespaces nor Landlock for TCP"


def _interfaces() -> set[str]:
    """Return the names of the network interfaces of this process; {"unknown"} if they cannot be read."""
    try:
        lines = Path("/proc/self/net/dev").read_text("ascii").splitlines()
    except OSError:
        return {"unknown"}
    return {line.partition(":")[0].strip() for line in lines if ":" in line}
