"""A new study from what a coordinator knows: sites by their cards or folders, and a few numbers."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from capedjica.data.features import FeatureTable, count_features, open_features
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
    "a card or its file (CARD:SUBJECTS if it does not say how many are enrolled), or a site's folder (its "
    "scans are counted), or FOLDER:SUBJECTS"
)
_CARD: Final = "capedjica-site-"
# A file with more in it holds something else.
_LONGEST_CARD: Final = 4096


FolderReader = Callable[[str, int | None], SiteTable]


def read_card(text: str) -> Card:
    """Return what a card says, given itself or a file that holds it."""
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
        raise InputError(f"{text} holds no site card: expected one line, '{_CARD}1 NAME KEY'")
    try:
        return Card.read(content)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None


def site_of_card(text: str, subjects: int | None = None, epsilon: float | None = None) -> SiteTable:
    """Return the site of a card; how many people it has is on the card, or given where it is not."""
    card = read_card(text)
    name, known = card.site.name, card.n_enrolled
    if known is None and subjects is None:
        raise InputError(
            f"site {name}: how many people? Its card does not say: ask for the one that `capedjica site "
            "enrol` wrote, or give the number, CARD:SUBJECTS or --subjects"
        )
    if known is not None and subjects not in (None, known):
        raise InputError(f"site {name}: its card says {known} enrolled participants, not {subjects}")
    n_subjects = known if subjects is None else subjects
    assert n_subjects is not None
    return SiteTable(name=name, subjects=n_subjects, card=card.site.card, epsilon=epsilon)


def read_site(text: str, of_folder: FolderReader) -> SiteTable:
    """Return a site given as ``CARD:SUBJECTS``, ``FOLDER`` or ``FOLDER:SUBJECTS``.

    A card is what ``capedjica site init`` printed, or its file. A site's folder goes to ``of_folder``, with
    the number of its people if that was given: only who tries all out on one machine has such folders.
    """
    who, subjects = _split(text.strip())
    if who.startswith(_CARD) or who.endswith(".card"):
        return site_of_card(who, subjects)
    if _exists(who):
        return of_folder(who, subjects)
    raise InputError(f"site {printable(text)!r} is neither a card nor a folder; expected {SITE_FORMS}")


def n_features_of(table: FeatureTable, images: Mapping[str, Path | None]) -> int | None:
    """Return how many features public images make; None where they are the columns of tables.

    ``images`` are the files of the table's keys, wherever they are.
    """
    found = problems(msgspec.to_builtins(table), FeatureTable, "features.")
    if found:
        raise InputError(listed("the study", found))
    if table.kind == "columns" and table.atlas is not None:
        return count_features(FeatureTable(kind="atlas", atlas=str(images["atlas"])), Path())
    if table.kind == "columns":
        return None
    return count_features(_found(table, images), Path())


def region_names(atlas: Path | None) -> Path | None:
    """Return the table of names beside an atlas, which goes where the atlas goes; None without one."""
    return None if atlas is None else names_beside(atlas)


def _found(table: FeatureTable, images: Mapping[str, Path | None]) -> FeatureTable:
    """Return the table with its files where they are now."""
    where = {key: str(path.absolute()) for key, path in images.items() if path is not None}
    return msgspec.structs.replace(table, **where)


def template_of(
    path: Path,
    table: FeatureTable,
    images: Mapping[str, Path | None],
    n_features: int | None,
    names: Path | None,
) -> GivenTemplate:
    """Return a template in the features of a study, whatever it is given as.

    ``n_features`` counts columns; where it is not known, the template itself does.
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
    """Put public files into the folder of a study; take them away again if it is not written.

    Parameters
    ----------
    folder : Path
        Of the study.
    images : dict
        Files that are copied.
    contents : dict
        What files are to hold that are made, by their names.
    """
    made = []
    try:
        for path in filter(None, images.values()):
            if not (folder / path.name).exists():
                made.append(folder / path.name)
            copy_file(path, folder / path.name)
        for name, content in (contents or {}).items():
            target = folder / name
            if target.exists():
                if target.read_bytes() != content:
                    raise InputError(f"{target} exists already, is another, and is not overwritten")
                continue
            made.append(target)
            with writing(target):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(target, content, new=True)
        yield
    except BaseException:
        for copy in made:
            copy.unlink(missing_ok=True)
        raise


def _split(text: str) -> tuple[str, int | None]:
    """Split off the number of subjects, which stands after a colon, a comma or a space."""
    match = re.fullmatch(r"(.+?)(?:\s*[:,]\s*|\s+)(\d{1,12})", text, re.ASCII)
    if match is None or _exists(text):
        return text, None
    return match[1], int(match[2])


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # longer than any name of a file
        return False


def read_site_file(path: str | os.PathLike[str], of_folder: FolderReader) -> list[SiteTable]:
    """Read a text file with a site on each line, as :func:`read_site` takes it; ``#`` begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file (UTF-8)") from None
    texts = {number: line.partition("#")[0].strip() for number, line in enumerate(lines, start=1)}
    return read_sites([text for text in texts.values() if text], str(path), of_folder)


def read_sites(texts: Sequence[str], where: str, of_folder: FolderReader) -> list[SiteTable]:
    """Read several sites; all problems are listed."""
    sites, found = [], []
    for text in texts:
        try:
            sites.append(read_site(text, of_folder))
        except InputError as error:
            found.append(str(error))
    if found:
        raise InputError(listed(where, found))
    return sites
