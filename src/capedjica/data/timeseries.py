"""Read, validate and write tables and arrays of region time series.

A file holds (time, features): a NumPy array (``.npy``), a table (``.csv`` with commas, ``.tsv`` with tabs,
``.1D`` with white space and comment lines that begin with ``#``) or the single matrix of a MATLAB ``.mat``
file up to version 7. A table may begin with a header row: a row in which no cell is a number. Written files
are read back as the same numbers.

At most `LONGEST_SCAN` time points are read: a longer scan is truncated, and takes no more memory than one of
that length. If the number of features is known, a file with a different number is not read. A MATLAB matrix
cannot be read in part, so a longer one is rejected.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import mode
from typing import BinaryIO, Final, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from capedjica.algorithms.ica.scan_length import LONGEST_SCAN
from capedjica.data.scans import Problem
from capedjica.tools.arrays import Scan

Shape = tuple[int, ...]
Row = tuple[int, list[str]]  # line number, cells

# None means any white space.
DELIMITERS: Final[dict[str, str | None]] = {".csv": ",", ".tsv": "\t", ".1d": None}
SUFFIXES: Final = (".npy", ".csv", ".tsv", ".1D", ".mat")
_REAL: Final = "fiu"  # kinds of NumPy's types
_LONGEST_QUOTE: Final = 40
_MATLAB_NUMBERS: Final = {"double", "single"} | {
    f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)
}
_MATLAB_73: Final = b"MATLAB 7.3"
# Limit for a table, including comments and blank lines.
_MOST_LINES: Final = 4 * LONGEST_SCAN
# Characters of a line, of a comment, and of a cell with its delimiter.
_LONGEST_LINE, _REMARK, _CELL = 1 << 24, 1 << 16, 256
_Item = TypeVar("_Item")


def is_table(path: Path) -> bool:
    """Return whether a file has a known table format, judging by its name."""
    return path.suffix.lower() in {suffix.lower() for suffix in SUFFIXES}


def read_scan(path: Path, n_features: int | None = None) -> Scan:
    """Return the numbers of a file as float32 or float64; any exception means that it cannot be read.

    With ``n_features``, reading stops if the file declares a different number of features.
    """
    if _is_array(path):
        return _as_float(_read_array(path, n_features))
    if _is_matlab(path):
        return _read_matlab(path, n_features)
    lines = _table_lines(path, _LONGEST_LINE if n_features is None else _REMARK + _CELL * n_features)
    if all(line == "\n" for line in lines):
        return np.empty((0, 0))
    numbers = np.loadtxt(lines, delimiter=_delimiter(path), comments=None, quotechar='"', ndmin=2)
    return numbers[:LONGEST_SCAN]


def write_scan(path: Path, scan: Scan) -> None:
    """Write a scan of float32 or float64 without loss of precision."""
    if _is_array(path):
        np.save(path, scan, allow_pickle=False)
    else:
        digits = 9 if scan.dtype == np.float32 else 17
        np.savetxt(path, scan, fmt=f"%.{digits}g", delimiter=_delimiter(path) or " ")


def _is_array(path: Path) -> bool:
    return path.suffix.lower() == ".npy"


def _is_matlab(path: Path) -> bool:
    return path.suffix.lower() == ".mat"


def _as_float(array: NDArray[np.generic]) -> Scan:
    if array.dtype.kind not in _REAL:
        raise ValueError("expected real numbers")
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float32 if small else np.float64, order="C")


# NumPy arrays ---------------------------------------------------------------------------------------------


def _read_array(path: Path, n_features: int | None) -> NDArray[np.generic]:
    """Return the array of a file, or its first rows if it is too long."""
    with path.open("rb") as file:
        shape, by_columns, dtype = _array_header(file)
        if n_features is not None and shape[1:] != (n_features,):
            raise ValueError("unexpected number of features")
        if len(shape) != 2 or shape[0] <= LONGEST_SCAN or dtype.hasobject:
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
        if not by_columns:
            return _read_items(file, dtype, LONGEST_SCAN * shape[1]).reshape(LONGEST_SCAN, shape[1])
        first, columns = file.tell(), np.empty((shape[1], LONGEST_SCAN), dtype=dtype)
        for number, column in enumerate(columns):
            file.seek(first + number * shape[0] * dtype.itemsize)
            column[:] = _read_items(file, dtype, LONGEST_SCAN)
        return columns.T


def _read_items(file: BinaryIO, dtype: np.dtype[np.generic], count: int) -> NDArray[np.generic]:
    return np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype, count=count)


# MATLAB ---------------------------------------------------------------------------------------------------


def _read_matlab(path: Path, n_features: int | None) -> Scan:
    from scipy.io import loadmat

    ((name, (n_rows, width)),) = _matrices(path).items()
    if n_rows > LONGEST_SCAN or n_features not in (None, width):
        raise ValueError("too many time points, or an unexpected number of features")
    return _as_float(loadmat(path, appendmat=False, variable_names=[name])[name])


def _matrices(path: Path) -> dict[str, Shape]:
    """Return the shape of each numeric matrix by name; scalars, which MATLAB stores as 1 x 1, are ignored."""
    from scipy.io import whosmat

    found: list[tuple[str, Shape, str]] = whosmat(path, appendmat=False)
    return {
        name: shape
        for name, shape, kind in found
        if kind in _MATLAB_NUMBERS and len(shape) == 2 and min(shape) > 1
    }


def _matlab_problems(path: Path) -> list[Problem]:
    """Return the reasons why a .mat file cannot be read."""
    with path.open("rb") as file:
        if file.read(len(_MATLAB_73)) == _MATLAB_73:
            return [Problem(path, "a MATLAB 7.3 file (HDF5)", "a file saved with the option -v7")]
    try:
        names = _matrices(path)
    except Exception:
        return [Problem(path, "not a MATLAB file", "a complete .mat file of version 7 or earlier")]
    if len(names) == 1:
        ((n_rows, _),) = names.values()
        expected = f"at most {LONGEST_SCAN} in a MATLAB file, which cannot be read in part"
        return [Problem(path, f"{n_rows} time points", expected)] if n_rows > LONGEST_SCAN else []
    found = f"{len(names)} matrices ({quoted(', '.join(names))})" if names else "no numeric matrix"
    return [Problem(path, found, "one matrix, (time, features)")]


# Tables ---------------------------------------------------------------------------------------------------


def _delimiter(path: Path) -> str | None:
    return DELIMITERS[path.suffix.lower()]


def _table_lines(path: Path, longest: int = _LONGEST_LINE) -> list[str]:
    """Return the lines of a table; lines without numbers are blanked, to preserve line numbers."""
    delimiter = _delimiter(path)
    with path.open(encoding="utf-8-sig") as file:
        found = islice(text_lines(file, longest), _MOST_LINES)
        lines = [line if line.strip(" \n") else "\n" for line in found]
    if delimiter is None:
        lines = ["\n" if line.isspace() or line.lstrip().startswith("#") else line for line in lines]
    first = next((number for number, line in enumerate(lines) if line != "\n"), None)
    if first is not None and not any(map(is_number, next(_rows(lines[first:], delimiter))[1])):
        lines[first] = "\n"
    return lines


def text_lines(file: TextIO, longest: int = _LONGEST_LINE) -> Iterator[str]:
    """Yield the lines of a file; raise ValueError at an overlong line before it fills the memory."""
    while line := file.readline(longest):
        if len(line) == longest:
            raise ValueError("line too long")
        yield line


def _rows(lines: Sequence[str], delimiter: str | None) -> Iterator[Row]:
    """Yield the rows that are not blank with their line numbers, starting at 1."""
    if delimiter is None:
        yield from ((number, line.split()) for number, line in enumerate(lines, start=1) if line.split())
        return
    rows = csv.reader(lines, delimiter=delimiter)
    for row in rows:
        if row:
            yield rows.line_num, row


def is_number(cell: str) -> bool:
    """Return whether NumPy parses a cell as a number; Python also accepts 1_000 and non-ASCII digits."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


