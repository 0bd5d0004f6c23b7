"""Encryption of messages at rest with AES-256-GCM, each message bound to its own entry."""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"capedjica ledger messages 1"


class Vault:
    """AES-256-GCM under HKDF-SHA256(storage key, salt = name of the ledger).

    The nonce is random: 96 bits make a repetition negligible below 2^32 messages, and unlike a counter a
    random nonce does not repeat when an older copy of the ledger is restored.

    Parameters
    ----------
    storage_key : bytes
        The site's 32-byte secret.
    ledger : bytes
        The random name in the first entry of the ledger.
    """

    __slots__ = ("_cipher",)

    def __init__(self, storage_key: bytes, ledger: bytes) -> None:
        key = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=ledger, info=_PURPOSE).derive(storage_key)
        self._cipher = AESGCM(key)

    def seal(self, message: bytes, binding: bytes) -> bytes:
        """Return the nonce and ciphertext of a message."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, message, binding)

    def unseal(self, sealed: bytes, binding: bytes) -> bytes | None:
        """Return the message, or None if it was sealed under another key or for another entry."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], binding)
        except (InvalidTag, ValueError):
            return None

    def __repr__(self) -> str:
        return "Vault(<secret>)"
