"""Whose consent no longer stands: a private list, and statistics that follow it while a study runs.

A list that was lost must not pass for one on which nobody is. So the ledger, whose own loss is noticed, has a
note for every entry of the list, with a sealed mark of who it is; where it has one that the list has not,
nobody is read. For the same reason nobody is ever taken off the list: who is on it by mistake is marked, and
has a second entry should they withdraw after all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from capedjica.data.cache import SeriesCache
from capedjica.data.participants import People
from capedjica.data.scans import Features, Person
from capedjica.errors import CapedjicaError, InputError
from capedjica.mechanisms.contract import Statistics, Vectors
from capedjica.privacy.ledger import Ledger
from capedjica.site.home import SiteHome
from capedjica.tools.atomic_files import write_private
from capedjica.tools.locks import BusyError, locked
from capedjica.tools.log_files import private_log
from capedjica.tools.toml import read_toml, toml_value

SCHEMA: Final = 1
NOTE: Final = "a participant withdrew consent"
_HEADER: Final = """\
# People who withdrew their consent (`capedjica site withdraw`): no study reads their scans, and they are not
# enrolled again. This file stays here. Should somebody be on it by mistake, leave the entry where it is, as
# the ledger knows it, and add to it the line: by_mistake = true
"""


class Withdrawal(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Somebody who withdrew, and when, unless that was a mistake."""

    name: str
    when: str
    by_mistake: bool = False


