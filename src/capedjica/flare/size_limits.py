"""How large a message may be."""

from __future__ import annotations

from typing import Final

# A message is refused beyond this size; 30 MB were measured to pass in little more than a second.
MAX_MESSAGE: Final = 48 << 20
# FLARE sends long messages in pieces; whole, they carry names and headers besides.
MAX_FRAME: Final = MAX_MESSAGE + (1 << 20)
