"""Puts a clock into the hands of the parties, in every process whose PYTHONPATH has this folder.

They run no other class than their own, so the timed ones take the places of those where they are imported.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.after_import import AGGREGATOR, SITE, after_import


def _time_aggregator(party: ModuleType) -> None:
    from benchmarks.timed_aggregator import TimedAggregator

    party.AggregatorParty = TimedAggregator  # type: ignore[attr-defined]


def _time_site(party: ModuleType) -> None:
    from benchmarks.timed_site import TimedSite

    party.SiteParty = TimedSite  # type: ignore[attr-defined]


after_import(AGGREGATOR, _time_aggregator)
after_import(SITE, _time_site)
