"""Links to what has no page of its own: folders of the repository and internal parts of the package."""

import pkgutil
import posixpath
import re
from types import MethodDescriptorType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

# Folders that pages link to, and the pages that list their content, all relative to the repository.
FOLDERS = {
    "benchmarks/results": "docs/reference/results.md",
    "docs/evidence": "docs/development/index.md",
    "examples": "docs/gallery/index.rst",
}


def lead_to_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace links to folders in a page that was just read."""
    here = posixpath.dirname(page)

    def replaced(link: re.Match[str]) -> str:
        target = FOLDERS.get(posixpath.normpath(posixpath.join(here, link[1])))
        return link[0] if target is None else f"]({posixpath.relpath(target, here or '.')})"

    source[0] = re.sub(r"\]\(([^)#:]+)\)", replaced, source[0])


def name_internals(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """Return the name alone for a reference to an internal part of the package that exists; None if not."""
    if node.get("refdomain") != "py" or node.get("reftype") == "obj":
        return None
    target, module, owner = node["reftarget"], node.get("py:module") or "", node.get("py:class") or ""
    for name in (target, f"{module}.{target}", f"{module}.{owner}.{target}"):
        if name.startswith("capedjica.") and _exists(name):
            return content
    return None


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError, ValueError):
        return False
    return True


def skip_builtins(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Skip what a class has from a type of Python, such as the count of a named tuple."""
    return True if isinstance(member, MethodDescriptorType) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the replacements."""
    app.connect("source-read", lead_to_pages)
    app.connect("missing-reference", name_internals)
    app.connect("autodoc-skip-member", skip_builtins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
