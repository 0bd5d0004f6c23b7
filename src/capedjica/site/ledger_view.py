"""A site's ledger as its data manager reads it."""

from __future__ import annotations

import math
from typing import Any

from capedjica.privacy.ledger import Ledger, Spent
from capedjica.privacy.wording import NOT_PRIVATE, round_up


def spending(ledger: Ledger) -> list[dict[str, Any]]:
    """Return what each study spent, and last what all together did."""
    totals = ledger.totals()
    return [row(study.hex(), spent) for study, spent in totals.studies.items()] + [row(None, totals.overall)]


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
    """Return every message that ever left, oldest first, in words and numbers."""
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
