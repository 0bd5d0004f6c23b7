"""A site in the middle of a release, which reads somebody and stops where it is told to.

Run as ``python -m tests.faults.withdrawal_worker STUDY SITE PERSON MOMENT``. It says "reading" when it has
begun to read the person, and goes on after a line of standard input. At the moment "kept" the series is in
the cache and the release not done; at "half" the series is written and has not got its name. Then it says so,
and waits to be killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from capedjica.data.participants import People
from capedjica.site.consent.consents import Consenting
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import open_people
from capedjica.study.study_file import Study


class Held:
    """Features whose series are worth keeping, and that wait before they read one."""

    key = b"held"

    def __init__(self, features) -> None:
        self._features = features

    def series(self, recording):
        held("reading")
        return self._features.series(recording)

    def __getattr__(self, name):
        return getattr(self._features, name)


def held(word: str) -> None:
    """Say where this process is, and wait."""
    print(word, flush=True)
    sys.stdin.readline()


def _held_before(replace):
    """Give a file its name, but for series: those wait."""

    def replacing(draft, path):
        if Path(path).suffix == ".npy":
            held("half")
        replace(draft, path)

    return replacing


def main(study_folder: str, site: str, person: str, moment: str) -> None:
    """Make a release until the moment comes."""
    study, home = Study.load(Path(study_folder)), SiteHome.load(Path(site))
    if moment == "half":
        os.replace = _held_before(os.replace)
    with home.open_ledger() as ledger:
        opened = open_people(home, study)
        index = opened.names.index(person)
        people = People(opened.people, Held(opened.features))
        statistics = Consenting(home, ledger, people, lambda people: lambda *_: [people[index]])
        statistics(0, b"", b"")
        held("kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
