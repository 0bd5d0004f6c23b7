"""Files received from a browser, kept in a private temporary folder until the pages are closed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from starlette.datastructures import UploadFile

from capedjica.errors import InputError

MOST_BYTES: Final = 512 << 20
_MOST_MEMBERS: Final = 10_000
_MOST_UNPACKED: Final = 4 << 30
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONGEST_NAME: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")


class Uploads:
    """A private folder with one subfolder for each upload."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="capedjica-web-", ignore_cleanup_errors=True)

    def keep(self, files: list[UploadFile]) -> tuple[str, Path]:
        """Write files of one upload into a folder of their own; return its id and path."""
        given = [file for file in files if file.filename]
        if not given:
            raise InputError("no file was chosen; expected a file")
        # defence: web-names-of-files
        wrong = next((file.filename for file in given if not _NAME.fullmatch(file.filename or "")), None)
        if wrong is not None:
            raise InputError(
                f"the file name {wrong[:100]!r} cannot be used; expected letters, digits, dots, dashes and "
                "underscores. Rename the file and choose it again"
            )
        name = secrets.token_hex(8)
        folder = Path(self._folder.name) / name
        folder.mkdir(mode=0o700)
        total = 0
        for file in given:
            with open(folder / str(file.filename), "xb") as out:
                while chunk := file.file.read(1 << 20):
                    total += len(chunk)
                    if total > MOST_BYTES:
                        shutil.rmtree(folder)
                        raise InputError(f"the files are larger than {MOST_BYTES >> 20} MB; expected less")
                    out.write(chunk)
        return name, folder

    def copy(self, given: Path) -> Path:
        """Copy a kit, or a study.toml with the files that it names, and return the path of the copy.

        The file that is approved is then the one that was shown, even if the original changes.
        """
        source = given / "study.toml" if given.is_dir() else given
        folder = Path(self._folder.name) / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        try:
            left = _copy(source, folder / source.name, MOST_BYTES)
            if source.suffix != ".zip":
                for name in _files_beside(folder / source.name, source.parent):
                    left = _copy(source.parent / name, folder / name, left)
        except OSError as error:
            shutil.rmtree(folder)
            raise InputError(f"{given} cannot be read: {error.strerror}") from None
        except InputError:
            shutil.rmtree(folder)
            raise
        return folder / source.name

    def place(self, name: str) -> Path:
        """Return the path of a new file in the folder."""
        return Path(self._folder.name) / name

    def opening_page(self, address: str) -> Path:
        """Write a page that leads to an address: as an argument of a browser others would see the token."""
        page = self.place("open.html")
        page.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}">\n')
        return page

    def close(self) -> None:
        """Remove everything."""
        self._folder.cleanup()


def _copy(source: Path, target: Path, most: int) -> int:
    """Copy a regular file of at most so many bytes; return how many of them are left."""
    # A pipe or a device would not end.
    with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InputError(f"{source} is not a file; expected a kit (NAME.zip) or a study.toml")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(target, "xb") as out:
            while chunk := file.read(1 << 20):
                most -= len(chunk)
                if most < 0:
                    raise InputError(f"the files are larger than {MOST_BYTES >> 20} MB; expected less")
                out.write(chunk)
    return most


def _files_beside(study: Path, folder: Path) -> list[str]:
    """Return the files in a folder that a study.toml names; none if it cannot be parsed."""
    try:
        names = list(_named_files(tomllib.loads(study.read_text(encoding="utf-8"))))
    except (ValueError, RecursionError):
        return []
    inside = [PurePosixPath(name) for name in names if name.isprintable() and len(name) < _LONGEST_NAME]
    found = [path for path in inside if not path.is_absolute() and ".." not in path.parts]
    return [str(path) for path in dict.fromkeys(found) if (folder / path).is_file()]


def _named_files(table: Any) -> Iterator[str]:
    """Yield the names in a table whose hashes are stated next to them."""
    if isinstance(table, dict):
        for key, value in table.items():
            if isinstance(value, str) and f"{key}_sha256" in table:
                yield value
            yield from _named_files(value)
    elif isinstance(table, list):
        for one in table:
            yield from _named_files(one)


def unpack_results(archive: Path) -> Path:
    """Unpack a results.zip next to itself; refuse anything else."""
    into = archive.with_name("results")
    try:
        with zipfile.ZipFile(archive) as packed:
            members = packed.infolist()
            total = sum(member.file_size for member in members)
            if len(members) > _MOST_MEMBERS or total > _MOST_UNPACKED:
                raise InputError(f"{archive.name} is too large for a results.zip; nothing was unpacked")
            if any(member.filename.startswith("/") or ".." in member.filename for member in members):
                raise InputError(f"{archive.name} holds names outside of its folder; nothing was unpacked")
            if any(member.compress_type not in _PACKINGS for member in members):
                raise InputError(
                    f"{archive.name} has members that are neither stored nor deflated; nothing was unpacked"
                )
            packed.extractall(into)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        shutil.rmtree(into, ignore_errors=True)
        raise InputError(f"{archive.name} is not a results.zip: {error}") from None
    tops = list(into.iterdir())
    return tops[0] if len(tops) == 1 and tops[0].is_dir() else into
