"""The rules of the books, apart from any file."""

from __future__ import annotations

import msgspec
import pytest

from capedjica.privacy.ledger import Entry, Slot, SlotBurntError, TamperedError
from capedjica.privacy.ledger.books import Books
from capedjica.privacy.ledger.entry import Approval, Claim, Detail, Note, ReleaseDetail
from tests.privacy.ledger.ledger_site import DELTA, STUDY

SLOT = Slot(STUDY, 0, 0, 3)


def entry(kind, detail: Detail, study=STUDY, block=None, attempt=None, slot=None, mu2=None) -> Entry:
    text = msgspec.json.encode(detail).decode()
    return Entry(5, kind, 0, study, block, attempt, slot, None, mu2, text, bytes(32))


@pytest.fixture
def books():
    made = Books()
    made.apply(entry("study", Approval("A study", 1.0, DELTA)))
    made.apply(entry("claim", Claim("me"), block=0, attempt=0))
    return made


def test_a_recorded_burn_is_enough(books):
    books.check_fresh(SLOT, "me")
    books.apply(entry("burn", Note("touched"), STUDY, 0, 0, 3))
    with pytest.raises(SlotBurntError):
        books.check_fresh(SLOT, "me")
    books.check_fresh(SLOT._replace(slot=4), "me")


@pytest.mark.parametrize(
    "forged",
    [
        entry("release", ReleaseDetail(("a",), "x", 1), STUDY, 0, 0, 3, mu2=None),
        entry("release", ReleaseDetail(("a",), "x", 1), STUDY, 0, 0, None, mu2=1.0),
        entry("release", ReleaseDetail(("a",), "x", 1), b"another study", 0, 0, 3, mu2=1.0),
        entry("claim", Claim("me"), STUDY, None, 0),
        entry("claim", Note("of another kind"), STUDY, 0, 1),
        entry("study", Approval("Another study", -1.0, DELTA), b"another study"),
        entry("study", Approval("A study, with its charges forgotten", 1.0, DELTA)),
        entry("revoke", Note("x"), None),
        entry("gift", Note("x")),
    ],
    ids=lambda e: f"{e.kind}-{e.detail}",
)
def test_entries_that_make_no_sense_are_refused(books, forged):
    with pytest.raises(TamperedError, match="entry 5"):
        books.apply(forged)
