"""What several commands share: options, and the check for an extra that is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from capedjica.errors import InputError

SiteOption = Annotated[Path, typer.Option("--site", help="The site's folder or its site.toml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="IMAGE",
        help="Name maps by an atlas or template: maps (4-D), labels (3-D), a .npy file of features, or "
        "nilearn:NAME, which is downloaded (msdl, smith_2009, yeo_2011 ...).",
    ),
]
LabelNamesOption = Annotated[
    Path | None,
    typer.Option("--label-names", metavar="TABLE", help="Its names; by default a table beside the image."),
]
CsfOption = Annotated[
    Path | None, typer.Option("--csf", metavar="IMAGE", help="Mask of the ventricles, to flag artefacts by.")
]
WhiteMatterOption = Annotated[
    Path | None,
    typer.Option("--white-matter", metavar="IMAGE", help="Mask of white matter, to flag artefacts by."),
]


def need_flare() -> None:
    """Refuse where NVIDIA FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError("studies on several machines need NVIDIA FLARE: pip install 'capedjica[federated]'")
