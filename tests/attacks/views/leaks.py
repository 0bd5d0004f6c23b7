"""A search for single people in what left their sites: names, places, and numbers in any form.

Two single-precision numbers that follow each other, one in double precision, or three in decimal text with
six digits or more are nobody else's by chance: to be taken for somebody's, eight random bytes must agree with
one of about 2^21 numbers in 64 bits, and there are about 2^22 places, so a false alarm has odds of 2^-21.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WINDOW = 8  # bytes
DIGITS = 6
_NUMBER = re.compile(rb"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
_TINY, _HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)


@dataclass
class Needles:
    """What must not be found: words and numbers, by whom they give away."""

    words: dict[str, list[bytes]] = field(default_factory=dict)
    binary: dict[str, np.ndarray] = field(default_factory=dict)
    text: dict[str, np.ndarray] = field(default_factory=dict)

    def add_words(self, words: Iterable[str]) -> None:
        """Add names and places, also as some programs would write them."""
        for word in words:
            self.words[word] = [word.encode(), word.encode("utf-16-le"), word.encode("unicode_escape")]

    def add_arrays(self, who: str, arrays: Iterable[np.ndarray]) -> None:
        """Add numbers of one person, in both orders of every array."""
        orders = [flat for array in arrays for flat in (array.ravel(), array.ravel(order="F"))]
        self.binary[who] = np.unique(
            np.concatenate([windows for flat in orders for windows in _binary(flat)])
        )
        self.text[who] = np.unique(np.concatenate([_triples(flat) for flat in orders]))

    def search(self, haystacks: Iterable[tuple[str, bytes]]) -> list[str]:
        """Say who was found where."""
        return [f"{who} in {place}" for place, data in haystacks for who in sorted(self._found(data))]

    def _found(self, data: bytes) -> set[str]:
        windows, triples = _windows(data), _triples(np.array([float(n) for n in _NUMBER.findall(data)]))
        # defence: search-for-names
        here = {who for who, forms in self.words.items() if any(form in data for form in forms)}
        # defence: search-for-numbers
        here |= {who for who, own in self.binary.items() if _overlap(own, windows)}
        return here | {who for who, own in self.text.items() if _overlap(own, triples)}


def _overlap(own: np.ndarray, windows: np.ndarray) -> bool:
    if not own.size or not windows.size:
        return False
    return bool((own[np.searchsorted(own, windows).clip(max=len(own) - 1)] == windows).any())


def _binary(flat: np.ndarray) -> Iterator[np.ndarray]:
    """Every double, and every pair of floats, of either byte order, as eight bytes."""
    telling = _is_telling(flat)
    for kind in ("<f8", ">f8"):
        yield flat[telling].astype(kind).view("<u8")
    pairs = np.stack([flat[:-1], flat[1:]], axis=1)[telling[:-1] & telling[1:]]
    for kind in ("<f4", ">f4"):
        yield np.ascontiguousarray(pairs.astype(kind)).view("<u8").ravel()


def _is_telling(flat: np.ndarray) -> np.ndarray:
    """Zeros, ones and round numbers are everybody's; what no scan could hold is nobody's."""
    mantissa = _of_a_scan(flat).astype(np.float32).view(np.uint32) & 0x7FFFFF
    return mantissa & 0xFFF != 0


def _of_a_scan(flat: np.ndarray) -> np.ndarray:
    """The numbers, with 1 for those that single precision cannot hold: chance makes them of random bytes."""
    size = np.abs(flat)
    return np.where((size >= _TINY) & (size <= _HUGE), flat, 1.0)


def _triples(flat: np.ndarray) -> np.ndarray:
    """Every three numbers that follow each other, to six digits, as one number."""
    known = _of_a_scan(flat).astype(np.float64)
    size = np.floor(np.log10(np.abs(known)))
    digits = np.rint(known / 10.0 ** (size - DIGITS + 1)).astype(np.int64) * 1000 + size.astype(np.int64)
    if len(digits) < 3:
        return np.empty(0, dtype=np.uint64)
    mixed = [part.astype(np.uint64) * factor for part, factor in zip(_shifted(digits), _MIX, strict=True)]
    telling = _is_telling(known)
    return (mixed[0] ^ mixed[1] ^ mixed[2])[np.logical_and.reduce(_shifted(telling))]


def _shifted(values: np.ndarray) -> list[np.ndarray]:
    return [values[:-2], values[1:-1], values[2:]]


def _windows(data: bytes) -> np.ndarray:
    """Every eight bytes that follow each other."""
    padded = np.frombuffer(data, dtype=np.uint8)
    if len(padded) < WINDOW:
        return np.empty(0, dtype=np.uint64)
    views = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    return np.ascontiguousarray(views).view("<u8").ravel()


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a folder, as it is and unpacked."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield from unpacked(str(path.relative_to(folder)), path.read_bytes())


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Some bytes with their name, and what is packed in them."""
    yield name, name.encode() + b"\n" + data
    if data.startswith(b"\x1f\x8b"):
        yield from unpacked(f"{name} unpacked", gzip.decompress(data))
    elif data.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from unpacked(f"{name}/{member}", archive.read(member))
