"""A site takes its approval of a study back: from then on nothing leaves for it.

The ledger holds it, so it is in force for every process that has the ledger open, from its next message on.
What was released stays released and charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capedjica.errors import InputError
from capedjica.privacy.ledger import Spent
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.tools.text import printable

_REASON: Final = "revoked by the site"


@dataclass(frozen=True)
class Approval:
    """An approval that stands: the hash under which the ledger has it, and what was spent under it."""

    hash: bytes
    spent: Spent

    @property
    def title(self) -> str:
        """The study's title, as a terminal may show it."""
        return f"'{printable(self.spent.title)}'"


def find_approval(home: SiteHome, study: str) -> Approval:
    """Return the approval of a study, named by its file, its folder, or its title in the ledger."""
    name = home.settings.name
    with home.open_ledger(must_exist=True) as ledger:
        known = ledger.totals().studies
    chosen = _named(known, study)
    if not chosen:
        titles = ", ".join(sorted({f"'{printable(spent.title)}'" for spent in known.values()})) or "none"
        raise InputError(f"site {name} never approved {printable(study)!r}; it approved {titles}")
    standing = [one for one in chosen if not one.spent.revoked]
    if not standing:
        raise InputError(f"site {name} has revoked its approval of {chosen[0].title} already")
    if len(standing) > 1:
        raise InputError(
            f"site {name} approved {len(standing)} studies called {standing[0].title}: name one by its file"
        )
    return standing[0]


def _named(known: dict[bytes, Spent], study: str) -> list[Approval]:
    if Path(study).exists():
        key = Study.load(study).contract.hash
        return [Approval(key, known[key])] if key in known else []
    return [Approval(key, spent) for key, spent in known.items() if spent.title == study]


def revoke(home: SiteHome, approval: Approval) -> None:
    """Take an approval back, for good."""
    with home.open_ledger(must_exist=True) as ledger:
        ledger.revoke(approval.hash, _REASON)


def warn(approval: Approval) -> Iterator[str]:
    """Yield in words what was spent under an approval, and what it means to revoke it."""
    yield str(approval.spent)
    yield (
        "If the approval is revoked, nothing more leaves for this study; what was released stays released "
        "and charged. It is for good: the same study cannot be approved again."
    )


def explain(home: SiteHome, approval: Approval) -> Iterator[str]:
    """Yield in words what a revocation did."""
    yield f"Site {home.settings.name} revoked its approval of {approval.title}. Nothing more leaves for it."
    yield (
        "A run under way loses this site from its next message on, and goes on if enough are left. Tell the "
        f"coordinator; then: capedjica site stop {home.folder}"
    )
    yield "To take part after all, let the coordinator make a new study, which is charged anew."
