"""Pages of HTML that are whole by themselves: style, scripts, pictures and numbers are inside."""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from capedjica.privacy.wording import NOT_PRIVATE, round_up, short
from capedjica.tools.atomic_files import write_whole, writing
from capedjica.tools.text import counted


class HtmlReport:
    """A page, as nilearn's reports are: save it, or let a notebook show it.

    Parameters
    ----------
    html : str
        The whole page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def save_as_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page, whole or not at all."""
        write_page(Path(path), self.html, 0o644)

    def _repr_html_(self) -> str:
        """Show the page in a frame of its own, whose style and scripts touch nothing else."""
        frame = Environment(autoescape=True).from_string(
            '<iframe srcdoc="{{ html }}" title="Report" width="100%" height="800" style="border:0"></iframe>'
        )
        return frame.render(html=self.html)

    def __repr__(self) -> str:
        return f"<report of {len(self.html.encode()):,} bytes: save_as_html(path) writes it>"


def write_page(path: Path, html: str, mode: int) -> None:
    """Write a page, whole or not at all; nobody can read it who may not read it at the end."""
    with writing(path):
        write_whole(path, html.encode(), mode=mode)


def render(template: str, scripts: tuple[str, ...] = (), **content: Any) -> str:
    """Return the page of a template.

    The page itself forbids the browser to load anything, and to run any script but those given, which it
    knows by their hash: words of others that are shown cannot become commands.
    """
    code = "\n".join(_read(name) for name in ("page.js", *scripts))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(style=_read("style.css"), script=code, script_hash=digest, **content)
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("capedjica.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["NOT_PRIVATE"] = NOT_PRIVATE
    environment.filters["up"] = round_up
    environment.filters["short"] = short
    environment.filters["counted"] = counted
    return environment


@cache
def _read(name: str) -> str:
    return (files("capedjica.report") / "templates" / name).read_text(encoding="utf-8")
