"""Exceptions of the ledger, each with a one-line message for the data manager."""

from __future__ import annotations

from capedjica.errors import CapedjicaError, ProtocolError


class LedgerError(CapedjicaError):
    """The ledger cannot be used as it is; no message was handed out."""

    exit_code = 5


class StorageError(LedgerError):
    """The file could not be read or written: missing, read-only, disk full, locked or corrupt."""


class WrongKeyError(LedgerError):
    """The storage key is not the one of this ledger."""


class TamperedError(LedgerError):
    """An entry was edited, removed, inserted or reordered; the message says which."""


class RestoredError(TamperedError):
    """The ledger is older than its signed head: an older copy was restored."""


class NotApprovedError(ProtocolError):
    """The study was never approved at this site, or its approval was revoked."""


class SlotUsedError(ProtocolError):
    """The mask slot already answered another request; a second answer would reveal the data."""


class SlotBurntError(ProtocolError):
    """The mask slot is used up: its mask may have been used, or is lost."""
