"""Under which names FLARE carries our messages, and where a carrier finds the process that it works for."""

from __future__ import annotations

from typing import Final

TOPIC: Final = "capedjica"
PARCEL: Final = "parcel"
# In the folder ``local`` of a workspace of FLARE's: the path of a socket.
SETTINGS: Final = "capedjica.json"
