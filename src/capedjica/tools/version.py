"""The version of this package; parties of a study must share the protocol version, not this one."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__version__: Final = version("capedjica")
