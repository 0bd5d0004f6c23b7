"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

SiteOption = Annotated[Path, typer.Option("--site", help="The site's folder or its site.toml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
