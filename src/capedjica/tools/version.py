"""The version of this package, which all parties of a study must share."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__version__: Final = version("capedjica")
