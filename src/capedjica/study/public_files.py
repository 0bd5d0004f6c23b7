"""Public files of a study (atlas, mask, template), stored next to study.toml and identified by their hash.

A table of the study, ``[features]`` or ``[analysis]``, declares which of its keys name files (`public_keys`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar, Protocol, TypeVar

import msgspec

from capedjica.errors import InputError
from capedjica.tools.atomic_files import whole_file


class WithFiles(Protocol):
    """A table that may name files."""

    public_keys: ClassVar[tuple[str, ...]]


Table = TypeVar("Table", bound=WithFiles)


def public_files(table: WithFiles) -> Iterator[tuple[str, str, str | None]]:
    """Yield the key, the name and the SHA-256 of each file named in a table."""
    for key in table.public_keys:
        name = getattr(table, key)
        if name is not None:
            yield key, name, getattr(table, f"{key}_sha256")


def file_names(tables: Iterable[WithFiles]) -> list[str]:
    """Return the names of the files of a study, without duplicates."""
    return list(dict.fromkeys(name for table in tables for _, name, _ in public_files(table)))


def file_problems(table: WithFiles, where: str = "features.") -> list[str]:
    """Return the problems of file names and hashes, without opening the files."""
    found = []
    for key, name, digest in public_files(table):
        if not _is_beside(name):
            found.append(
                f"{where}{key} must be a relative path inside the folder of study.toml, so that both can be "
                f"distributed together; got {name!r}"
            )
        if digest is None or not re.fullmatch(r"[0-9a-f]{64}", digest):
            got = "nothing" if digest is None else repr(digest[:80])
            found.append(f"{where}{key}_sha256 must be the SHA-256 of {name!r}, 64 hex digits; got {got}")
    return found + [
        f"{where}{key}_sha256 is given, but {where}{key} is missing"
        for key in table.public_keys
        if getattr(table, key) is None and getattr(table, f"{key}_sha256") is not None
    ]


def _is_beside(name: str) -> bool:
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and path.parts != () and ".." not in path.parts


def with_hashes(table: Table, folder: Path) -> Table:
    """Return the table with missing hashes filled in."""
    missing = {
        f"{key}_sha256": hash_of(folder / name) for key, name, digest in public_files(table) if digest is None
    }
    changed: Table = msgspec.structs.replace(table, **missing)  # type: ignore[type-var]
    return changed


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically; refuse to overwrite a different file."""
    if target.exists():
        if hash_of(target) != hash_of(source):
            raise InputError(f"{target} already exists and differs from {source}; it is not overwritten")
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file, whole_file(target) as copy:
            shutil.copyfileobj(file, copy)
    except OSError as error:
        raise InputError(f"{source} cannot be copied to {target}: {error.strerror}") from None


def copy_files(tables: Iterable[WithFiles], source: Path, target: Path) -> None:
    """Copy the public files of a study from its folder to another."""
    for name in file_names(tables):
        copy_file(source / name, target / name)
