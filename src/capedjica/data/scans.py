"""The words that all readers of scans share: a person, their recordings, and the features made of them."""

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
    """Something about one file that its site should know; never shown to anybody else.

    Attributes
    ----------
    path : Path
        The file.
    found, expected : str
        What is there and what should be.
    fatal : bool
        False where the subject can take part all the same.
    subject : str
        Whose file it is; empty where its name says so.
    alike : str
        The same for all whose problem is of one kind, of which one line is said (`told_once`); empty where
        it is told by itself.
    """

    path: Path
    found: str
    expected: str
    fatal: bool = True
    subject: str = ""
    alike: str = ""

    @property
    def name(self) -> str:
        """The subject's name."""
        return self.subject or stem(self.path)

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.found}; expected {self.expected}", exactly=True)


def told_once(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for all that are alike, given what they have in common and the words of each."""
    groups: dict[str, dict[str, None]] = {}
    for alike, words in told:
        groups.setdefault(alike or words, {})[words] = None
    return [next(iter(words)) + _others(len(words) - 1) for words in groups.values()]


def _others(count: int) -> str:
    return f" (and {count:,} more like this)" if count else ""


@dataclass(frozen=True)
class Recording:
    """One run of the scanner, or somebody's row in the table of all people.

    Attributes
    ----------
    path : Path
        A 4-D image, or a table or array (time, features); or the table that has a row per person.
    confounds : Path, optional
        fMRIPrep's table of confounds that belongs to it.
    row : str, optional
        Whose row of the table it is; the file then serves everybody.
    """

    path: Path = field(repr=False)
    confounds: Path | None = field(default=None, repr=False)
    row: str | None = field(default=None, repr=False)

    @property
    def sidecar(self) -> Path:
        """Where BIDS keeps what is known about the recording, its repetition time for example."""
        return self.path.with_name(f"{stem(self.path)}.json")

    @property
    def sources(self) -> tuple[Path, ...]:
        """Every file that has a say in the series, whether it is there or not."""
        if self.row is not None:
            return (self.path,)
        if self.confounds is None:
            return (self.path, self.sidecar)
        return (self.path, self.sidecar, self.confounds, self.confounds.with_suffix(".json"))


@dataclass(frozen=True)
class Person:
    """One subject with all their recordings, which count as one: privacy is that of people.

    ``covariates`` is their row of the table of people, in studies that compare people by what it says.
    """

    name: str = field(repr=False)
    recordings: tuple[Recording, ...]
    covariates: Recording | None = field(default=None, repr=False)


class Features(Protocol):
    """What a study makes of a recording, the same at every site and from this recording alone."""

    @property
    def n_features(self) -> int:
        """D, columns of every series."""

    @property
    def basis(self) -> FloatArray | None:
        """The public basis (K, D) of smooth maps on the grid of the features, None where there is none."""

    @property
    def key(self) -> bytes | None:
        """What determines a series besides the recording, None where keeping series gains nothing."""

    def series(self, recording: Recording) -> Scan:
        """Return (time, features) of one recording; raise whatever comes when it cannot be used."""

    def problems(self, recording: Recording) -> list[Problem]:
        """Return why a recording cannot be used, for its own site to read."""

    def layout(self, recording: Recording) -> str:
        """Return the grid of a recording in words, empty where it has none; raise whatever comes."""

    def image(self, maps: FloatArray) -> Nifti1Image | None:
        """Return maps (R, D) as a 4-D image in the space of the features, None where they have none."""


def stem(path: Path) -> str:
    """Return the name of a file without its ending, both parts of ``.nii.gz``."""
    plain = Path(path.stem) if path.suffix.lower() == ".gz" else path
    return plain.stem
