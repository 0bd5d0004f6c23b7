"""A site's ledger as its data manager reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from capedjica.errors import CapedjicaError
from capedjica.privacy.ledger import Ledger, Spent
from capedjica.privacy.wording import NOT_PRIVATE, round_up
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study

NOT_LISTED: Final = (
    "Listed is all that was made from anybody's data. Not listed are messages that are made without looking "
    "at any: to agree on masks, public keys, encrypted pieces of keys and as many random numbers as are "
    "released{size}; whenever the aggregator asks, that the site is there, what it spent, and a signed "
    "checksum of its ledger; and refusals, in words that depend on nobody's data."
)


def spending(ledger: Ledger, hashes: Mapping[bytes, bytes] | None = None) -> list[dict[str, Any]]:
    """Return what each study spent, and last what all together did.

    The ledger knows a study by the hash of its contract. ``hashes`` has beside it that of the study itself,
    which people compare (:func:`study_hashes`).
    """
    totals, known = ledger.totals(), hashes or {}
    rows = [
        row(study.hex(), spent) | {"study_hash": known[study].hex() if study in known else None}
        for study, spent in totals.studies.items()
    ]
    return [*rows, row(None, totals.overall) | {"study_hash": None}]


def study_hashes(home: SiteHome) -> dict[bytes, bytes]:
    """Return the hash of every study that was approved and whose copy is there, by that of its contract."""
    found = {}
    for copy in sorted(home.approved_path.glob("*.toml")):
        # A copy of an older version is no reason not to show the ledger.
        with suppress(CapedjicaError):
            study = Study.load(copy)
            found[study.contract.hash] = study.hash
    return found


def row(study: str | None, spent: Spent) -> dict[str, Any]:
    """Return what one study spent, or with None all of them."""
    return {
        "study": study,
        "title": spent.title,
        "mu_squared": _finite(spent.mu2),
        "epsilon": _finite(spent.epsilon),
        "epsilon_text": _epsilon_text(spent),
        "neighbour": spent.neighbour,
        "subject_epsilon": _finite(spent.subject_epsilon),
        "allowed": spent.cap.epsilon,
        "delta": spent.delta,
        "releases": spent.n_releases,
        "aborted": spent.n_aborted,
        "revoked": spent.revoked,
    }


def _epsilon_text(spent: Spent) -> str:
    if math.isinf(spent.epsilon):
        return NOT_PRIVATE
    text = round_up(spent.epsilon)
    return text if spent.neighbour == "subject" else f"{text} (person: {round_up(spent.subject_epsilon)})"


def messages_sent(ledger: Ledger) -> list[dict[str, Any]]:
    """Return every message made from anybody's data that ever left, oldest first, in words and numbers."""
    return [
        {
            "number": sent.seq,
            "when": sent.when.isoformat(),
            "study": sent.title,
            "what": sent.what,
            "numbers": sent.numbers,
            "bytes": len(sent.message),
            "participants": list(sent.participants),
            "mu_squared": _finite(sent.mu2),
            "epsilon": _finite(sent.epsilon),
            "neighbour": sent.neighbour,
            "subject_epsilon": _finite(sent.subject_epsilon),
            "aborted": sent.aborted,
            "text": str(sent),
        }
        for sent in ledger.outbox()
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
