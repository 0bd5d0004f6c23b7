"""Tables and arrays of region time series: read whole, written so that the same numbers are read again.

A file holds (time, features): an array of NumPy (``.npy``), a table (``.csv`` with commas, ``.tsv`` with
tabs, ``.1D`` with white space and lines of remarks that begin with ``#``) or the one matrix of a ``.mat``
file of MATLAB up to version 7. A table may begin with a row of names: a row of which no cell is a number.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import BinaryIO, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from capedjica.data.scans import Problem, Scan
from capedjica.errors import InputError
from capedjica.privacy import validate

Shape = tuple[int, ...]
Row = tuple[int, list[str]]  # number of the line, cells

# None stands for any white space.
DELIMITERS: Final[dict[str, str | None]] = {".csv": ",", ".tsv": "\t", ".1d": None}
SUFFIXES: Final = (".npy", ".csv", ".tsv", ".1D", ".mat")
_REAL: Final = "fiu"  # kinds of NumPy's types
_LONGEST_QUOTE: Final = 40
_MATLAB_NUMBERS: Final = {"double", "single"} | {
    f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)
}
_MATLAB_73: Final = b"MATLAB 7.3"
_Item = TypeVar("_Item")


class SubjectFiles(Sequence[Scan]):
    """The subjects of a folder, in the order of their names; each is read anew whenever it is asked for.

    Parameters
    ----------
    paths : iterable of Path
        One file per subject.
    n_features : int, optional
        A file with another number of columns cannot be used; where it is not given, any number will do.
    """

    def __init__(self, paths: Iterable[Path], n_features: int | None = None) -> None:
        self.paths = tuple(paths)
        self.n_features = n_features
        self._unreadable: set[Path] = set()

    @classmethod
    def find(
        cls, folder: str | os.PathLike[str], pattern: str = "*", n_features: int | None = None
    ) -> SubjectFiles:
        """Return the files of known kinds among those that match; hidden ones are left out."""
        home = Path(folder)
        if not home.is_dir():
            raise InputError(f"{home} must be the folder of the scans; it is not a folder")
        if not os.access(home, os.R_OK | os.X_OK):
            raise InputError(f"{home} cannot be read: permission denied")
        try:
            matching = list(home.glob(pattern))
        except (ValueError, NotImplementedError):
            raise InputError(f"pattern must be that of file names in {home}, got {pattern!r}") from None
        paths = [path for path in matching if is_table(path) and not _is_hidden(path, home)]
        if not paths:
            raise InputError(f"{home} holds no {', '.join(SUFFIXES)} file that matches {pattern!r}")
        return cls(sorted(paths, key=lambda path: (path.name, path)), n_features)

    @property
    def names(self) -> list[str]:
        """The subjects' names: those of the files, without the ending."""
        return [path.stem for path in self.paths]

    @property
    def n_unreadable(self) -> int:
        """How many subjects could not be used when they were asked for; never leaves the site."""
        return len(self._unreadable)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Scan: ...

    @overload
    def __getitem__(self, index: slice) -> SubjectFiles: ...

    def __getitem__(self, index: int | slice) -> Scan | SubjectFiles:
        if isinstance(index, slice):
            return SubjectFiles(self.paths[index], self.n_features)
        path = self.paths[index]
        try:
            scan = read_scan(path)
        except Exception:
            # Why it failed may depend on data, and whoever asks may send on what an exception says.
            scan = np.empty(0)
        if scan.ndim != 2 or self.n_features not in (None, scan.shape[1]):
            self._unreadable.add(path)
            return np.empty((0, self.n_features or 0), dtype=np.float32)
        return scan

    def __repr__(self) -> str:
        return f"SubjectFiles({len(self)} files, n_features={self.n_features})"

    def check(
        self,
        n_features: int,
        n_components: int,
        scan_length: int | None = None,
        progress: Callable[[], None] | None = None,
    ) -> list[Problem]:
        """Read every file once and return everything that is wrong, in the order of the files.

        Parameters
        ----------
        n_features : int
            Columns that every scan must have.
        n_components : int
            Time points that it must have at least.
        scan_length : int, optional
            Time points that it may have at most.
        progress : callable, optional
            Called after each file.
        """
        demands = _Demands(
            validate.count("n_features", n_features),
            validate.count("n_components", n_components),
            None if scan_length is None else validate.count("scan_length", scan_length),
        )
        problems = list(_shared_names(self.paths))
        for path in self.paths:
            problems += _problems(path, demands)
            if progress is not None:
                progress()
        return problems


def _is_hidden(path: Path, home: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(home).parts)


def is_table(path: Path) -> bool:
    """Tell whether a file is of a known kind, by its name."""
    return path.suffix.lower() in {suffix.lower() for suffix in SUFFIXES}