class Withdrawals(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``withdrawn.toml``."""

    schema: int = SCHEMA
    withdrawn: tuple[Withdrawal, ...] = ()


def withdrawn_path(home: SiteHome) -> Path:
    """Return where a site keeps the list."""
    return home.folder / "withdrawn.toml"


def lock(home: SiteHome) -> AbstractContextManager[None]:
    """Let nobody else change the list, or what the ledger notes of it."""
    busy = f"somebody else's consent is being withdrawn at site {home.settings.name}; try again"
    return locked(home.folder / ".withdrawn.lock", busy)


def read_list(home: SiteHome) -> tuple[Withdrawal, ...]:
    """Return the list as it is, whole or not, entries that are mistakes included."""
    file = withdrawn_path(home)
    return read_toml(file, Withdrawals, SCHEMA).withdrawn if file.exists() else ()


def read_withdrawn(home: SiteHome) -> dict[str, str]:
    """Return who withdrew, and when; refuse a list that is not whole."""
    if not home.has_ledger:
        return standing(home)
    with home.open_ledger() as ledger:
        return _read_whole(home, ledger)


def standing(home: SiteHome) -> dict[str, str]:
    """Return who withdrew, and when first, by the list as it is: for those who know whether it is whole."""
    return _standing(read_list(home))


def _standing(listed: Sequence[Withdrawal]) -> dict[str, str]:
    first: dict[str, str] = {}
    for one in listed:
        if not one.by_mistake:
            first.setdefault(one.name, one.when)
    return first


def _read_whole(home: SiteHome, ledger: Ledger) -> dict[str, str]:
    """Return who withdrew; refuse if the ledger has noted somebody else."""
    listed, noted = read_list(home), _noted(ledger)
    # defence: marks-that-are-lacking
    lacking = noted - _marks(listed)
    # defence: a-list-that-was-lost
    if lacking:
        raise InputError(
            f"{withdrawn_path(home)} lacks {lacking.total()} of the {noted.total()} withdrawals of consent "
            f"that the ledger of site {home.settings.name} has noted: nobody is read. Put the list back from "
            "a backup, or run capedjica site withdraw again for those who are missing; who is on it by "
            "mistake stays on it (by_mistake = true)"
        )
    return _standing(listed)


def _mark(name: str) -> bytes:
    """Return what a note has of somebody, sealed: enough to recognise their name."""
    return hashlib.sha256(b"capedjica/withdrawal/1\0" + name.encode(errors="surrogateescape")).digest()


def _marks(listed: Iterable[Withdrawal]) -> Counter[bytes]:
    return Counter(_mark(one.name) for one in listed)


def _noted(ledger: Ledger) -> Counter[bytes]:
    return Counter(mark for text, mark in ledger.notes() if text == NOTE)


def add_withdrawn(home: SiteHome, name: str) -> str:
    """Put somebody on the list, unless they are; return since when."""
    if name not in standing(home):
        _add(home, name, 1)
    return standing(home)[name]


def _add(home: SiteHome, name: str, count: int) -> None:
    entry = Withdrawal(name, datetime.now(UTC).isoformat(timespec="seconds"))
    _write(withdrawn_path(home), [*read_list(home), *[entry] * count])


def note_withdrawn(home: SiteHome, name: str) -> None:
    """Let the ledger note everybody on the list; one that was lost gets all its entries of somebody again."""
    with home.open_ledger() as ledger:
        lacking = _noted(ledger) - _marks(read_list(home))
        if lacking[_mark(name)]:
            _add(home, name, lacking[_mark(name)])
        _note_all(home, ledger)


def _note_all(home: SiteHome, ledger: Ledger) -> None:
    # defence: marks-that-are-noted
    for mark in (_marks(read_list(home)) - _noted(ledger)).elements():
        # defence: nobody-is-named-in-the-ledger
        ledger.note(NOTE, mark)


def _write(file: Path, withdrawn: Iterable[Withdrawal]) -> None:
    lines = [_HEADER, f"schema = {SCHEMA}"]
    for one in withdrawn:
        lines += ["", "[[withdrawn]]", f"name = {toml_value(one.name)}", f"when = {toml_value(one.when)}"]
        lines += ["by_mistake = true"] if one.by_mistake else []
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
    ledger : Ledger
        Its ledger, which knows who withdrew.
    people : People
        Who takes part.
    make : callable
        Returns the statistics of people.
    """

    def __init__(
        self, home: SiteHome, ledger: Ledger, people: People, make: Callable[[People], Statistics]
    ) -> None:
        self._home, self._ledger, self._make = home, ledger, make
        # Of a withdrawal that was killed half-way, or from before there was a ledger.
        with suppress(BusyError), lock(home):
            _note_all(home, ledger)
        self._withdrawn = frozenset(self._read())
        self.people = consenting(home, people.people, people.features, self._withdrawn)
        self._statistics = make(self.people)

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[Vectors]:
        """Return the vectors of a release; nobody's if the list cannot be read or is not whole."""
        self.follow()
        return self._statistics(stage, published, state)

    def follow(self) -> None:
        """Forget those who withdrew since the last look, and all that was extracted from scans."""
        try:
            withdrawn = frozenset(self._read())
        except CapedjicaError:
            # Why goes into the site's own log; its people count as zero, which nobody outside can tell.
            private_log(self._home.settings.name).exception("nobody is read")
            # defence: a-list-that-cannot-be-read
            raise
        # defence: withdrawal-during-a-run
        if withdrawn <= self._withdrawn:
            return
        self.people = consenting(self._home, self.people.people, self.people.features, withdrawn)
        self._statistics = self._make(self.people)
        self._withdrawn = withdrawn

    def _read(self) -> dict[str, str]:
        return _read_whole(self._home, self._ledger)


def consenting(
    home: SiteHome, people: Iterable[Person], features: Features, withdrawn: Collection[str]
) -> People:
    """Return people as they are read: those who withdrew have no recording.

    Series are kept under the list by which they were read. What was made of scans under another list, be it
    by a process that was killed before it learnt of a withdrawal, is removed here, before anything is read.
    """
    names = "\0".join(sorted(withdrawn)).encode(errors="surrogateescape")
    edition = hashlib.sha256(b"capedjica/withdrawn/1\0" + names).hexdigest()[:16]
    cache = SeriesCache(home.cache_path, edition)
    # defence: series-written-after-a-withdrawal
    cache.purge_other_editions()
    # defence: the-withdrawn-count-as-zero
    kept = [Person(one.name, ()) if one.name in withdrawn else one for one in people]
    return People(kept, features, cache)
