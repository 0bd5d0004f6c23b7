"""What several commands share: a site named in two ways, help by role, and a check for a missing extra."""

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
    Path, typer.Argument(metavar="[SITE]", help="The site's folder or its site.toml; by default here.")
]
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
_Alias = Annotated[Path | None, typer.Option("--site", help="The same as SITE.")]
_ALIAS: Final = "site_option"


def of_a_site(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command about one site, its argument ``[SITE]``, take ``--site`` as well.

    The command is given the one that was named, and the folder where it runs if none was.
    """

    @functools.wraps(command)
    def either(**given: Any) -> None:
        named = [path for path in (given.pop("site"), given.pop(_ALIAS)) if path is not None]
        if len(named) > 1:
            raise InputError(f"the site is named twice, {named[0]} and --site {named[1]}; expected one")
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
    """A group whose help lists its commands under headings: whom, or what, they are for."""

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
    """Return a group with these headings, of which every command must have one."""
    headings = {key.replace("_", " "): names for key, names in roles.items()}
    return type("Roles", (ByRole,), {"roles": headings})


def need_flare() -> None:
    """Refuse where NVIDIA FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError("studies on several machines need NVIDIA FLARE: pip install 'capedjica[federated]'")


def need_web() -> None:
    """Refuse where the packages of the local web pages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "python_multipart")):
        raise InputError("the web pages need more packages: pip install 'capedjica[web]'")