def read_scan(path: Path) -> Scan:
    """Return the numbers of a file as float32 or float64; raise whatever comes when there are none."""
    if _is_array(path):
        with path.open("rb") as file:
            return _as_float(np.lib.format.read_array(file, allow_pickle=False))
    if _is_matlab(path):
        return _read_matlab(path)
    lines = _table_lines(path)
    if _is_blank(lines):
        return np.empty((0, 0))
    return np.loadtxt(lines, delimiter=_delimiter(path), comments=None, quotechar='"', ndmin=2)


def write_scan(path: Path, scan: Scan) -> None:
    """Write a scan of float32 or float64 so that the same numbers are read again."""
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
        raise ValueError("not real numbers")
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float32 if small else np.float64, order="C")


# MATLAB ---------------------------------------------------------------------------------------------------


def _read_matlab(path: Path) -> Scan:
    from scipy.io import loadmat

    (name,) = _matrices(path)
    return _as_float(loadmat(path, appendmat=False, variable_names=[name])[name])


def _matrices(path: Path) -> list[str]:
    """Return the names of the numeric matrices; a number alone is a matrix to MATLAB, and none to us."""
    from scipy.io import whosmat

    found: list[tuple[str, Shape, str]] = whosmat(path, appendmat=False)
    return [
        name for name, shape, kind in found if kind in _MATLAB_NUMBERS and len(shape) == 2 and min(shape) > 1
    ]


def _matlab_problems(path: Path) -> list[Problem]:
    """Say why a .mat file cannot be read."""
    with path.open("rb") as file:
        if file.read(len(_MATLAB_73)) == _MATLAB_73:
            return [Problem(path, "a file of MATLAB 7.3 (HDF5)", "one that was saved with the option -v7")]
    try:
        names = _matrices(path)
    except Exception:
        return [Problem(path, "not a file of MATLAB", "a .mat file, whole and of version 7 or before")]
    if len(names) == 1:
        return []
    found = f"{len(names)} matrices ({_quoted(', '.join(names))})" if names else "no matrix of numbers"
    return [Problem(path, found, "one matrix, (time, features)")]


# Tables ---------------------------------------------------------------------------------------------------


def _delimiter(path: Path) -> str | None:
    return DELIMITERS[path.suffix.lower()]


def _table_lines(path: Path) -> list[str]:
    """Return the lines of a table, those without numbers blanked out so that the others keep their places."""
    delimiter = _delimiter(path)
    with path.open(encoding="utf-8-sig") as file:
        lines = [line if line.strip(" \n") else "\n" for line in file]
    if delimiter is None:
        lines = ["\n" if line.lstrip().startswith("#") else line for line in lines]
    first = next((number for number, line in enumerate(lines) if line != "\n"), None)
    if first is not None and not any(map(_is_number, next(_rows(lines[first:], delimiter))[1])):
        lines[first] = "\n"
    return lines


def _is_blank(lines: Sequence[str]) -> bool:
    return all(line == "\n" for line in lines)


def _rows(lines: Sequence[str], delimiter: str | None) -> Iterator[Row]:
    """Yield the rows that are not blank, with the numbers of their lines, the first being 1."""
    if delimiter is None:
        yield from ((number, line.split()) for number, line in enumerate(lines, start=1) if line.split())
        return
    rows = csv.reader(lines, delimiter=delimiter)
    for row in rows:
        if row:
            yield rows.line_num, row


def _is_number(cell: str) -> bool:
    """Tell whether NumPy takes a cell for a number; Python also takes 1_000 and digits of other scripts."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


# What is wrong with a file --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Demands:
    """What a study asks of the shape of a scan."""

    n_features: int
    n_components: int
    scan_length: int | None


def _shared_names(paths: Sequence[Path]) -> Iterator[Problem]:
    first: dict[str, Path] = {}
    for path in paths:
        other = first.setdefault(path.stem, path)
        if other != path:
            yield Problem(path, f"the same subject as {other}", "one file per subject")


def scan_problems(path: Path, n_features: int) -> list[Problem]:
    """Return everything that is wrong with one file besides its length."""
    try:
        found, shape = _content_problems(path)
    except OSError as error:
        return [Problem(path, f"cannot be read ({error.strerror})", "a file that can be read")]
    return found if shape is None else [*_width_problems(path, shape, n_features), *found]


def _width_problems(path: Path, shape: Shape, n_features: int) -> Iterator[Problem]:
    if len(shape) != 2:
        yield Problem(path, f"an array of shape {shape}", "two dimensions, (time, features)")
    elif 0 in shape:
        yield Problem(path, f"no values (shape {shape})", "a scan")
    elif shape[1] != n_features:
        yield Problem(path, f"{shape[1]} features", f"{n_features}, as the study says")


def _problems(path: Path, demands: _Demands) -> list[Problem]:
    """Return everything that is wrong with one file."""
    try:
        found, shape = _content_problems(path)
    except OSError as error:
        return [Problem(path, f"cannot be read ({error.strerror})", "a file that can be read")]
    return found if shape is None else [*_shape_problems(path, shape, demands), *found]


def _content_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Return what is wrong with the content of a file, and its shape where that is known."""
    if path.stat().st_size == 0:
        return [Problem(path, "an empty file", "numbers")], None
    try:
        scan = read_scan(path)
    except OSError:
        raise
    except Exception:
        found, shape = _unreadable_problems(path)
        return found or [Problem(path, "content that cannot be read", "numbers")], shape
    return list(value_problems(path, scan)), scan.shape


