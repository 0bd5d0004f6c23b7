"""FLARE's server, client or job as a program: ``python -m capedjica.engines.flare.party MODULE ARGUMENTS``.

A frame on FLARE's wire begins with its length, and memory for all of it is reserved at once, up to 2 GB.
A party gone mad could fill another's memory by a few bytes, so frames are limited to what is ever sent.
"""

from __future__ import annotations

import runpy
import sys
from typing import Final

from nvflare.fuel.f3.drivers import socket_conn

from capedjica.engines.flare import guard
from capedjica.engines.flare.carriage import MAX_MESSAGE

# FLARE sends long messages in pieces; whole, they carry names and headers besides.
MAX_FRAME: Final = MAX_MESSAGE + (1 << 20)
_OF_SITES: Final = "nvflare.private.fed.app.client."


def main() -> None:
    """Run a module of FLARE with the rest of the arguments."""
    socket_conn.MAX_FRAME_SIZE = MAX_FRAME
    module = sys.argv.pop(1)
    if module.startswith(_OF_SITES):
        guard.install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
