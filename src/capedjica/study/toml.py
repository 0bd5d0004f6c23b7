"""Settings files for people: read strictly, all problems named at once, a misspelt key put right."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

from capedjica.errors import InputError

_PLAIN: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
_Content = TypeVar("_Content", bound=msgspec.Struct)


def read_toml(path: str | os.PathLike[str], kind: type[_Content]) -> _Content:
    """Read a TOML file into a struct; InputError lists all that is wrong with it."""
    file = Path(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a text file (UTF-8)") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not valid TOML: {error}") from None
    found = problems(table, kind)
    if found:
        raise InputError(listed(str(file), found))
    try:
        return msgspec.convert(table, kind)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{file}: {error}") from None


def listed(what: str, found: list[str]) -> str:
    """Return one problem on one line, several as a list."""
    if len(found) == 1:
        return f"{what}: {found[0]}"
    return f"{what}: {len(found)} problems\n" + "\n".join(f"  - {problem}" for problem in found)


def problems(table: dict[str, Any], kind: type[msgspec.Struct], where: str = "") -> list[str]:
    """Return what is wrong with a table that is to become a struct: unknown, missing and unfit keys."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = [_unknown(where + key, key, list(fields)) for key in table if key not in fields]
    found += [
        f"{where}{name} is missing" for name, field in fields.items() if field.required and name not in table
    ]
    for name, field in fields.items():
        if name in table:
            found += _unfit(table[name], field.type, where + name)
    return found


def _unknown(place: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    return f"{place} is not a known key; {hint}"


def _unfit(value: Any, kind: Any, place: str) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return problems(value, kind, f"{place}.")
    if get_origin(kind) is tuple and isinstance(value, list):
        inner = get_args(kind)[0]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return [p for i, item in enumerate(value, 1) for p in _unfit(item, inner, f"{place}[{i}]")]
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [f"{place}: {_plain(str(error))}, got {value!r}"]
    return []


def _plain(text: str) -> str:
    """Return a message of msgspec in the words of TOML."""
    text = text.split(" - at `")[0].split(", got `")[0].replace(" | null", "")
    for name, plain in _PLAIN.items():
        text = text.replace(f"`{name}`", plain)
    return text[:1].lower() + text[1:]
