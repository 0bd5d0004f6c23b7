"""Views of a site's ledger for its data manager."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from capedjica.privacy.ledger import Ledger, Spent
from capedjica.privacy.wording import NOT_PRIVATE, round_up
from capedjica.site.approval.copies import ApprovedCopy

NOT_LISTED: Final = (
    "This list contains every message computed from participants' data. It omits messages that do not depend "
    "on any data: to agree on masks, public keys, encrypted shares of keys and as many random numbers as are "
    "released{size}; on request of the aggregator, that the site is online, what it has spent, and a signed "
    "checksum of its ledger; and refusals, in words that do not depend on any participant's data."
)


def spending(ledger: Ledger, copies: Mapping[bytes, ApprovedCopy]) -> list[dict[str, Any]]:
    """Return the spending of each study, and of all studies in the last row.

    The ledger identifies a study by the hash of its contract. The hash of the study itself, which data
    managers compare, is that of its copy.
    """
    totals = ledger.totals()
    rows = [
        row(study.hex(), spent) | {"study_hash": copies[study].hash.hex() if study in copies else None}
        for study, spent in totals.studies.items()
    ]
    return [*rows, row(None, totals.overall) | {"study_hash": None}]


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
