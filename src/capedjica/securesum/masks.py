"""Masks that cancel in the sum: keys agreed by X25519, expanded with AES-CTR, added to a vector in place.

Site u sends

    y_u = x_u + PRG(b_u) + sum_{v after u} PRG(s_uv) - sum_{v before u} PRG(s_uv)  mod 2^64,

where b_u is its own secret seed and s_uv the key that u and v agree on (Bonawitz et al. 2017, section 4).
"After" and "before" refer to roster order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from capedjica.errors import ProtocolError
from capedjica.securesum.parameters import SumParameters, framed
from capedjica.securesum.stream import KEY_BYTES, Keystream

# Number of words processed at a time, so that a chunk of the vector and of one mask stay in the cache.
_CHUNK: Final = 1 << 14


def derive_key(secret: bytes | bytearray, purpose: str, parameters: SumParameters, *names: str) -> bytes:
    """Return 32 bytes derived by HKDF-SHA256, bound to the purpose, the sum and the sites in ``names``."""
    info = framed(purpose.encode(), parameters.context, *(name.encode() for name in names))
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(bytes(secret))


def agree(private: X25519PrivateKey, public_key: bytes, peer: str) -> bytes:
    """Return the X25519 secret shared with ``peer``; refuse a key that would make it a constant."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        raise ProtocolError(
            f"site {peer} advertised a public key that no secret can be agreed with"
        ) from None


def self_mask(seed: bytes | bytearray, parameters: SumParameters, name: str) -> Keystream:
    """Return PRG(b_u), the mask that only site ``name`` can derive until its seed is recovered."""
    return Keystream(derive_key(seed, "self mask", parameters, name))


def pairwise_mask(shared: bytes, parameters: SumParameters, name: str, peer: str) -> Keystream:
    """Return PRG(s_uv), which is the same for both sites, in either order."""
    # Not Roster.in_order, which looks at all sites: a site does this for each of its peers.
    both = sorted((name, peer), key=parameters.roster.points.__getitem__)
    return Keystream(derive_key(shared, "pairwise mask", parameters, *both))


def apply_masks(
    words: NDArray[np.uint64], added: Iterable[Keystream] = (), subtracted: Iterable[Keystream] = ()
) -> None:
    """Add and subtract fresh key streams modulo 2^64, in place and in one pass over ``words``."""
    plus, minus = tuple(added), tuple(subtracted)
    mask = np.empty(min(_CHUNK, words.size), dtype=np.uint64)
    for start in range(0, words.size, _CHUNK):
        piece = words[start : start + _CHUNK]
        _accumulate(np.add, piece, plus, mask[: piece.size])
        _accumulate(np.subtract, piece, minus, mask[: piece.size])
    mask.fill(0)


def _accumulate(
    operation: np.ufunc, piece: NDArray[np.uint64], streams: Sequence[Keystream], mask: NDArray[np.uint64]
) -> None:
    for stream in streams:
        stream.fill(mask)
        operation(piece, mask, out=piece)
