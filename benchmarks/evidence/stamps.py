"""Stamps beside figures: the command and the commit that made them, and the code they depend on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.evidence.catalogue import FIGURES, Figure
from benchmarks.evidence.code import ROOT

_SUFFIX: Final = ".stamp.json"
_KNOWN: Final = Path(__file__).with_name("known_stale.toml")


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a figure made again by later code: how much of it, and how far it was from what is shown."""

    command: str
    commit: str
    date: str
    found: str


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What made a figure, and fingerprints of the code that it depends on.

    Attributes
    ----------
    command, commit, date : str
        What made the figure, and when.
    code : dict from path to str
        Fingerprints at that commit or, after a check, at the commit of the check.
    check : Check or None
        The last time that a part of it was made again.
    seconds : float or None
        How long the command took, where `make` of this package ran it; less where it went on from rows of an
        interrupted run.
    """

    command: str
    commit: str
    date: str
    code: dict[str, str]
    check: Check | None = None
    seconds: float | None = None

    @property
    def origin(self) -> str:
        """The commit, for people."""
        again = "" if self.check is None else f", checked at {self.check.commit} ({self.check.found})"
        return f"commit {self.commit} of {self.date}{again}"


def stamp(base: Path, command: str) -> str:
    """Stamp a figure that was just made, if it is in the catalogue; return its origin, for people.

    Parameters
    ----------
    base : Path
        Path of its files, without suffix; the folder may be another than that of the project.
    command : str
        What made it.
    """
    figure = FIGURES.get(base.name)
    made = Stamp(command, commit(), today(), {} if figure is None else figure.code())
    if figure is not None:
        write(base, made)
    return made.origin


def origin(base: Path) -> str:
    """Return where a figure that is drawn again comes from, for people."""
    path = base.with_name(base.name + _SUFFIX)
    return read(base).origin if path.exists() else "unknown commit"


def write(base: Path, made: Stamp) -> None:
    """Write a stamp beside a figure."""
    text = msgspec.json.format(msgspec.json.encode(made), indent=1)
    base.with_name(base.name + _SUFFIX).write_bytes(text + b"\n")


def read(base: Path) -> Stamp:
    """Read the stamp beside a figure; a missing one raises FileNotFoundError."""
    return msgspec.json.decode(base.with_name(base.name + _SUFFIX).read_bytes(), type=Stamp)


def changed(figure: Figure) -> list[str]:
    """Return the modules that are not as they were when a figure was made, or checked."""
    then, now = read(figure.base).code, figure.code()
    return sorted(path for path in then.keys() | now.keys() if then.get(path) != now.get(path))


def known_stale() -> dict[str, str]:
    """Return the figures that are known to be of earlier code, and why they are shown nevertheless."""
    return msgspec.toml.decode(_KNOWN.read_bytes(), type=dict[str, str])


def commit() -> str:
    """Return the commit of the tree, with a plus sign where the tree differs from it."""
    known = _git("rev-parse", "--short=10", "HEAD") or "unknown"
    code = ("src", "benchmarks", "paper", ":!benchmarks/results", ":!paper/results", ":!*.md")
    return known + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", *code) else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def today() -> str:
    """Return the date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())
