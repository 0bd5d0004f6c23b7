"""FLARE's server, client or job as a program: ``python -m capedjica.engines.flare.party MODULE ARGUMENTS``.

All of them limit what they take from whoever connects (:mod:`capedjica.engines.flare.limits`), read and
write no file for a message (:mod:`capedjica.engines.flare.unpacking`) and connect to nobody for the asking.
Those of sites also choose to whom they listen (:mod:`capedjica.engines.flare.guard`), and those of the
server take from each site what it says for itself (:mod:`capedjica.engines.flare.origins`).
"""

from __future__ import annotations

import runpy
import sys
from typing import Final

from capedjica.engines.flare import guard, limits, neighbours, origins, unpacking

_OF_SITES: Final = "nvflare.private.fed.app.client."


def prepare(module: str) -> None:
    """Put limits, and the guard of a site, into force before a module of FLARE is run in this process."""
    limits.install()
    # defence: limits-before-flare-begins
    unpacking.install()
    neighbours.make_no_connections()
    if module.startswith(_OF_SITES):
        # defence: the-guard-at-a-sites-door
        guard.install()
    else:
        # defence: in-the-servers-name-real-processes
        origins.install()


def main() -> None:
    """Run a module of FLARE with the rest of the arguments."""
    module = sys.argv.pop(1)
    prepare(module)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
