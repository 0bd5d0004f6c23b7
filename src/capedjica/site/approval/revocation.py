"""Revocation of a site's approval of a study, after which nothing more leaves for it.

The revocation is recorded in the ledger, so it applies to every process that has the ledger open, from its
next message on. Past releases stay released and charged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy.ledger import Spent
from capedjica.site.approval.copies import approved_copies
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.text import printable

_REASON: Final = "revoked by the site"


@dataclass(frozen=True)
class Approval:
    """A valid approval: the hash of the study's contract in the ledger, and what was spent."""

    hash: bytes
    spent: Spent

    @property
    def title(self) -> str:
        """Title of the study, quoted and safe for a terminal."""
        return f"'{printable(self.spent.title)}'"


def find_approval(home: SiteHome, study: str) -> Approval:
    """Return the approval of a study, given by its file, its folder, or its title or hash in the ledger."""
    name = home.settings.name
    with home.open_ledger(must_exist=True) as ledger:
        known = ledger.totals().studies
    chosen = _named(home, known, study)
    if not chosen:
        titles = ", ".join(sorted({f"'{printable(spent.title)}'" for spent in known.values()})) or "none"
        raise InputError(f"site {name} has not approved {printable(study)!r}; approved studies: {titles}")
    standing = [one for one in chosen if not one.spent.revoked]
    if not standing:
        raise InputError(f"site {name} has already revoked its approval of {chosen[0].title}")
    if len(standing) > 1:
        raise InputError(
            f"site {name} approved {len(standing)} studies with the title {standing[0].title}; give the "
            "study.toml of one of them"
        )
    return standing[0]


def _named(home: SiteHome, known: dict[bytes, Spent], study: str) -> list[Approval]:
    if re.fullmatch(r"[0-9a-f]{64}", study):
        of_study = {copy.hash: contract for contract, copy in approved_copies(home).items()}
        digest = bytes.fromhex(study)
        key = of_study.get(digest, digest)
        return [Approval(key, known[key])] if key in known else []
    if Path(study).exists():
        key = Study.load(study).contract.hash
        return [Approval(key, known[key])] if key in known else []
    return [Approval(key, spent) for key, spent in known.items() if spent.title == study]


def revoke(home: SiteHome, approval: Approval) -> None:
    """Revoke an approval permanently."""
    with home.open_ledger(must_exist=True) as ledger:
        ledger.revoke(approval.hash, _REASON)


def warn(approval: Approval) -> Iterator[str]:
    """Yield sentences about what was spent under an approval and the consequences of revoking it."""
    yield str(approval.spent)
    yield (
        "If you revoke the approval, nothing more leaves this site for the study; past releases stay "
        "released and charged. This is permanent: the same study cannot be approved again."
    )


def explain(home: SiteHome, approval: Approval) -> Iterator[str]:
    """Yield sentences about the effects of a revocation."""
    yield (
        f"Site {home.settings.name} revoked its approval of {approval.title}. Nothing more leaves this site "
        "for it."
    )
    yield (
        "A run in progress loses this site from its next message on, and continues if enough sites are left. "
        f"Inform the coordinator; then: capedjica site stop {home.folder}"
    )
    yield "To take part again, ask the coordinator for a new study, which is charged separately."
