"""What can go wrong with a ledger, each in one line that a data manager can act on."""

from __future__ import annotations

from capedjica.errors import CapedjicaError, ProtocolError


class LedgerError(CapedjicaError):
    """The ledger cannot be used as it is; no message was handed out."""

    exit_code = 5


class StorageError(LedgerError):
    """The file could not be read or written: missing, read-only, full, locked or broken."""


class WrongKeyError(LedgerError):
    """The storage key is not the one this ledger was made with."""


class TamperedError(LedgerError):
    """An entry was edited, removed, inserted or reordered; the text says which."""


class RestoredError(TamperedError):
    """The ledger is older than its signed head: an older copy was put in its place."""


class NotApprovedError(ProtocolError):
    """The study was never approved at this site, or its approval was revoked."""


class SlotUsedError(ProtocolError):
    """The mask slot already answered another request; a second answer would uncover the data."""


class SlotBurntError(ProtocolError):
    """The mask slot can no longer be used: its mask may have been touched, or is gone."""
