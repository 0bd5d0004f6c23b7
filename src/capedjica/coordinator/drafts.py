"""Add sites to the ``study.toml`` of a study that is not yet sealed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from capedjica.errors import InputError
from capedjica.securesum.identity import PublicIdentity
from capedjica.study.study_file import SiteTable, Study, StudyFile, read_study_file, site_block, study_path
from capedjica.tools.atomic_files import whole_file, writing
from capedjica.tools.toml import listed


def sealed_path(study: str | os.PathLike[str]) -> Path:
    """Return the path of the file that records that a study was sealed, i.e. that its kits were created."""
    return study_path(study).parent / "federation" / "sealed.json"


def add_sites(path: str | os.PathLike[str], sites: Sequence[SiteTable]) -> Study:
    """Append sites to a ``study.toml``, all or none, and return the study, which may still be incomplete.

    The rest of the file, including comments, is unchanged. The write is atomic: the new file replaces the old
    one only if it reads back as the study with these sites added.
    """
    file = study_path(path)
    content = read_study_file(file)
    if sealed_path(file).exists():
        raise InputError(
            f"{file} was sealed ({sealed_path(file)}) and cannot be changed; create a new study instead"
        )
    for site in sites:
        _check_newcomer(file, content, site)
        content = msgspec.structs.replace(content, sites=(*content.sites, site))
    grown = Study(content, file.parent)
    found = grown.draft_problems()
    if found:
        names = ", ".join(site.name for site in sites)
        raise InputError(listed(f"site {names} cannot be added to {file}", found))
    _append(file.resolve(), "".join(map(site_block, sites)), grown.content)
    return grown


def site_list(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the sites of a study or a draft with their fingerprints, and what the study still lacks."""
    file = study_path(path)
    study = Study(read_study_file(file), file.parent)
    found = study.problems()
    return {
        "title": study.content.title,
        "file": str(file),
        "sites": [
            {
                "name": site.name,
                "participants": site.subjects,
                "epsilon": site.epsilon or study.content.privacy.epsilon,
                "fingerprint": PublicIdentity.from_card(site.card).fingerprint,
            }
            for site in study.content.sites
        ],
        "problems": found,
        "hash": None if found else study.hash.hex(),
        "sealed": sealed_path(file).exists(),
    }


def _check_newcomer(file: Path, content: StudyFile, site: SiteTable) -> None:
    """Refuse a name or a key that is already in the study."""
    key = PublicIdentity.from_card(site.card).public_key
    for other in content.sites:
        if other.name == site.name:
            raise InputError(
                f"{file} already has a site {site.name}; to replace its card, delete its [[sites]] first; "
                "two sites need different names"
            )
        if PublicIdentity.from_card(other.card).public_key == key:
            raise InputError(
                f"{file} already has the key of site {site.name}, under the name {other.name}; each site "
                "needs its own key"
            )


def _append(file: Path, block: str, expected: StudyFile) -> None:
    with writing(file), whole_file(file, mode=0o600) as draft:
        text = file.read_bytes()
        # Use the line endings of the existing text.
        end = b"\r\n" if b"\r\n" in text else b"\n"
        draft.write(text + (b"" if text.endswith(b"\n") else end) + block.encode().replace(b"\n", end))
        draft.flush()
        if not _reads_as(Path(draft.name), expected):
            raise InputError(
                f"{file}: sites cannot be appended; its sites must be tables, each with the header [[sites]]"
            )
        shutil.copymode(file, draft.name)


def _reads_as(file: Path, expected: StudyFile) -> bool:
    try:
        return read_study_file(file) == expected
    except InputError:
        return False
