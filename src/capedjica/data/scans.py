"""Common types for reading scans: participants, recordings, features, and problems found in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from capedjica.tools.arrays import FloatArray, Scan
from capedjica.tools.text import printable

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


@dataclass(frozen=True)
class Problem:
    """A problem in one file, reported only to its own site.

    Attributes
    ----------
    path : Path
        The file.
    found, expected : str
        What the file contains, and what was expected.
    fatal : bool
        False if the subject can be included nevertheless.
    subject : str
        The subject to whom the file belongs; empty if the file name identifies the subject.
    alike : str
        Key shared by all problems of one kind, of which only one line is printed (`told_once`); empty for a
        problem that is printed individually.
    """

    path: Path
    found: str
    expected: str
    fatal: bool = True
    subject: str = ""
    alike: str = ""

    @property
    def name(self) -> str:
        """Name of the subject."""
        return self.subject or stem(self.path)

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.found}; expected {self.expected}", exactly=True)


def told_once(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for each kind of problem, given pairs of the kind and the text of each problem."""
    groups: dict[str, dict[str, None]] = {}
    for alike, words in told:
        groups.setdefault(alike or words, {})[words] = None
    return [next(iter(words)) + _others(len(words) - 1) for words in groups.values()]


def _others(count: int) -> str:
    return f" (and {count:,} more like this)" if count else ""


@dataclass(frozen=True)
class Recording:
    """One run, or the row of one participant in a participant table.

    Attributes
    ----------
    path : Path
        A 4-D image, or a table or array (time, features); or the table that has a row per participant.
    confounds : Path, optional
        fMRIPrep's table of confounds for this run.
    row : str, optional
        The participant whose row it is; the file is then shared by all participants.
    """

    path: Path = field(repr=False)
    confounds: Path | None = field(default=None, repr=False)
    row: str | None = field(default=None, repr=False)

    @property
    def sidecar(self) -> Path:
        """Path of the BIDS sidecar with metadata such as the repetition time."""
        return self.path.with_name(f"{stem(self.path)}.json")

    @property
    def sources(self) -> tuple[Path, ...]:
        """All files on which the series depends, whether or not they exist."""
        if self.row is not None:
            return (self.path,)
        if self.confounds is None:
            return (self.path, self.sidecar)
        return (self.path, self.sidecar, self.confounds, self.confounds.with_suffix(".json"))


@dataclass(frozen=True)
class Person:
    """One participant with all recordings, which count as one: the unit of privacy is the participant.

    ``covariates`` is the participant's row of the participant table, in studies that compare groups.
    """

    name: str = field(repr=False)
    recordings: tuple[Recording, ...]
    covariates: Recording | None = field(default=None, repr=False)


class Features(Protocol):
    """Features computed from a recording, in the same way at every site and from this recording alone."""

    @property
    def n_features(self) -> int:
        """Number of features D, the columns of every series."""

    @property
    def basis(self) -> FloatArray | None:
        """Public basis (K, D) of smooth maps on the grid of the features, or None."""

    @property
    def key(self) -> bytes | None:
        """Everything except the recording that determines a series; None if caching would not help."""

    def series(self, recording: Recording) -> Scan:
        """Return (time, features) of one recording; any exception means that it cannot be used."""

    def problems(self, recording: Recording) -> list[Problem]:
        """Return the reasons why a recording cannot be used, for its own site to read."""

    def layout(self, recording: Recording) -> str:
        """Return a description of the grid of a recording, empty if it has none; may raise any exception."""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return maps (R, D) as a 4-D image in the space of the features, or None if they have none."""


def stem(path: Path) -> str:
    """Return the name of a file without its extension, including both parts of ``.nii.gz``."""
    plain = Path(path.stem) if path.suffix.lower() == ".gz" else path
    return plain.stem
