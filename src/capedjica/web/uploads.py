"""Files received from a browser, kept in a private temporary folder until the pages are closed."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from starlette.datastructures import UploadFile

from capedjica.errors import InputError

MOST_BYTES: Final = 512 << 20
_MOST_MEMBERS: Final = 10_000
_MOST_UNPACKED: Final = 4 << 30
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
            packed.extractall(into)
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        shutil.rmtree(into, ignore_errors=True)
        raise InputError(f"{archive.name} is not a results.zip: {error}") from None
    tops = list(into.iterdir())
    return tops[0] if len(tops) == 1 and tops[0].is_dir() else into
