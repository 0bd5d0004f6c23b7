"""What a process that holds secrets gives up before it begins: its network, and the sight of its memory."""

from __future__ import annotations

from pathlib import Path

from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.calls import LINUX, n_threads
from capedjica.tools.confinement.process import hide_memory, without_network


def isolate_agent(*, knows_users: bool = False) -> str:
    """Leave the network and hide this process's memory; return one sentence about it for people.

    ``knows_users`` for a process that must tell one other user from the rest by the sockets that they connect
    to. Then it does not enter a user namespace, and a system manager takes the network away beforehand.

    To be called first of all in a process, while it has one thread. Sockets with a path work as before, and
    show peers of the same user by their number; peers of other users only if this process is root's (see
    `process.without_network`).
    """
    # The network first: who is hidden cannot write its own entry in /proc, which a user namespace takes.
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
    return "the network as it was: this system can take it away neither by namespaces nor by Landlock"


def _interfaces() -> set[str]:
    """Return the names of the network interfaces that this process has; all that it cannot read are many."""
    try:
        lines = Path("/proc/self/net/dev").read_text("ascii").splitlines()
    except OSError:
        return {"unknown"}
    return {line.partition(":")[0].strip() for line in lines if ":" in line}
