"""Overview of a site without reading any scan: card, limits, budget, enrolment, studies, results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from capedjica.privacy import gaussian_epsilon
from capedjica.privacy.charges import epsilon_of
from capedjica.privacy.ledger import Totals
from capedjica.privacy.wording import round_up
from capedjica.site.approval.copies import approved_copies
from capedjica.site.consent.consents import read_list
from capedjica.site.flare.kits import installed
from capedjica.site.home import SiteHome
from capedjica.site.ledger_view import row
from capedjica.site.participants.enrolment import read_enrolment
from capedjica.site.results.individual import REPORT


def overview(home: SiteHome) -> dict[str, Any]:
    """Return what :func:`overview_words` states, for programs; no scan is opened and no ledger is begun."""
    totals, card = home.totals(), home.card()
    studies = _studies(home, totals)
    text = home.card_path.read_text(encoding="utf-8").strip() if home.card_path.exists() else card.card
    return {
        "site": home.settings.name,
        "folder": str(home.folder),
        "data": {"path": str(home.data_path), "kind": home.settings.data.kind},
        "card": text,
        "card_file": str(home.card_path),
        "fingerprint": card.fingerprint,
        "auto_approve": home.settings.policy.auto_approve,
        "enrolment": _enrolment(home),
        "withdrawn": [
            {"name": one.name, "when": one.when, "by_mistake": one.by_mistake} for one in read_list(home)
        ],
        "budget": _budget(home, totals, studies),
        "studies": studies,
        "results": _results(home),
        "releases": 0 if totals is None else totals.overall.n_releases,
    }


def overview_words(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the overview in words."""
    budget, enrolment = facts["budget"], facts["enrolment"]
    yield f"Site {facts['site']}, {facts['folder']}"
    yield f"Fingerprint: {facts['fingerprint']}"
    yield (
        "No enrolment yet."
        if enrolment is None
        else f"{enrolment['people']:,} participants, enrolled {enrolment['when']}."
    )
    yield (
        f"Limits: epsilon {budget['study_epsilon']:g} for one study, {budget['total_epsilon']:g} in total, "
        f"at delta {budget['delta']:g}."
    )
    yield (
        f"Spent: epsilon {budget['spent_text']}; spent and reserved: epsilon {budget['committed_text']}; "
        f"left for later studies: epsilon {budget['left_text']} (epsilons do not simply add up)."
    )
    for one in facts["studies"]:
        yield f"'{one['title']}': {one['state']}, epsilon {one['epsilon_text']} of {one['allowed']:g}"


def _enrolment(home: SiteHome) -> dict[str, Any] | None:
    enrolment = read_enrolment(home)
    if enrolment is None:
        return None
    return {
        "when": enrolment.when,
        "people": len(enrolment.enrolled),
        "left_out": [{"name": one.name, "reasons": list(one.reasons)} for one in enrolment.left_out],
    }


def _studies(home: SiteHome, totals: Totals | None) -> list[dict[str, Any]]:
    """Return every study in the ledger, with the hash and the file of its approved copy where it is there."""
    copies = approved_copies(home)
    kits = {kit.label.study for kit in installed(home)}
    found = []
    for contract, spent in () if totals is None else totals.studies.items():
        copy = copies.get(contract)
        digest = "" if copy is None else copy.hash.hex()
        over = bool(digest) and home.is_over(digest)
        state = "revoked" if spent.revoked else "finished" if over else "approved"
        reserved = max(0.0, spent.cap.mu2 - spent.mu2) if state == "approved" else 0.0
        found.append(
            row(contract.hex(), spent)
            | {
                "hash": digest,
                "file": None if copy is None else str(copy.file),
                "kit": digest in kits,
                "state": state,
                "reserved_mu_squared": reserved if math.isfinite(spent.mu2) else 0.0,
            }
        )
    return found


def _budget(home: SiteHome, totals: Totals | None, studies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return limits, what is spent, what approved studies may still spend, and what that leaves.

    The parts are of mu squared, in which costs add up.
    """
    policy = home.policy
    limit, delta = policy.total.mu2, policy.total.delta
    spent = 0.0 if totals is None else totals.overall.mu2
    reserved = math.fsum(one["reserved_mu_squared"] for one in studies)
    left = 0.0 if math.isinf(spent) else max(0.0, limit - spent - reserved)
    committed = spent + reserved
    return {
        "total_epsilon": policy.total.epsilon,
        "study_epsilon": policy.per_study.epsilon,
        "delta": delta,
        "spent_text": _up(spent, delta),
        "committed_text": _up(committed, delta),
        "left_text": f"{math.floor(gaussian_epsilon(math.sqrt(left), delta) * 1000) / 1000:g}",
        "spent_part": 1.0 if math.isinf(spent) else min(1.0, spent / limit),
        "reserved_part": 0.0 if math.isinf(spent) else min(1.0, reserved / limit),
        "left_part": left / limit,
    }


def _up(mu2: float, delta: float) -> str:
    return "unlimited" if math.isinf(mu2) else round_up(epsilon_of(mu2, delta))


def _results(home: SiteHome) -> list[dict[str, Any]]:
    """Return the studies of which there are results about single participants here."""
    folders = [path for path in home.results_path.glob("*") if path.is_dir()]
    return [
        {
            "folder": str(path),
            "people": sum(one.is_dir() for one in path.glob("sub-*")),
            "report": str(path / REPORT) if (path / REPORT).exists() else None,
        }
        for path in sorted(folders)
    ]
