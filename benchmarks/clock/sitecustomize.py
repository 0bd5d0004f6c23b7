"""Puts a clock into the hands of the sites, in every process whose PYTHONPATH has this folder.

An agent runs no other class than its own, so the timed one takes the place of that where it is imported.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.after_import import SITE, after_import


def _time_site(party: ModuleType) -> None:
    from benchmarks.timed.site import TimedSite

    party.SiteParty = TimedSite  # type: ignore[attr-defined]


after_import(SITE, _time_site)
