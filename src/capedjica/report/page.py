"""Self-contained HTML pages, with styles, scripts, pictures and numbers embedded."""

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
    """An HTML report that can be saved or displayed in a notebook, like nilearn's reports.

    Parameters
    ----------
    html : str
        The whole page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def save_as_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, atomically."""
        write_page(Path(path), self.html, 0o644)

    def _repr_html_(self) -> str:
        """Return the page in an iframe, so that its styles and scripts do not affect the notebook."""
        frame = Environment(autoescape=True).from_string(
            '<iframe srcdoc="{{ html }}" title="Report" width="100%" height="800" style="border:0"></iframe>'
        )
        return frame.render(html=self.html)

    def __repr__(self) -> str:
        return f"<report of {len(self.html.encode()):,} bytes: save_as_html(path) writes it>"


def write_page(path: Path, html: str, mode: int) -> None:
    """Write a page atomically; it has its final permissions ``mode`` from the start."""
    with writing(path):
        write_whole(path, html.encode(), mode=mode)


def render(template: str, scripts: tuple[str, ...] = (), **content: Any) -> str:
    """Render a template as an HTML page.

    The page's content security policy blocks all external resources, and allows only the given scripts, by
    their hash. Text from other parties therefore cannot run as a script.
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
