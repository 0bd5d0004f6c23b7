"""Where the sources are marked, and what a marker marks.

A marker is a comment of its own, ``# defence: NAME``, and every name occurs once. It marks the line below it:
if a statement begins there, all of that statement; of a statement with a body, such as ``if``, only the part
before the body is replaced, and all of it removed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache

from tests.support.places import ROOT

_MARKED = ("src", "tests")
_MARKER = re.compile(r"^ *# defence: ([a-z0-9-]+)$", re.MULTILINE)


@cache
def markers() -> Mapping[str, str]:
    """Return the file of every marker."""
    found: dict[str, str] = {}
    for file, text in _python_files(_MARKED):
        for name in _MARKER.findall(text):
            assert name not in found, f"{name} marks {found[name]} and {file}"
            found[name] = file
    return found


def place_of(test: str) -> str:
    """Return where a test is, as pytest names it."""
    return _places()[test]


@cache
def _places() -> Mapping[str, str]:
    """Return the places of all tests but of those whose name occurs twice."""
    found: dict[str, str | None] = {}
    for file, text in _python_files(["tests"]):
        for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE):
            found[name] = None if name in found else f"{file}::{name}"
    return {name: test for name, test in found.items() if test is not None}


def marked(marker: str) -> str:
    """Return a short hash of all that a marker marks, by which it is seen to be as it was."""
    text = (ROOT / markers()[marker]).read_text("utf-8")
    first = _line_below(text.splitlines(), marker)
    lines = text.splitlines()[first : _ends(text, first + 1)[1]]
    code = [line.strip() for line in lines if not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:8]


def changed(text: str, marker: str, new: str) -> str:
    """Return a source with something new, or nothing, in the place of what a marker marks."""
    lines = text.splitlines(keepends=True)
    first = _line_below(lines, marker)
    head, whole = _ends(text, first + 1)
    indent = re.match(" *", lines[first])[0]
    put = [f"{indent}{line}\n" for line in new.splitlines()]
    return "".join([*lines[:first], *put, *lines[head if new else whole :]])


def _line_below(lines: list[str], marker: str) -> int:
    first = 1 + next(i for i, line in enumerate(lines) if line.strip() == f"# defence: {marker}")
    below = lines[first].strip()
    assert not below.startswith("#"), f"below the marker {marker} is no code"
    assert below, f"below the marker {marker} is nothing"
    return first


def _ends(text: str, number: int) -> tuple[int, int]:
    """Return the last line of what begins on a line: of the part before its body, and of all."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.ExceptHandler) and node.lineno == number:
            head = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
            lines = text.splitlines()
            # Comments above the body may be markers.
            while lines[head - 1].lstrip().startswith("#"):
                head -= 1
            return head, node.end_lineno
    return number, number


def _python_files(folders: Iterable[str]) -> Iterable[tuple[str, str]]:
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield str(file.relative_to(ROOT)), file.read_text("utf-8")
