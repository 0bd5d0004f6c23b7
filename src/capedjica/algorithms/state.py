"""Serialization of public state: named arrays of numbers, parsed strictly."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from capedjica.errors import ProtocolError
from capedjica.tools.arrays import FloatArray


class _Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    shape: tuple[int, ...]
    values: bytes


_decoder = msgspec.msgpack.Decoder(dict[str, _Array])


def pack(**arrays: ArrayLike) -> bytes:
    """Serialize arrays of numbers in double precision."""
    plain = {name: np.asarray(array, dtype="<f8") for name, array in arrays.items()}
    return msgspec.msgpack.encode(
        {name: _Array(array.shape, array.tobytes()) for name, array in plain.items()}
    )


def unpack(data: bytes) -> dict[str, FloatArray]:
    """Parse arrays from untrusted bytes; anything but the output of :func:`pack` is a ProtocolError."""
    try:
        arrays = {
            name: np.frombuffer(array.values, dtype="<f8").reshape(array.shape)
            for name, array in _decoder.decode(data).items()
        }
        # The encoding is canonical, so that equal states have equal hashes.
        if pack(**arrays) != data:
            raise ValueError("not the canonical encoding")
    except (ValueError, RecursionError):
        raise ProtocolError(f"a public state of {len(data)} bytes is malformed") from None
    return arrays


def read_arrays(data: bytes, **shapes: tuple[int, ...]) -> dict[str, FloatArray]:
    """Return the arrays of a public state, which must have exactly the given names and shapes."""
    arrays = unpack(data)
    if {name: array.shape for name, array in arrays.items()} != shapes:
        wanted = ", ".join(f"'{name}' of shape {shape}" for name, shape in shapes.items())
        raise ProtocolError(f"the public state must contain {wanted} and nothing else")
    return arrays
