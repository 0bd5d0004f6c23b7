"""What a process that holds secrets gives up before it begins: its network, and the sight of its memory."""

from __future__ import annotations

from capedjica.tools.confinement import landlock
from capedjica.tools.confinement.calls import LINUX, n_threads
from capedjica.tools.confinement.process import hide_memory, without_network


def isolate_agent() -> str:
    """Leave the network and hide this process's memory; return one sentence about it for people.

    To be called first of all in a process, while it has one thread. Sockets with a path work as before, and
    show peers of the same user by their number; peers of other users only if this process is root's (see
    `process.without_network`).
    """
    # The network first: who is hidden cannot write its own entry in /proc, which a user namespace takes.
    network = _leave_network()
    hide_memory()
    memory = "no other program of this user can read its memory" if LINUX else "it leaves no core files"
    return f"{network}; {memory}"


def _leave_network() -> str:
    if without_network():
        return "no network, by an empty network namespace"
    if landlock.abi() >= landlock.TCP_SINCE and n_threads() == 1:
        landlock.forbid_tcp()
        return f"no TCP, by Landlock, ABI {landlock.abi()} (UDP is left: this system allows no namespaces)"
    return "the network as it was: this system can take it away neither by namespaces nor by Landlock"
