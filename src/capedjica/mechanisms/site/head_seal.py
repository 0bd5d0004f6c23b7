r"""The ledger's head on its way out and back: nobody but the site can read it.

A head says how many entries the ledger has. The aggregator knows which of them it caused, so the rest would
tell it of everything else at the site: that somebody withdrew, that another study runs. It only has to keep
the head and hand it back, so it gets

.. math:: \text{nonce} \,\|\, \operatorname{AES\text{-}256\text{-}GCM}_k(\text{nonce}, \text{head};\;
   \text{contract}, \text{site})

with a random nonce of 96 bits and a key k that only the site's identity can make. The length is that of the
head and 28 bytes, always. A site that has a new key is in new contracts only, so no head under its old key
can come back to it.
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
    """What seals the heads that a site sends in one study.

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
        """Return a head as it may leave; twice the same head looks like two others."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, head, self._binding)

    def unseal(self, sealed: bytes) -> bytes:
        """Return the head that this site sealed in this study; refuse everything else."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._binding)
        except (InvalidTag, ValueError):
            # defence: heads-of-others
            raise TamperedError("the head that came back was not sealed by this site in this study") from None

    def __repr__(self) -> str:
        return "HeadSeal(<secret>)"
