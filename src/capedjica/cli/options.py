"""Options shared by several commands, help grouped by role, and a check for the FLARE extra."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from capedjica.errors import InputError

SiteArgument = Annotated[
    Path,
    typer.Argument(metavar="[SITE]", help="Folder or site.toml of the site; by default the current folder."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="IMAGE",
        help="Atlas or template for naming maps: maps (4-D), labels (3-D), a .npy file of features, or "
        "nilearn:NAME to download one (msdl, smith_2009, yeo_2011 ...).",
    ),
]
LabelNamesOption = Annotated[
    Path | None,
    typer.Option(
        "--label-names", metavar="TABLE", help="Names of its labels; by default a table next to the image."
    ),
]
CsfOption = Annotated[
    Path | None, typer.Option("--csf", metavar="IMAGE", help="Mask of the ventricles for flagging artefacts.")
]
WhiteMatterOption = Annotated[
    Path | None,
    typer.Option("--white-matter", metavar="IMAGE", help="Mask of white matter for flagging artefacts."),
]
_Alias = Annotated[Path | None, typer.Option("--site", help="Same as SITE.")]
_ALIAS: Final = "site_option"
_NO_SITE: Final = (
    "no site was given, and the current folder has no site.toml; expected a site's folder or its site.toml; "
    "to create a site: capedjica site init NAME"
)


def of_a_site(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command with the argument ``[SITE]`` also accept ``--site``.

    The command receives whichever was given, or the current folder if neither was.
    """

    @functools.wraps(command)
    def either(**given: Any) -> None:
        named = [path for path in (given.pop("site"), given.pop(_ALIAS)) if path is not None]
        if len(named) > 1:
            raise InputError(f"got two sites, {named[0]} and --site {named[1]}; expected one")
        if not named and not Path("site.toml").exists():
            raise InputError(_NO_SITE)
        command(site=next(iter(named), Path(".")), **given)

    own = inspect.signature(command, eval_str=True)
    alias = inspect.Parameter(_ALIAS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Alias)
    parameters = [
        one.replace(kind=one.KEYWORD_ONLY, default=None if one.name == "site" else one.default)
        for one in own.parameters.values()
    ]
    either.__signature__ = own.replace(parameters=[*parameters, alias])  # type: ignore[attr-defined]
    either.__annotations__ = {one.name: one.annotation for one in (*parameters, alias)}
    return either


class ByRole(TyperGroup):
    """A command group whose help lists its commands under headings."""

    roles: dict[str, tuple[str, ...]]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands, all summaries in one column."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        widest = max(map(len, self.commands))
        for heading, names in self.roles.items():
            rows = [(name.ljust(widest), self.commands[name].get_short_help_str(limit)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


def by_role(**roles: tuple[str, ...]) -> type[ByRole]:
    """Return a command group with these headings; every command must be under one of them."""
    headings = {key.replace("_", " "): names for key, names in roles.items()}
    return type("Roles", (ByRole,), {"roles": headings})


def need_flare() -> None:
    """Raise InputError if NVIDIA FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError(
            "NVIDIA FLARE is not installed, but studies on several machines require it; to install it: "
            "pip install 'capedjica[federated]'"
        )


def need_web() -> None:
    """Raise InputError if the packages of the local web pages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "python_multipart")):
        raise InputError(
            "the packages of the web pages are not installed; to install them: pip install 'capedjica[web]'"
        )
