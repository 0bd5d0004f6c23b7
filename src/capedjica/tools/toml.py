"""Strict reading of TOML settings files: all problems are listed at once, with suggestions for typos."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from capedjica.errors import InputError
from capedjica.tools.text import printable

_PLAIN: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
_BOUNDS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
# Values are quoted in messages up to this length.
_LONGEST_QUOTE: Final = 60
_Content = TypeVar("_Content", bound=msgspec.Struct)


def read_toml(
    path: str | os.PathLike[str], kind: type[_Content], schema: int | None = None, expected: str = ""
) -> _Content:
    """Read a TOML file into a struct; raise InputError with a list of all problems.

    A file with another ``schema`` is refused for that reason, whatever else it contains. ``expected`` is the
    advice shown if the file cannot be read.
    """
    file = Path(path)
    table = parse_toml(file, expected)
    if schema is not None:
        check_schema(file, table, schema)
    found = problems(table, kind)
    if found:
        raise InputError(listed(str(file), found))
    try:
        return msgspec.convert(table, kind)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{file}: {error}") from None


def check_schema(file: Path, table: dict[str, Any], *known: int) -> int:
    """Return the schema of a file, the last known one if not stated; refuse an unknown schema."""
    schema = table.get("schema", known[-1])
    if schema not in known or isinstance(schema, bool):
        raise InputError(
            f"{file}: schema must be {' or '.join(map(str, known))}, got {_quoted(schema)}; "
            "the file was written for another version of capedjica"
        )
    return int(schema)


def parse_toml(file: Path, expected: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file; raise InputError, with the advice ``expected`` if it is missing."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        advice = f"; {expected}" if expected else ""
        raise InputError(f"{file} cannot be read: {error.strerror}{advice}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a UTF-8 text file") from None
    except RecursionError:
        raise InputError(f"{file} is not a settings file: brackets are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and numbers of thousands of digits
        quotes = "; text needs quotes" * ("Invalid value" in str(error))
        raise InputError(f"{file} is not valid TOML: {printable(str(error))}{quotes}") from None


def toml_value(value: Any) -> str:
    """Return a value in TOML syntax: as in JSON, except for tables and one character that TOML escapes.

    Structs become inline tables without fields that have their default value.
    """
    if isinstance(value, msgspec.Struct):
        given = {
            field.encode_name: own
            for field in msgspec.structs.fields(value)
            if (own := getattr(value, field.name)) != field.default
        }
        return "{ " + ", ".join(f"{key} = {toml_value(own)}" for key, own in given.items()) + " }"
    if isinstance(value, list | tuple) and any(isinstance(item, msgspec.Struct) for item in value):
        return "[\n" + "".join(f"    {toml_value(item)},\n" for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(what: str, found: list[str]) -> str:
    """Return one problem on one line, several as a list."""
    if len(found) == 1:
        return f"{what}: {found[0]}"
    return f"{what}: {len(found)} problems\n" + "\n".join(f"  - {problem}" for problem in found)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a suggestion of the closest known word, or the list of all known words."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def problems(table: dict[str, Any], kind: type[msgspec.Struct], where: str = "") -> list[str]:
    """Return the problems of a table to be converted to a struct: unknown, missing and invalid keys."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = [
        f"{where}{_key(key)} is not a known key; {suggestion(key, fields)}"
        for key in table
        if key not in fields
    ]
    found += [
        f"{where}{name} is missing" for name, field in fields.items() if field.required and name not in table
    ]
    for name, field in fields.items():
        if name in table:
            found += _unfit(table[name], field.type, where + name)
    return found


def _unfit(value: Any, kind: Any, place: str) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return problems(value, kind, f"{place}.")
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)[0]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return [p for i, item in enumerate(value, 1) for p in _unfit(item, inner, f"{place}[{i}]")]
    choices = _choices(kind)
    if isinstance(value, str) and choices and value not in choices:
        return [f"{place}: {_quoted(value)} is not known; {suggestion(value, choices)}"]
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [f"{place}: {_plain(str(error), choices)}, got {_quoted(value)}"]
    return []


def _choices(kind: Any) -> list[str]:
    """Return the string choices that a type allows, at any level of nesting."""
    if get_origin(kind) is Literal:
        return [choice for choice in get_args(kind) if isinstance(choice, str)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _plain(text: str, choices: list[str]) -> str:
    """Return an error message of msgspec in TOML terms."""
    text = re.sub(r"( - at `.*|, got .*)", "", text)
    words = _PLAIN | ({"str": " or ".join(map(repr, choices))} if choices else {})

    def named(match: re.Match[str]) -> str:
        return " or ".join(words.get(name, name) for name in match[1].split(" | ") if name != "null")

    text = re.sub(r"`([^`]*)`", named, text)
    text = re.sub(r" (>=|<=|>|<) (\S+)", lambda match: f" {_BOUNDS[match[1]]} {_number(match[2])}", text)
    return text[:1].lower() + text[1:]


def _number(text: str) -> str:
    value = float(text)
    return f"{value:,.0f}" if value.is_integer() else f"{value:g}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]{1,60}", key, re.ASCII) else _quoted(key)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 3]}..."
