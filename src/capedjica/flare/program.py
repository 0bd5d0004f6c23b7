"""A module of FLARE run as a program, within limits: what the programs of sites and of the server share.

They limit what they take from whoever connects (:mod:`capedjica.flare.connections`), read and write no file
for a message (:mod:`capedjica.flare.unpacking`) and connect to nobody for the asking.
"""

from __future__ import annotations

import runpy
import sys

from capedjica.flare import connections, unpacking


def limit() -> None:
    """Put the limits of all parties into force, before a module of FLARE is run in this process."""
    connections.install()
    # defence: limits-before-flare-begins
    unpacking.install()
    connections.make_no_connections()


def run() -> None:
    """Run a module of FLARE, named by the first argument, with the rest of the arguments."""
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


def run_by(program: str, command: str) -> str:
    """Return a command of FLARE, ``python -m MODULE ...``, as one of a program that runs the module."""
    python, option, words = command.split(" ", 2)
    return f"{python} {option} {program} {words}"
