"""Copies of approved studies, by the hash of the contract that identifies a study in the ledger.

The contract depends on the public files of a study, which are not copied: so its hash is kept with the copy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capedjica.errors import CapedjicaError
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study, read_study_file, write_study
from capedjica.tools.atomic_files import write_whole, writing

_CONTRACT: Final = ".contract"


@dataclass(frozen=True)
class ApprovedCopy:
    """The copy of an approved study, and the hash of the study, which data managers compare."""

    file: Path
    hash: bytes


def keep_copy(home: SiteHome, study: Study) -> None:
    """Keep a copy of a study, unless it is there already."""
    file = home.approved_path / f"{study.hash.hex()[:16]}.toml"
    if not file.exists():
        write_study(file, study.content, study.folder)
    contract = file.with_suffix(_CONTRACT)
    if not contract.exists():
        with writing(contract):
            write_whole(contract, f"{study.contract.hash.hex()}\n".encode())


def approved_copies(home: SiteHome) -> dict[bytes, ApprovedCopy]:
    """Return the copies by the hash of their contracts; those that cannot be read are skipped."""
    found = {}
    for file in sorted(home.approved_path.glob("*.toml")):
        # A copy of an older version is no reason not to show the ledger.
        with suppress(CapedjicaError):
            study = Study(read_study_file(file), file.parent)
            found[_contract_of(file)] = ApprovedCopy(file, study.hash)
    return found


def _contract_of(file: Path) -> bytes:
    try:
        return bytes.fromhex(file.with_suffix(_CONTRACT).read_text(encoding="ascii"))
    except (OSError, ValueError):
        # Written by an earlier version; raises for a study with public files.
        return Study.load(file).contract.hash
