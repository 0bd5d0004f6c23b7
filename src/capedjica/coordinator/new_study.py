"""Create a new study from site cards or site folders and public files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from capedjica.data.features import (
    FeatureTable,
    count_features,
    image_features,
    open_features,
    read_regions,
)
from capedjica.data.templates import GivenTemplate, names_beside, read_template
from capedjica.errors import InputError
from capedjica.securesum.identity import Card
from capedjica.study.public_files import copy_file
from capedjica.study.study_file import SiteTable
from capedjica.tools.arrays import FloatArray
from capedjica.tools.atomic_files import write_whole, writing
from capedjica.tools.text import printable
from capedjica.tools.toml import listed, problems

SITE_FORMS: Final = (
    "a card or its file (CARD:SUBJECTS if it does not state the number enrolled), or a site's folder (its "
    "scans are counted), or FOLDER:SUBJECTS"
)
_CARD: Final = "capedjica-site-"
# A longer file is not a card.
_LONGEST_CARD: Final = 4096


FolderReader = Callable[[str, int | None], SiteTable]


def read_card(text: str) -> Card:
    """Read a card, given as text or as the path of a file."""
    if text.lstrip().startswith(_CARD) or not _exists(text):
        return Card.read(text)
    try:
        with open(text, encoding="utf-8") as file:
            content = file.read(_LONGEST_CARD)
    except OSError as error:
        raise InputError(f"{text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        content = ""
    if not content.lstrip().startswith(_CARD):
        raise InputError(f"{text} is not a site card; expected one line, '{_CARD}1 NAME KEY'")
    try:
        return Card.read(content)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None


def site_of_card(text: str, subjects: int | None = None, epsilon: float | None = None) -> SiteTable:
    """Return the site of a card; ``subjects`` is needed if the card does not state the number enrolled."""
    card = read_card(text)
    name, known = card.site.name, card.n_enrolled
    if known is None and subjects is None:
        raise InputError(
            f"site {name}: its card does not state the number of participants; ask the site for the card "
            "written by `capedjica site enrol`, or give the number as CARD:SUBJECTS or with --subjects"
        )
    if known is not None and subjects not in (None, known):
        raise InputError(
            f"site {name}: got {subjects} subjects, but its card states {known} enrolled participants; "
            "omit the number"
        )
    n_subjects = known if subjects is None else subjects
    assert n_subjects is not None
    return SiteTable(name=name, subjects=n_subjects, card=card.site.card, epsilon=epsilon)


def read_site(text: str, of_folder: FolderReader) -> SiteTable:
    """Return a site given as ``CARD:SUBJECTS``, ``FOLDER`` or ``FOLDER:SUBJECTS``.

    A card is the line printed by ``capedjica site init``, or the file with that line. A site's folder is
    passed to ``of_folder``, with the number of subjects if given; such folders exist only in trials on one
    machine.
    """
    who, subjects = _split(text.strip())
    if who.startswith(_CARD) or who.endswith(".card"):
        return site_of_card(who, subjects)
    if _exists(who):
        return of_folder(who, subjects)
    raise InputError(f"site {printable(text)!r} is neither a card nor a folder; expected {SITE_FORMS}")


def n_features_of(table: FeatureTable, images: Mapping[str, Path | None]) -> int | None:
    """Return the number of features defined by public images; None if features are columns of tables.

    ``images`` maps the table's keys to the paths of their files.
    """
    found = problems(msgspec.to_builtins(table), FeatureTable, "features.")
    if found:
        raise InputError(listed("the study", found))
    if table.kind == "columns" and table.atlas is not None:
        assert images["atlas"] is not None
        regions = read_regions(images["atlas"], "regions")
        return image_features(FeatureTable(kind="atlas"), regions, None).n_features
    if table.kind == "columns":
        return None
    return count_features(_found(table, images), Path())


def region_names(atlas: Path | None) -> Path | None:
    """Return the table of names next to an atlas, which is copied with it; None without one."""
    return None if atlas is None else names_beside(atlas)


def _found(table: FeatureTable, images: Mapping[str, Path | None]) -> FeatureTable:
    """Return the table with the current paths of its files."""
    where = {key: str(path.absolute()) for key, path in images.items() if path is not None}
    return msgspec.structs.replace(table, **where)


def template_of(
    path: Path,
    table: FeatureTable,
    images: Mapping[str, Path | None],
    n_features: int | None,
    names: Path | None,
) -> GivenTemplate:
    """Read a template of any supported format in the features of a study.

    ``n_features`` is the number of columns; if it is None, the template determines it.
    """
    columns = table.kind == "columns"
    if columns and (table.atlas is None or n_features is None):
        features = None
    else:
        features = open_features(_found(table, images), Path(), n_features if columns else None)
    return read_template(path, features, n_features, names)


def as_file(maps: FloatArray) -> bytes:
    """Return an array as the content of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, maps.astype("<f8"), allow_pickle=False)
    return buffer.getvalue()


@contextmanager
def beside(
    folder: Path, images: Mapping[str, Path | None], contents: Mapping[str, bytes] | None = None
) -> Iterator[None]:
    """Copy or write public files into the folder of a study; remove them if the block raises.

    Parameters
    ----------
    folder : Path
        Folder of the study.
    images : dict
        Files to copy.
    contents : dict
        Contents of files to write, by name.
    """
    made, new_folder = [], not folder.exists()
    try:
        for path in filter(None, images.values()):
            if not (folder / path.name).exists():
                made.append(folder / path.name)
            copy_file(path, folder / path.name)
        for name, content in (contents or {}).items():
            target = folder / name
            if target.exists():
                if target.read_bytes() != content:
                    raise InputError(
                        f"{target} exists with other content and is not overwritten; remove it or use "
                        "another folder"
                    )
                continue
            made.append(target)
            with writing(target):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(target, content, new=True)
        yield
    except BaseException:
        for copy in made:
            copy.unlink(missing_ok=True)
        if new_folder:
            with suppress(OSError):  # not empty, or never created
                folder.rmdir()
        raise


def _split(text: str) -> tuple[str, int | None]:
    """Split off the number of subjects after a colon, a comma or a space."""
    match = re.fullmatch(r"(.+?)(?:\s*[:,]\s*|\s+)(\d{1,12})", text, re.ASCII)
    if match is None or _exists(text):
        return text, None
    return match[1], int(match[2])


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # longer than a file name can be
        return False


def read_site_file(path: str | os.PathLike[str], of_folder: FolderReader) -> list[SiteTable]:
    """Read a text file with one site per line, in the form of :func:`read_site`; ``#`` starts a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file (UTF-8)") from None
    texts = {number: line.partition("#")[0].strip() for number, line in enumerate(lines, start=1)}
    return read_sites([text for text in texts.values() if text], str(path), of_folder)


def read_sites(texts: Sequence[str], where: str, of_folder: FolderReader) -> list[SiteTable]:
    """Read several sites; the error lists all problems."""
    sites, found = [], []
    for text in texts:
        try:
            sites.append(read_site(text, of_folder))
        except InputError as error:
            found.append(str(error))
    if found:
        raise InputError(listed(where, found))
    return sites
