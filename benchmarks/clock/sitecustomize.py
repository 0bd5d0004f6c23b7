"""Puts a clock into the hands of the parties, in every process whose PYTHONPATH has this folder.

They run no other class than their own, so the timed ones take the places of those where they are imported.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.after_import import PARTIES, after_import


def _time(parties: ModuleType) -> None:
    from benchmarks.timed_parties import TimedAggregator, TimedSite

    parties.AggregatorParty, parties.SiteParty = TimedAggregator, TimedSite  # type: ignore[attr-defined]


after_import(PARTIES, _time)
