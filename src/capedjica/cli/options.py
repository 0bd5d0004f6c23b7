"""What several commands share: options, and the check for an extra that is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from capedjica.errors import InputError

SiteOption = Annotated[Path, typer.Option("--site", help="The site's folder or its site.toml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def need_flare() -> None:
    """Refuse where NVIDIA FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError("studies on several machines need NVIDIA FLARE: pip install 'capedjica[federated]'")
