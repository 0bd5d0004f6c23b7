"""The log of a site, which may name people and stays with the site."""

from __future__ import annotations

import logging
from typing import Final

# No name of a module begins so: what goes into FLARE's logs, and what must not, is told apart by it.
PRIVATE_LOGS: Final = "capedjica-site"


def private_log(site: str) -> logging.Logger:
    """Return where to log what nobody but the site may read."""
    return logging.getLogger(f"{PRIVATE_LOGS}.{site}")
