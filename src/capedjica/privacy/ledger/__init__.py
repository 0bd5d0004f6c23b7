"""The ledger of a site: every release is recorded and charged once, before it leaves and within the cap.

``ledger`` is the interface that a site uses. It is built on ``chain`` (keeps file, entries and head
consistent), ``books`` (state derived from the entries, and decisions), ``log`` (the SQLite file), ``entry``
(one row of the hash chain), ``vault`` (encryption of messages at rest), ``keys`` (key changes), ``head`` (the
signed head), ``policy`` (comparison with the caps), ``account`` (summaries and export) and ``checks`` (input
validation).
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
