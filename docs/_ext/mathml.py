"""Formulas as MathML, which browsers draw themselves: neither scripts nor fonts are loaded."""

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

_log = getLogger(__name__)
# Commands that docutils does not know, and what it knows instead.
# Numbers of equations are set apart from what they number.
_SYNONYMS = {
    r"\\tag\{(\w+)\}": r"\\qquad (\1)",
    r"\\dots\b": r"\\ldots",
    r"\s{2,}(\(\d+\))\s*$": r" \\qquad \1",
}


def in_known_words(formula: str) -> str:
    """Return a formula in the words that docutils knows."""
    for written, known in _SYNONYMS.items():
        formula = re.sub(written, known, formula)
    return formula


def _formula(node: Any, as_block: bool) -> str:
    """Return a formula as MathML; one that cannot be converted is a warning and shown as it is written."""
    try:
        return str(tex2mathml(in_known_words(node.astext()), as_block=as_block))
    except MathError as error:
        _log.warning("formula cannot be converted: %s: %s", error, node.astext(), location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_inline(visitor: Any, node: nodes.math) -> None:
    """Write a formula in a line."""
    visitor.body.append(_formula(node, as_block=False))
    raise nodes.SkipNode


def visit_block(visitor: Any, node: nodes.math_block) -> None:
    """Write a formula of its own; wide ones scroll, also by keyboard."""
    visitor.body.append(visitor.starttag(node, "div", CLASS="math", tabindex="0"))
    visitor.body.append(_formula(node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("config-inited", lambda _, config: setattr(config, "html_math_renderer", "mathml"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
