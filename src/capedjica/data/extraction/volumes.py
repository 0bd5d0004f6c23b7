"""The stored volumes of an image, a few at a time, as numbers that the kernels of this folder take.

An image of 150 volumes of 61 x 73 x 61 voxels has 81 MB in 16-bit integers and 652 MB in double precision.
They are therefore never converted as a whole: integers of 16 bits reach the kernels as they are stored, and
their scale factor is applied to what remains of them. Files are read in order, in pieces of `_PIECE` bytes,
and never mapped into memory: a mapped file that shrinks while it is read ends the process. Compressed files
are decompressed by ISA-L.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from capedjica.data.extraction.kernels import set_unrecorded_to_zero

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

    from capedjica.tools.arrays import FloatArray

_PIECE: Final = 1 << 22
# Integers that single precision represents exactly; all others are converted to double precision.
_SHORT_INTEGERS: Final = ("int8", "uint8", "uint16")
# Compiled kernels exist for these.
_KERNEL_TYPES: Final = ("int16", "float32", "float64")
# Compressed in other ways than by gzip.
_OTHER_COMPRESSION: Final = (".bz2", ".zst")
# The stub of isal declares its error as an instance.
_DAMAGED: Final[Any] = (OSError, EOFError, zlib.error, isal_zlib.error, ValueError)


class NotStreamedError(Exception):
    """Raised when an image cannot be read in one pass; nilearn then reads it, or fails for a reason."""


@dataclass(frozen=True, eq=False)
class StoredVolumes:
    """Volumes in the order of the file, each flat with the first axis varying fastest.

    Attributes
    ----------
    shape : tuple of int
        The three sides of a volume.
    n_volumes : int
        Number of volumes that are read.
    slope, intercept : float
        A value is ``slope`` times what a piece contains, plus ``intercept``.
    """

    shape: tuple[int, int, int]
    n_volumes: int
    slope: float
    intercept: float
    _pieces: Callable[[], Iterator[NDArray[Any]]]

    @property
    def n_voxels(self) -> int:
        """Number of voxels of a volume."""
        return int(np.prod(self.shape))

    def pieces(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield consecutive volumes (n, voxels) and their place in time, each valid until the next.

        A voxel that is NaN or infinite in every volume is set to zero, because it was never recorded. One
        that is so in some volumes only raises NotStreamedError.
        """
        missing = np.zeros(self.n_voxels, dtype=np.bool_)
        first = 0
        for piece in self._pieces():
            if piece.dtype.kind == "f":
                if first == 0:
                    missing = ~np.isfinite(piece[0])
                if missing.all() or not set_unrecorded_to_zero(piece, missing, bool(missing.any())):
                    raise NotStreamedError
            yield slice(first, first + len(piece)), piece
            first += len(piece)


def stored_volumes(image: Nifti1Image, longest: int) -> StoredVolumes:
    """Return the first ``longest`` volumes of a 4-D image, in a file or in memory."""
    from nibabel.arrayproxy import ArrayProxy

    stored = image.dataobj
    sides, n_volumes = (*image.shape[:3],), min(image.shape[3], longest)
    if isinstance(stored, np.ndarray):
        return _volumes(sides, n_volumes, stored.dtype, 1.0, 0.0, lambda: _of_array(stored, n_volumes))
    path = getattr(stored, "file_like", None)
    if type(stored) is not ArrayProxy or stored.order != "F" or not isinstance(path, str):
        raise NotStreamedError
    if Path(path).suffix.lower() in _OTHER_COMPRESSION:
        raise NotStreamedError
    dtype, offset = stored.dtype, int(stored.offset)
    scale = float(stored.slope), float(stored.inter)
    return _volumes(sides, n_volumes, dtype, *scale, lambda: _of_file(path, offset, dtype, sides, n_volumes))


def _volumes(
    sides: tuple[int, ...],
    n_volumes: int,
    dtype: np.dtype[Any],
    slope: float,
    intercept: float,
    raw: Callable[[], Iterator[NDArray[Any]]],
) -> StoredVolumes:
    """Return volumes whose numbers suit the kernels; scaled floats are scaled here, as they may overflow."""
    if dtype.itemsize > 8 or dtype.kind not in "fiu":
        raise NotStreamedError
    if not np.isfinite([slope, intercept, 2.0**64 * slope]).all():
        raise NotStreamedError
    scaled = dtype.kind == "f" and (slope, intercept) != (1.0, 0.0)

    def pieces() -> Iterator[NDArray[Any]]:
        for piece in raw():
            yield _scaled(piece, slope, intercept) if scaled else _as_kernel_type(piece)

    shape = (sides[0], sides[1], sides[2])
    return StoredVolumes(shape, n_volumes, *((1.0, 0.0) if scaled else (slope, intercept)), _pieces=pieces)


def _scaled(piece: NDArray[Any], slope: float, intercept: float) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return piece.astype(np.float64) * slope + intercept


def _as_kernel_type(piece: NDArray[Any]) -> NDArray[Any]:
    if not piece.dtype.isnative:
        piece = piece.byteswap(inplace=True).view(piece.dtype.newbyteorder("="))
    if piece.dtype.name in _KERNEL_TYPES:
        return piece
    return piece.astype(np.float32 if piece.dtype.name in _SHORT_INTEGERS else np.float64)


def _per_piece(n_voxels: int, itemsize: int) -> int:
    return max(1, _PIECE // (n_voxels * itemsize))


def _of_array(values: NDArray[Any], n_volumes: int) -> Iterator[NDArray[Any]]:
    """Yield copies of the volumes of an array, because pieces are changed in place."""
    n_voxels = int(np.prod(values.shape[:3]))
    step = _per_piece(n_voxels, values.dtype.itemsize)
    for first in range(0, n_volumes, step):
        volumes = np.array(values[..., first : min(first + step, n_volumes)], order="F")
        yield volumes.reshape((n_voxels, -1), order="F").T


def _of_file(
    path: str, offset: int, dtype: np.dtype[Any], sides: tuple[int, ...], n_volumes: int
) -> Iterator[NDArray[Any]]:
    """Yield the volumes of a file, all in the same memory; any damage raises NotStreamedError."""
    n_voxels = int(np.prod(sides))
    memory = np.empty((min(_per_piece(n_voxels, dtype.itemsize), n_volumes), n_voxels), dtype=dtype)
    try:
        with _open(path) as file:
            _skip(file, offset)
            for first in range(0, n_volumes, len(memory)):
                piece = memory[: n_volumes - first]
                _fill(file, piece.view(np.uint8).data.cast("B"))
                yield piece
    except _DAMAGED:
        raise NotStreamedError from None


def _open(path: str) -> Any:
    if path.lower().endswith(".gz"):
        return igzip.IGzipFile(path, "rb")  # type: ignore[no-untyped-call]
    return open(path, "rb", buffering=0)


def _skip(file: RawIOBase | BufferedIOBase, n_bytes: int) -> None:
    _fill(file, memoryview(bytearray(n_bytes)))


def _fill(file: RawIOBase | BufferedIOBase, memory: memoryview) -> None:
    while len(memory):
        n_read = file.readinto(memory)
        if not n_read:
            raise EOFError
        memory = memory[n_read:]
