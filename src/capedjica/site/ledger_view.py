"""Views of a site's ledger for its data manager."""

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
    "This list contains every message computed from participants' data. It omits messages that do not depend "
    "on any data: to agree on masks, public keys, encrypted shares of keys and as many random numbers as are "
    "released{size}; on request of the aggregator, that the site is online, what it has spent, and a signed "
    "checksum of its ledger; and refusals, in words that do not depend on any participant's data."
)


def spending(ledger: Ledger, hashes: Mapping[bytes, bytes] | None = None) -> list[dict[str, Any]]:
    """Return the spending of each study, and of all studies in the last row.

    The ledger identifies a study by the hash of its contract. ``hashes`` maps it to the hash of the study
    itself, which data managers compare (:func:`study_hashes`).
    """
    totals, known = ledger.totals(), hashes or {}
    rows = [
        row(study.hex(), spent) | {"study_hash": known[study].hex() if study in known else None}
        for study, spent in totals.studies.items()
    ]
    return [*rows, row(None, totals.overall) | {"study_hash": None}]


def study_hashes(home: SiteHome) -> dict[bytes, bytes]:
    """Return the hash of every approved study that has a copy, by the hash of its contract."""
    found = {}
    for copy in sorted(home.approved_path.glob("*.toml")):
        # The ledger is shown even if a copy from an older version cannot be read.
        with suppress(CapedjicaError):
            study = Study.load(copy)
            found[study.contract.hash] = study.hash
    return found


def row(study: str | None, spent: Spent) -> dict[str, Any]:
    """Return the spending of one study, or of all studies for None."""
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
    return text if spent.neighbour == "subject" else f"{text} (subject: {round_up(spent.subject_epsilon)})"


def messages_sent(ledger: Ledger) -> list[dict[str, Any]]:
    """Return every message computed from data that ever left the site, oldest first."""
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
