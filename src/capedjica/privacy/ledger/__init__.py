"""The site's ledger: every release recorded and charged before it leaves, once, and never beyond the cap.

``ledger`` is what a site uses. Beneath it ``chain`` keeps file, entries and head in step, ``books`` decides,
``log`` stores, ``entry`` links, ``vault`` seals, ``keys`` follow one another, ``head`` signs, ``policy``
compares with the caps, ``account`` tells people and ``checks`` turns bad input away.
"""

from capedjica.privacy.ledger.account import Sent, Spent, Summary, Totals
from capedjica.privacy.ledger.books import Slot
from capedjica.privacy.ledger.entry import Entry
from capedjica.privacy.ledger.errors import (
    LedgerError,
    NotApprovedError,
    RestoredError,
    SlotBurntError,
    SlotUsedError,
    StorageError,
    TamperedError,
    WrongKeyError,
)
from capedjica.privacy.ledger.head import HEAD_BYTES
from capedjica.privacy.ledger.ledger import Ledger
from capedjica.privacy.ledger.policy import Policy

__all__ = [
    "HEAD_BYTES",
    "Entry",
    "Ledger",
    "LedgerError",
    "NotApprovedError",
    "Policy",
    "RestoredError",
    "Sent",
    "Slot",
    "SlotBurntError",
    "SlotUsedError",
    "Spent",
    "StorageError",
    "Summary",
    "TamperedError",
    "Totals",
    "WrongKeyError",
]
