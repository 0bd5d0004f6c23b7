"""The code that a figure depends on, and fingerprints of it that do not change with its wording."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = {"capedjica": "src", "benchmarks": ".", "paper": "."}
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(source: str) -> str:
    """Return a hash of a module's code, without docstrings, comments, blank lines and indentation widths.

    It is computed from the text that remains, not from Python's own dump of a syntax tree, which differs
    between versions of Python.
    """
    lines = [line.encode() for line in source.splitlines()]
    for first, start, last, end in [*_docstrings(source), *_comments(source)]:
        _blank(lines, first - 1, start, last - 1, end)
    kept = (b" ".join(line.split()) for line in lines)
    return hashlib.sha256(b"\n".join(line for line in kept if line)).hexdigest()[:16]


def _blank(lines: list[bytes], first: int, start: int, last: int, end: int) -> None:
    """Remove what lies between two positions, in bytes."""
    if first == last:
        lines[first] = lines[first][:start] + b" " * (end - start) + lines[first][end:]
        return
    lines[first], lines[last] = lines[first][:start], b" " * end + lines[last][end:]
    for between in range(first + 1, last):
        lines[between] = b""


def _docstrings(source: str) -> Iterator[tuple[int, int, int, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            assert text.end_lineno is not None
            assert text.end_col_offset is not None
            yield text.lineno, text.col_offset, text.end_lineno, text.end_col_offset


def _comments(source: str) -> Iterator[tuple[int, int, int, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            (row, column), before = token.start, len(token.line[: token.start[1]].encode())
            assert column <= before
            yield row, before, row, before + len(token.string.encode())


def code_of(roots: Iterable[str], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the fingerprint of every module of ours that the roots import, directly or not.

    Parameters
    ----------
    roots : iterable of str
        Names of modules.
    without : tuple of str
        Modules and packages that do not count, with all that only they import.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        path = _path_of(module)
        if path is None or path in found or _below(module, without):
            continue
        found[path] = _fingerprint_of(path)
        waiting += _imports(path)
    return dict(sorted(found.items()))


def _below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _path_of(module: str) -> str | None:
    """Return the path of one of our modules relative to the project, or None."""
    base = _PACKAGES.get(module.partition(".")[0])
    if base is None:
        return None
    place = Path(base, *module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if (ROOT / path).is_file():
            return path.as_posix()
    return None


@cache
def _fingerprint_of(path: str) -> str:
    return fingerprint((ROOT / path).read_text(encoding="utf-8"))


@cache
def _imports(path: str) -> tuple[str, ...]:
    """Return what a module imports, also inside functions, but not for types alone."""
    finder = _Finder()
    finder.visit(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return tuple(finder.found)


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [name.name for name in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None, "relative imports are not used here"
        self.found += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
