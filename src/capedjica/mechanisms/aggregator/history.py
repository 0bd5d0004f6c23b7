"""What the aggregator tells of a run: its releases, what it is about to do, and the guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import Charge, PrivacyStatement


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
        "greeting", "greeted", "making masks", "making masks ahead", or "asking" and the label of the query.
    present : tuple of str
        The sites taking part; before a greeting, those that answered the last one.
    lost : dict
        Why each other site that was asked does not take part.
    """

    doing: str
    present: tuple[str, ...]
    lost: Mapping[str, str]


def privacy_statement(
    contract: Contract, releases: Iterable[ReleaseRecord], charged: Mapping[str, float] | None = None
) -> PrivacyStatement:
    """Return what was guaranteed and what was spent.

    Parameters
    ----------
    contract : Contract
        What was agreed.
    releases : iterable of ReleaseRecord
        What the aggregator knows of.
    charged : dict, optional
        mu^2 by site as the sites' ledgers say, which also know of what was lost to interruptions.
    """
    names = contract.roster.names
    caps = contract.epsilon or (math.inf,) * len(names)
    return PrivacyStatement(
        nominal_epsilon=max(caps),
        delta=contract.delta,
        nominal_mu=max(contract.total_mu.values()),
        nominal_releases=tuple(Charge(r.label, r.mu, r.noise, r.aborted) for r in releases),
        nominal_site_epsilon=dict(zip(names, caps, strict=True)),
        mechanism=contract.mechanism,
        n_sites=len(names),
        n_colluding=contract.roster.n_colluding,
        secure=not contract.insecure_noise,
        nominal_charged=charged,
        neighbour=contract.neighbour,
        units_per_subject=contract.units_per_subject,
        alone=contract.alone if contract.mechanism == "local" else "",
    )