def _unreadable_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    if _is_matlab(path):
        return _matlab_problems(path), None
    return _array_problems(path) if _is_array(path) else _table_problems(path)


def _array_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Say why a .npy file cannot be read."""
    with path.open("rb") as file:
        try:
            shape, dtype = _array_header(file)
        except Exception:
            return [Problem(path, "not an array of NumPy", "a .npy file with its whole header")], None
        n_bytes = path.stat().st_size - file.tell()
    if dtype.hasobject:
        return [Problem(path, "pickled Python objects, which are never opened", "numbers")], shape
    found = []
    if dtype.kind not in _REAL:
        found.append(Problem(path, f"values of type {dtype}", "real numbers"))
    promised = dtype.itemsize * math.prod(shape)
    if n_bytes < promised:
        found.append(
            Problem(path, f"cut off after {n_bytes} bytes", f"the {promised} bytes of shape {shape}")
        )
    return found, shape


def _array_header(file: BinaryIO) -> tuple[Shape, np.dtype[np.generic]]:
    major, _ = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _table_problems(path: Path) -> tuple[list[Problem], Shape | None]:
    """Say why a table cannot be read: its cells that are no numbers, its lines of another length."""
    try:
        rows = list(_rows(_table_lines(path), _delimiter(path)))
    except (UnicodeDecodeError, csv.Error):
        return [Problem(path, "not text in UTF-8", "a table of numbers")], None
    width = mode(len(row) for _, row in rows)
    return [*_text_problems(path, rows), *_length_problems(path, rows, width)], (len(rows), width)


def _text_problems(path: Path, rows: list[Row]) -> Iterator[Problem]:
    cells = ((line, column, cell) for line, row in rows for column, cell in enumerate(row, start=1))
    text = (place for place in cells if not _is_number(place[2]))
    for (line, column, cell), count in _first_and_count(text):
        found = f"cells that are no numbers ({count}), the first in line {line}, column {column}"
        yield Problem(path, f"{found}: {_quoted(cell)}", "numbers")


def _length_problems(path: Path, rows: list[Row], width: int) -> Iterator[Problem]:
    odd = ((line, len(row)) for line, row in rows if len(row) != width)
    for (line, length), count in _first_and_count(odd):
        found = f"lines of another length ({count}), the first is line {line} with {length} cells"
        yield Problem(path, found, f"{width} cells as in most lines")


def _first_and_count(items: Iterator[_Item]) -> Iterator[tuple[_Item, int]]:
    """Yield the first of the items with the number of all, or nothing where there are none."""
    for first in items:
        yield first, 1 + sum(1 for _ in items)


def _shape_problems(path: Path, shape: Shape, demands: _Demands) -> Iterator[Problem]:
    """Say what a study cannot use about the shape of a scan."""
    if len(shape) != 2:
        yield Problem(path, f"an array of shape {shape}", "two dimensions, (time, features)")
    elif 0 in shape:
        yield Problem(path, f"no values (shape {shape})", "a scan")
    else:
        n_timepoints, n_features = shape
        if n_features != demands.n_features:
            yield Problem(path, f"{n_features} features", f"{demands.n_features}, as the study says")
        if n_timepoints < demands.n_components:
            yield Problem(
                path, f"{n_timepoints} time points", f"at least the {demands.n_components} of the components"
            )
        if demands.scan_length is not None and n_timepoints > demands.scan_length:
            yield Problem(
                path, f"{n_timepoints} time points", f"at most the study's scan length, {demands.scan_length}"
            )


def value_problems(path: Path, scan: Scan) -> Iterator[Problem]:
    """Say which values are not finite, and which features never change."""
    if scan.ndim != 2 or not scan.size:
        return
    bad = ~np.isfinite(scan)
    if bad.any():
        time, feature = np.unravel_index(bad.argmax(), bad.shape)
        where = f"time point {time + 1} of {len(scan)}, feature {feature + 1} of {scan.shape[1]}"
        found = f"values that are NaN or infinite ({np.count_nonzero(bad)}), the first at {where}"
        yield Problem(path, found, "finite numbers")
    constant = np.flatnonzero(scan.min(axis=0) == scan.max(axis=0)) if len(scan) > 1 else np.empty(0)
    if constant.size:
        where = f"feature {constant[0] + 1} of {scan.shape[1]}"
        found = f"features that never change ({constant.size}), the first is {where}"
        yield Problem(
            path, found, "signal in every feature; the subject takes part all the same", fatal=False
        )


def _quoted(cell: str) -> str:
    return repr(cell if len(cell) <= _LONGEST_QUOTE else cell[:_LONGEST_QUOTE] + "...")
