"""Callbacks that report the progress of a run."""

from __future__ import annotations

from dataclasses import dataclass

from capedjica.mechanisms.aggregator.history import Event
from capedjica.privacy.statement import PrivacyStatement


@dataclass(frozen=True)
class Step:
    """Progress of a run: the mean that was just released.

    Attributes
    ----------
    label : str
        Label of its stage.
    number, count : int
        Number of the mean within its stage, and the number of means of the stage.
    n_done : int
        Means released so far, over all stages.
    privacy : PrivacyStatement
        Budget spent so far.
    """

    label: str
    number: int
    count: int
    n_done: int
    privacy: PrivacyStatement


class Watcher:
    """Receiver of the progress of a run; methods do nothing unless overridden."""

    def checking(self, n_subjects: int) -> None:
        """Handle the start of the check of all scans."""

    def reading(self, site: str) -> None:
        """Handle the completed reading of a scan at a site."""

    def event(self, event: Event) -> None:
        """Handle the start of an action of the aggregator, with the sites involved."""

    def step(self, step: Step) -> None:
        """Handle the release of a mean."""
