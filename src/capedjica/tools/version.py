"""The version of this package, for people: what parties of a study must share is the protocol's."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__version__: Final = version("capedjica")
