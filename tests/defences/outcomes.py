"""The report: what was taken away, and how it was noticed."""

from __future__ import annotations

from tests.defences.catalogue import DEFENCES, Defence
from tests.defences.markers import marked
from tests.support.places import ROOT

REPORT = ROOT / "docs" / "evidence" / "defences.txt"


def described(defence: Defence) -> str:
    """Return what was done, by which an outcome is known again."""
    changes = "; ".join(
        f"{marker} [{marked(marker)}] -> {' '.join(new.split()) or '(nothing)'}"
        for marker, new in defence.changes.items()
    )
    return f"{defence.name} | {defence.statement} | {changes} | {defence.test}"


def report(tried: Defence, line: str) -> str:
    """Return the text of the report: a new outcome, and earlier ones of the very same changes and tests."""
    earlier = REPORT.read_text("utf-8").splitlines() if REPORT.exists() else []
    kept = []
    for defence in DEFENCES:
        known = f" | {described(defence)} | "
        same = [line] if defence is tried else [old for old in earlier if known in old]
        kept += same[:1]
    noticed = sum(line.startswith("noticed") for line in kept)
    head = [
        "Defences of docs/concepts/threat-model.md, removed one by one (python -m tests.defences)",
        f"{noticed} of {len(DEFENCES)} noticed, {len(DEFENCES) - len(kept)} not tried.",
        "outcome | defence | statement | change | test | how the test fails",
        "",
    ]
    return "\n".join([*head, *kept, ""])
