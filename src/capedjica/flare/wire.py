"""Under which names FLARE carries our messages, and how."""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "capedjica"
TOPIC: Final = "capedjica"
PARCEL: Final = "parcel"
# Bytes that are carried as one message: ten seconds' worth of a line of one megabit a second.
LARGE: Final = 1 << 20
