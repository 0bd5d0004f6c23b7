r"""Design of a group comparison: public columns, and the encoding of values as numbers in [-1, 1].

A number x in a public range [l, h] is clipped to it and becomes :math:`(x - c) / \max(h - c, c - l)`, with a
public centre c, by default the middle of the range. A category with L public levels becomes L - 1 numbers, 1
for the level and -1 for all others; the first level, the reference, has no number. Two levels are thus -1 and
1. A missing value or an undeclared level becomes NaN, and a subject with any NaN contributes nothing to any
release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from capedjica.errors import InputError
from capedjica.tools.arrays import FloatArray

Mode = Literal["private", "public-groups"]
_MISSING = ("", "n/a", "nan", "none")


@dataclass(frozen=True)
class Column:
    """A column of the design with its public range or levels.

    Parameters
    ----------
    name : str
        Name in the participant table.
    kind : {"number", "category"}
        Kind of values.
    low, high : float
        Range of a number; values outside are clipped to it.
    center : float, optional
        Typical value of a number, which is encoded as 0; by default the middle of the range.
    levels : tuple of str
        Levels of a category, compared as strings; the first is the reference.
    """

    name: str
    kind: Literal["number", "category"] = "number"
    low: float = -1.0
    high: float = 1.0
    levels: tuple[str, ...] = ()
    center: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("number", "category"):
            raise InputError(f"column {self.name!r} must be a number or a category, got {self.kind!r}")
        if self.kind == "category":
            if len(set(self.levels)) < 2 or len(set(self.levels)) < len(self.levels):
                raise InputError(f"column {self.name!r} needs two distinct levels or more, got {self.levels}")
        elif not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"column {self.name!r} must have a finite range with low < high, got {self.low}, {self.high}"
            )
        elif not self.low <= self.middle <= self.high:
            raise InputError(
                f"the centre of column {self.name!r} must be between {self.low:g} and {self.high:g}, "
                f"got {self.center}"
            )

    @classmethod
    def of(cls, name: str, bounds: Any) -> Column:
        """Return a column as given by the user: (low, high), (low, high, centre), or levels (strings)."""
        try:
            values = list(bounds)
        except TypeError:
            values = []
        numbers = [
            value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if len(values) in (2, 3) and len(numbers) == len(values):
            low, high, *center = map(float, values)
            return cls(name, "number", low, high, center=center[0] if center else None)
        if isinstance(bounds, str | bytes) or len(values) < 2 or numbers:
            raise InputError(
                f"bounds of column {name!r} must be a range (two numbers, and a centre if it is not in the "
                f"middle) or levels (strings), got {bounds!r}"
            )
        return cls(name, "category", levels=tuple(map(_text, values)))

    @property
    def size(self) -> int:
        """Number of encoded values of the column."""
        return 1 if self.kind == "number" else len(self.levels) - 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded values."""
        return (self.name,) if self.size == 1 else tuple(f"{self.name}={level}" for level in self.levels[1:])

    @property
    def middle(self) -> float:
        """Value of a number that is encoded as 0."""
        return (self.low + self.high) / 2 if self.center is None else self.center

    @property
    def unit(self) -> float:
        """One unit of the column in encoded values; two levels are coded as -1 and 1."""
        return 1 / max(self.high - self.middle, self.middle - self.low) if self.kind == "number" else 1.0

    def encode(self, value: Any) -> FloatArray:
        """Return the encoded values in [-1, 1]; NaN for a missing or undeclared value."""
        text = _text(value)
        if self.kind == "category":
            known = text in self.levels
            coded = [1.0 if text == level else -1.0 for level in self.levels[1:]]
            return np.array(coded) if known else np.full(self.size, np.nan)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return np.array([np.nan])
        inside = np.clip(np.array([number]), self.low, self.high)
        encoded: FloatArray = np.clip((inside - self.middle) * self.unit, -1.0, 1.0)
        return encoded

    def check(self, value: Any, where: str) -> None:
        """Reject an undeclared level or text, at a site and before any budget is spent."""
        if is_missing(value) or np.isfinite(self.encode(value)).all():
            return
        expected = f"one of {', '.join(self.levels)}" if self.kind == "category" else "a number"
        raise InputError(f"{where}: column {self.name!r} has a value that is neither missing nor {expected}")


@dataclass(frozen=True)
class Design:
    """Contrast and covariates of a comparison; the site is always a fixed effect.

    Parameters
    ----------
    contrast : Column
        Column of interest: two levels, or a number.
    covariates : tuple of Column
        Columns to adjust for.
    mode : {"private", "public-groups"}
        Whether the contrast is protected like everything else (default), or membership of its two levels is
        public, with agreed group sizes.
    group_sizes : mapping from site to (int, int), optional
        For "public-groups": number of subjects of the first and the second level at every site.
    """

    contrast: Column
    covariates: tuple[Column, ...] = ()
    mode: Mode = "private"
    group_sizes: Mapping[str, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.contrast.size != 1:
            raise InputError(
                f"the contrast {self.contrast.name!r} must be a number or have two levels, "
                f"got {len(self.contrast.levels)}"
            )
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InputError(f"the columns of a design must have different names, got {', '.join(names)}")
        if self.mode not in ("private", "public-groups"):
            raise InputError(f"mode must be 'private' or 'public-groups', got {self.mode!r}")
        if (self.mode == "public-groups") != (self.group_sizes is not None):
            raise InputError("group_sizes must be given for mode 'public-groups', and only for it")
        if self.mode == "public-groups":
            self._check_groups()

    def _check_groups(self) -> None:
        if self.contrast.kind != "category":
            raise InputError(
                f"mode 'public-groups' requires a contrast with two levels, got {self.contrast.name!r}"
            )
        for site, sizes in (self.group_sizes or {}).items():
            if len(sizes) != 2 or min(sizes) < 0 or not sum(sizes):
                raise InputError(f"group_sizes of site {site} must be two group sizes, got {sizes}")
        if not any(min(sizes) for sizes in (self.group_sizes or {}).values()):
            raise InputError("no site has subjects of both groups, so the contrast cannot be estimated")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The contrast and the covariates."""
        return (self.contrast, *self.covariates)

    @property
    def size(self) -> int:
        """Length of an encoded row: the contrast, then the covariates."""
        return sum(column.size for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values of an encoded row."""
        return tuple(name for column in self.columns for name in column.names)

    def encode(self, row: Mapping[str, Any]) -> FloatArray:
        """Return a subject's values in [-1, 1], the contrast first; NaN for missing values."""
        return np.concatenate([column.encode(row.get(column.name)) for column in self.columns])

    def check(self, row: Mapping[str, Any], where: str) -> None:
        """Reject a row that lacks a column or has an undeclared level."""
        for column in self.columns:
            if column.name not in row:
                raise InputError(
                    f"{where}: column {column.name!r} is missing; the columns are {', '.join(map(str, row))}"
                )
            column.check(row[column.name], where)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences about what the guarantee does not cover."""
        if self.mode == "private":
            return ()
        return (
            f"The group of {self.contrast.name!r} to which a participant belongs is not protected, and the "
            "group sizes of each site are public: the guarantee covers everything else about a participant.",
        )


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or a string that stands for it."""
    return value is None or _text(value).strip().lower() in _MISSING


def _text(value: Any) -> str:
    """Return a value as a string; 1.0 and 1 are the same level."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
