"""Whose consent no longer stands: a private list, and statistics that follow it while a study runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.data.cache import SeriesCache
from capedjica.data.people import People
from capedjica.data.scans import Person
from capedjica.errors import InputError
from capedjica.mechanisms.site import Statistics
from capedjica.mechanisms.subjects import Vectors
from capedjica.study.private_files import write_private
from capedjica.study.site_home import SiteHome
from capedjica.study.toml import read_toml, toml_value

SCHEMA: Final = 1
_HEADER: Final = """\
# People who withdrew their consent (`capedjica site withdraw`): no study reads their scans, and they are not
# enrolled again. This file stays here. Should somebody be on it by mistake, take the entry out.
"""


class Withdrawal(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Somebody who withdrew, and when."""

    name: str
    when: str


class Withdrawals(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``withdrawn.toml``."""

    schema: int = SCHEMA
    withdrawn: tuple[Withdrawal, ...] = ()


def withdrawn_path(home: SiteHome) -> Path:
    """Return where a site keeps the list."""
    return home.folder / "withdrawn.toml"


def read_withdrawn(home: SiteHome) -> dict[str, str]:
    """Return who withdrew, and when."""
    file = withdrawn_path(home)
    if not file.exists():
        return {}
    return {one.name: one.when for one in read_toml(file, Withdrawals, SCHEMA).withdrawn}


def add_withdrawn(home: SiteHome, name: str) -> str:
    """Put somebody on the list, unless they are; return since when."""
    known = read_withdrawn(home)
    if name not in known:
        known[name] = datetime.now(UTC).isoformat(timespec="seconds")
        _write(withdrawn_path(home), known)
    return known[name]


def _write(file: Path, withdrawn: dict[str, str]) -> None:
    lines = [_HEADER, f"schema = {SCHEMA}"]
    for name, when in withdrawn.items():
        lines += ["", "[[withdrawn]]", f"name = {toml_value(name)}", f"when = {toml_value(when)}"]
    try:
        content = "\n".join([*lines, ""]).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{file} cannot be written: the name is not text in UTF-8; rename the scan"
        ) from None
    write_private(file, content)


class Consenting:
    """Statistics of the people whose consent stands, looked up before every release.

    Statistics keep in memory what they made of scans. When somebody withdraws while a study runs, they are
    made anew, without that person: they are functions of the subjects and of what was published, so nothing
    else becomes different. The person stays counted, as a subject without time points, who contributes zero.

    Parameters
    ----------
    home : SiteHome
        The site.
    people : People
        Who takes part.
    make : callable
        Returns the statistics of people.
    """

    def __init__(self, home: SiteHome, people: People, make: Callable[[People], Statistics]) -> None:
        self._home, self._make = home, make
        self._withdrawn = frozenset(read_withdrawn(home))
        self.people = without_scans(people, self._withdrawn)
        self._statistics = make(self.people)

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[Vectors]:
        """Return the vectors of a release; nobody's if the list cannot be read."""
        self.follow()
        return self._statistics(stage, published, state)

    def follow(self) -> None:
        """Forget those who withdrew since the last look, and all that was extracted from scans."""
        try:
            withdrawn = frozenset(read_withdrawn(self._home))
        except InputError:
            # Why goes into the site's own log; outside, nobody of the site takes part any more.
            logging.getLogger(f"capedjica.site.{self._home.settings.name}").exception("nobody is read")
            raise
        if withdrawn <= self._withdrawn:
            return
        self._withdrawn = withdrawn
        self.people = without_scans(self.people, withdrawn)
        self._statistics = self._make(self.people)
        # What the release before wrote there may be about them.
        with suppress(InputError):
            SeriesCache(self._home.cache_path).purge()


def without_scans(people: People, names: Collection[str]) -> People:
    """Return the same people, but some without any recording."""
    kept = [Person(one.name, ()) if one.name in names else one for one in people.people]
    return People(kept, people.features, people.cache)
