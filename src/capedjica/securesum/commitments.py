"""Hashes and commitments: sets that parties must agree on, and secrets to be verified later."""

from __future__ import annotations

import hashlib

from capedjica.securesum.masks import derive_key
from capedjica.securesum.parameters import SumParameters, framed


def survivors_hash(parameters: SumParameters, survivors: tuple[str, ...]) -> bytes:
    """Return the hash by which sites agree on the survivors, given in roster order."""
    names = (name.encode() for name in survivors)
    return hashlib.sha256(framed(b"survivors", parameters.context, *names)).digest()


def seed_commitment(seed: bytes | bytearray, parameters: SumParameters, name: str) -> bytes:
    """Return a commitment to the seed b_u of site ``name``, from which the seed cannot be recovered.

    HKDF makes it independent of the mask key derived from the same seed.
    """
    return derive_key(seed, "seed commitment", parameters, name)


def share_commitment(
    parameters: SumParameters, kind: str, dealer: str, holder: str, share: bytes | bytearray
) -> bytes:
    """Return a hash that binds a share to its kind ("seed" or "key"), its dealer and its holder.

    To a party that cannot recover the secret, a share is uniform on 2^256 values, so its hash reveals
    nothing.
    """
    parts = (kind.encode(), parameters.context, dealer.encode(), holder.encode(), bytes(share))
    return hashlib.sha256(framed(b"share", *parts)).digest()
