r"""Encryption of the ledger's head for the aggregator, which stores and returns it but cannot read it.

A head states the number of entries of the ledger. The aggregator knows which of them it caused, so the others
would reveal other events at the site: that a participant withdrew, or that another study is running. The
aggregator only has to store the head and return it, so it receives

.. math:: \text{nonce} \,\|\, \operatorname{AES\text{-}256\text{-}GCM}_k(\text{nonce}, \text{head};\;
   \text{contract}, \text{site})

with a random 96-bit nonce and a key k that only the site's identity can derive. The length is always that of
the head plus 28 bytes. A site with a new key takes part in new contracts only, so no head under its old key
is ever returned to it.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from capedjica.mechanisms.contract import Contract
from capedjica.privacy.ledger import TamperedError
from capedjica.securesum.identity import Identity

_NONCE_BYTES: Final = 12
_LABEL: Final = b"capedjica/head/1\0"


class HeadSeal:
    """Encrypts the heads that a site sends in one study.

    Parameters
    ----------
    identity : Identity
        The site's long-term key.
    contract : Contract
        The study.
    name : str
        The site's name in it.
    """

    __slots__ = ("_binding", "_cipher")

    def __init__(self, identity: Identity, contract: Contract, name: str) -> None:
        self._cipher = AESGCM(identity.derive_key("head"))
        # defence: heads-are-bound-to-study-and-site
        self._binding = _LABEL + contract.hash + name.encode()

    def seal(self, head: bytes) -> bytes:
        """Return an encrypted head; encrypting the same head twice gives unrelated bytes."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, head, self._binding)

    def unseal(self, sealed: bytes) -> bytes:
        """Return the head that this site sealed in this study; refuse any other bytes."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._binding)
        except (InvalidTag, ValueError):
            # defence: heads-of-others
            raise TamperedError("the head that came back was not sealed by this site in this study") from None

    def __repr__(self) -> str:
        return "HeadSeal(<secret>)"
