"""The private list of withdrawn participants, and statistics that follow it while a study runs.

A lost list must not be mistaken for an empty one. The ledger, whose own loss is detected, therefore has a
note for every entry of the list, with a sealed mark of the participant. If the ledger has a note that the
list lacks, no data are read. For the same reason entries are never removed: an entry made by mistake is
marked as such, and a participant who withdraws later gets a second entry.
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
# Participants who withdrew their consent (`capedjica site withdraw`): no study reads their scans, and they
# are not enrolled again. This file stays at the site. If an entry was made by mistake, do not remove it,
# because it is noted in the ledger; add this line to the entry: by_mistake = true
"""


class Withdrawal(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A withdrawn participant and the time, or an entry made by mistake."""

    name: str
    when: str
    by_mistake: bool = False


class Withdrawals(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a ``withdrawn.toml``."""

    schema: int = SCHEMA
    withdrawn: tuple[Withdrawal, ...] = ()


def withdrawn_path(home: SiteHome) -> Path:
    """Return the path of a site's list of withdrawn participants."""
    return home.folder / "withdrawn.toml"


def lock(home: SiteHome) -> AbstractContextManager[None]:
    """Lock the list and its notes in the ledger against concurrent changes."""
    busy = f"another withdrawal is in progress at site {home.settings.name}; try again"
    return locked(home.folder / ".withdrawn.lock", busy)


def read_list(home: SiteHome) -> tuple[Withdrawal, ...]:
    """Return the list as it is, complete or not, including entries made by mistake."""
    file = withdrawn_path(home)
    return read_toml(file, Withdrawals, SCHEMA).withdrawn if file.exists() else ()


def read_withdrawn(home: SiteHome) -> dict[str, str]:
    """Return all withdrawn participants and when they withdrew; refuse an incomplete list."""
    if not home.has_ledger:
        return standing(home)
    with home.open_ledger() as ledger:
        return _read_whole(home, ledger)


def standing(home: SiteHome) -> dict[str, str]:
    """Return when each withdrawn participant first withdrew, without checking that the list is complete."""
    return _standing(read_list(home))


def _standing(listed: Sequence[Withdrawal]) -> dict[str, str]:
    first: dict[str, str] = {}
    for one in listed:
        if not one.by_mistake:
            first.setdefault(one.name, one.when)
    return first


def _read_whole(home: SiteHome, ledger: Ledger) -> dict[str, str]:
    """Return all withdrawn participants; refuse a list that lacks an entry noted in the ledger."""
    listed, noted = read_list(home), _noted(ledger)
    # defence: marks-that-are-lacking
    lacking = noted - _marks(listed)
    # defence: a-list-that-was-lost
    if lacking:
        raise InputError(
            f"{withdrawn_path(home)} lacks {lacking.total()} of the {noted.total()} withdrawals of consent "
            f"noted in the ledger of site {home.settings.name}, so no data are read. Restore the list from a "
            "backup, or run capedjica site withdraw again for the missing participants; keep entries made by "
            "mistake and mark them (by_mistake = true)"
        )
    return _standing(listed)


def _mark(name: str) -> bytes:
    """Return the mark of a participant in a note, which allows the name to be recognised but not read."""
    return hashlib.sha256(b"capedjica/withdrawal/1\0" + name.encode(errors="surrogateescape")).digest()


def _marks(listed: Iterable[Withdrawal]) -> Counter[bytes]:
    return Counter(_mark(one.name) for one in listed)


def _noted(ledger: Ledger) -> Counter[bytes]:
    return Counter(mark for text, mark in ledger.notes() if text == NOTE)


def add_withdrawn(home: SiteHome, name: str) -> str:
    """Add a participant to the list unless already on it; return the time of the first entry."""
    if name not in standing(home):
        _add(home, name, 1)
    return standing(home)[name]


def _add(home: SiteHome, name: str, count: int) -> None:
    entry = Withdrawal(name, datetime.now(UTC).isoformat(timespec="seconds"))
    _write(withdrawn_path(home), [*read_list(home), *[entry] * count])


def note_withdrawn(home: SiteHome, name: str) -> None:
    """Note all entries of the list in the ledger; restore lost entries of the given participant."""
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
            f"{file} cannot be written: the name of the scan is not valid UTF-8; rename the scan"
        ) from None
    write_private(file, content)


class Consenting:
    """Statistics of the participants whose consent is valid, checked before every release.

    Statistics keep values computed from scans in memory. When a participant withdraws while a study runs, the
    statistics are recomputed without that participant: they are functions of the subjects and of what was
    published, so nothing else changes. The participant still counts, as a subject without time points who
    contributes zero.

    Parameters
    ----------
    home : SiteHome
        The site.
    ledger : Ledger
        The ledger of the site, which notes withdrawals.
    people : People
        The participants.
    make : callable
        Returns the statistics of the participants.
    """

    def __init__(
        self, home: SiteHome, ledger: Ledger, people: People, make: Callable[[People], Statistics]
    ) -> None:
        self._home, self._ledger, self._make = home, ledger, make
        # Entries of an interrupted withdrawal, or from before there was a ledger.
        with suppress(BusyError), lock(home):
            _note_all(home, ledger)
        self._withdrawn = frozenset(self._read())
        self.people = consenting(home, people.people, people.features, self._withdrawn)
        self._statistics = make(self.people)

    def __call__(self, stage: int, published: bytes, state: bytes) -> Iterable[Vectors]:
        """Return the vectors of a release; raise if the list is unreadable or incomplete."""
        self.follow()
        return self._statistics(stage, published, state)

    def follow(self) -> None:
        """Drop participants who withdrew since the last check, and the series extracted from scans."""
        try:
            withdrawn = frozenset(self._read())
        except CapedjicaError:
            # The reason is logged at the site only; the participants count as zero, invisibly from outside.
            private_log(self._home.settings.name).exception("no data are read")
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
    """Return the participants as they are read: withdrawn participants have no recording.

    Cached series are tied to the list under which they were read. Series cached under another list, for
    example by a process killed before it noticed a withdrawal, are removed before anything is read.
    """
    names = "\0".join(sorted(withdrawn)).encode(errors="surrogateescape")
    edition = hashlib.sha256(b"capedjica/withdrawn/1\0" + names).hexdigest()[:16]
    cache = SeriesCache(home.cache_path, edition)
    # defence: series-written-after-a-withdrawal
    cache.purge_other_editions()
    # defence: the-withdrawn-count-as-zero
    kept = [Person(one.name, ()) if one.name in withdrawn else one for one in people]
    return People(kept, features, cache)