# Problems of a file ---------------------------------------------------------------------------------------


def scan_problems(path: Path, n_features: int) -> list[Problem]:
    """Return all problems of one file except its length."""
    if not is_table(path):
        expected = f"a table ({', '.join(SUFFIXES)}); images need an atlas or a mask in the study"
        return [Problem(path, "not a table", expected)]
    try:
        found, shape = _content_problems(path)
    except OSError as error:
        return [Problem(path, f"cannot be read ({error.strerror})", "a readable file")]
    return found if shape is None else [*_width_problems(path, shape, n_features), *found]


def _width_problems(path: Path, shape: Shape, n_features: int) -> Iterator[Problem]:
    if len(shape) != 2:
        yield Problem(path, f"an array of shape {shape}", "two dimensions, (time, features)")
    elif 0 in shape:
        yield Problem(path, f"no values (shape {shape})", "a scan")
    elif shape[1] != n_features:
        yield Problem(path, f"{shape[1]} features", f"{n_features} for every scan")


def _content_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Return the problems in the content of a file, and its shape if known."""
    if path.stat().st_size == 0:
        return [Problem(path, "an empty file", "numbers")], None
    try:
        scan = read_scan(path)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror is not None:  # SciPy also raises OSError for content
            raise
        if _is_matlab(path):
            found, shape = _matlab_problems(path), None
        else:
            found, shape = _array_problems(path) if _is_array(path) else _table_problems(path)
        return found or [Problem(path, "content that cannot be read", "numbers")], shape
    return list(value_problems(path, scan)), scan.shape


def _array_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Return the reasons why a .npy file cannot be read."""
    with path.open("rb") as file:
        try:
            shape, _, dtype = _array_header(file)
        except Exception:
            return [Problem(path, "not a NumPy array", "a .npy file with a complete header")], None
        n_bytes = path.stat().st_size - file.tell()
    if dtype.hasobject:
        return [Problem(path, "pickled Python objects, which are never opened", "numbers")], shape
    found = []
    if dtype.kind not in _REAL:
        found.append(Problem(path, f"values of type {dtype}", "real numbers"))
    promised = dtype.itemsize * math.prod(shape)
    if n_bytes < promised:
        found.append(
            Problem(path, f"truncated after {n_bytes} bytes", f"the {promised} bytes of shape {shape}")
        )
    return found, shape


