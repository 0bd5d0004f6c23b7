"""How a run goes, for those who want to watch."""

from __future__ import annotations

from dataclasses import dataclass

from capedjica.mechanisms.aggregator.history import Event
from capedjica.privacy.statement import PrivacyStatement


@dataclass(frozen=True)
class Step:
    """How far a run is: the mean that was just made.

    Attributes
    ----------
    label : str
        Of its stage.
    number, count : int
        The how many-th of how many of its stage.
    n_done : int
        Means made so far, of all stages.
    privacy : PrivacyStatement
        What was spent so far.
    """

    label: str
    number: int
    count: int
    n_done: int
    privacy: PrivacyStatement


class Watcher:
    """Told how a run goes; every method does nothing unless overridden."""

    def checking(self, n_subjects: int) -> None:
        """Learn that all scans are about to be looked at, once."""

    def reading(self, site: str) -> None:
        """Learn that a scan was read, at this site."""

    def event(self, event: Event) -> None:
        """Learn what the aggregator is about to do, and with whom."""

    def step(self, step: Step) -> None:
        """Learn that a mean was made."""
