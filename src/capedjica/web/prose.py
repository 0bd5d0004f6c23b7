"""Text of a command as parts of a page: headings, paragraphs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final, Literal

Kind = Literal["heading", "paragraph", "item", "code", "table"]
_COLUMNS: Final = re.compile(r"\S {3,}\S|\S {2,}\d")
_DEEP: Final = 4


def parts(text: str) -> Iterator[tuple[Kind, str]]:
    """Yield the parts of a text that commands print: lines without indent head paragraphs, one on each line.

    Lines with columns that follow each other are one table; lines that are indented deeper, such as
    fingerprints, are shown as they are.
    """
    lines = [(_kind(line), line.rstrip()) for line in text.splitlines() if line.strip()]
    for kind, group in groupby(lines, key=lambda one: one[0]):
        if kind == "table":
            yield kind, "\n".join(line.removeprefix("  ") for _, line in group)
        else:
            yield from ((kind, line.strip().removeprefix("- ")) for _, line in group)


def _kind(line: str) -> Kind:
    inner = line.strip()
    if inner == line.rstrip():
        return "heading"
    if _COLUMNS.search(inner):
        return "table"
    if inner.startswith("- "):
        return "item"
    return "code" if len(line) - len(line.lstrip()) >= _DEEP else "paragraph"
