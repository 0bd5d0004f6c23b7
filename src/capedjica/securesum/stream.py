"""A cryptographic stream of 64-bit words: AES-256 in counter mode under one key."""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES: Final = 32
# Words per call of the cipher: large enough to amortise the call, small enough to stay in the cache.
_CHUNK: Final = 1 << 15
_ZEROS: Final = bytes(8 * _CHUNK)


class Keystream:
    """Successive words of the AES-256-CTR key stream, as little-endian unsigned 64-bit integers.

    The same key always gives the same words, regardless of the request sizes, so two sites that share a key
    derive the same mask. A key must be used for one stream only.

    Parameters
    ----------
    key : bytes
        32 secret bytes.
    """

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a stream key must have {KEY_BYTES} bytes, got {len(key)}")
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: NDArray[np.uint64]) -> None:
        """Overwrite a contiguous array with the next ``out.size`` words."""
        words = out.reshape(-1).view("<u8")
        buffer = words.data.cast("B")
        for start in range(0, 8 * words.size, 8 * _CHUNK):
            piece = buffer[start : start + 8 * _CHUNK]
            self._encryptor.update_into(memoryview(_ZEROS)[: len(piece)], piece)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` words."""
        out = np.empty(count, dtype=np.uint64)
        self.fill(out)
        return out

    def __repr__(self) -> str:
        return "Keystream(<secret>)"