def _array_header(file: BinaryIO) -> tuple[Shape, bool, np.dtype[np.generic]]:
    major, _ = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    return read(file)


def _table_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Return the reasons why a table cannot be read: cells that are not numbers, lines of unequal length."""
    try:
        rows = list(_rows(_table_lines(path), _delimiter(path)))
    except (UnicodeDecodeError, csv.Error):
        return [Problem(path, "not UTF-8 text", "a table of numbers")], None
    width = mode(len(row) for _, row in rows)
    return [*_text_problems(path, rows), *_length_problems(path, rows, width)], (len(rows), width)


def _text_problems(path: Path, rows: list[Row]) -> Iterator[Problem]:
    cells = ((line, column, cell) for line, row in rows for column, cell in enumerate(row, start=1))
    text = (place for place in cells if not is_number(place[2]))
    for (line, column, cell), count in _first_and_count(text):
        found = f"cells that are not numbers ({count}), the first in line {line}, column {column}"
        yield Problem(path, f"{found}: {quoted(cell)}", "numbers")


def _length_problems(path: Path, rows: list[Row], width: int) -> Iterator[Problem]:
    odd = ((line, len(row)) for line, row in rows if len(row) != width)
    for (line, length), count in _first_and_count(odd):
        found = f"lines of a different length ({count}), the first is line {line} with {length} cells"
        yield Problem(path, found, f"{width} cells, as in most lines")


def _first_and_count(items: Iterator[_Item]) -> Iterator[tuple[_Item, int]]:
    """Yield the first item and the total count, or nothing if there are no items."""
    for first in items:
        yield first, 1 + sum(1 for _ in items)


def value_problems(path: Path, scan: Scan) -> Iterator[Problem]:
    """Yield problems with values that are not finite and with features that are constant."""
    if scan.ndim != 2 or not scan.size:
        return
    bad = ~np.isfinite(scan)
    if bad.any():
        time, feature = np.unravel_index(bad.argmax(), bad.shape)
        where = f"time point {time + 1} of {len(scan)}, feature {feature + 1} of {scan.shape[1]}"
        found = f"values that are NaN or infinite ({np.count_nonzero(bad)}), the first at {where}"
        yield Problem(path, found, "finite numbers")
    constant = np.flatnonzero(scan.min(axis=0) == scan.max(axis=0)) if len(scan) > 1 else np.empty(0)
    if constant.size == scan.shape[1]:
        yield Problem(path, "constant values in every feature", "signal")
    elif constant.size:
        where = f"feature {constant[0] + 1} of {scan.shape[1]}"
        found = f"constant features ({constant.size}), the first is {where}"
        expected = "signal in every feature; the subject is included nevertheless"
        yield Problem(path, found, expected, fatal=False)


def quoted(cell: str) -> str:
    """Return the beginning of a cell in quotation marks."""
    return repr(cell if len(cell) <= _LONGEST_QUOTE else cell[:_LONGEST_QUOTE] + "...")
