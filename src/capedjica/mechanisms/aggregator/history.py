"""What the aggregator tells of a run: every release as it happened, and what it is about to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReleaseRecord:
    """One release as it happened.

    Attributes
    ----------
    label : str
        Of the query.
    mu : dict
        What it cost one subject of each site that was asked: whether a site that is lost had answered
        cannot be known, so it counts. A site that answers states its mu itself, and must agree.
    participants : tuple of str
        The sites it was meant for.
    aborted : bool
        Whether it was given up because a participant did not answer; it stays charged.
    noise : float
        Standard deviation of the noise on each number of the mean.
    """

    label: str
    mu: Mapping[str, float]
    participants: tuple[str, ...]
    aborted: bool
    noise: float


@dataclass(frozen=True)
class Event:
    """What the aggregator is about to do, and with whom.

    Attributes
    ----------
    doing : str
        "greeting", "making masks", "making masks ahead", or "asking" and the label of the query.
    present : tuple of str
        The sites taking part; before a greeting, those that answered the last one.
    lost : dict
        Why each other site that was asked does not take part.
    """

    doing: str
    present: tuple[str, ...]
    lost: Mapping[str, str]
