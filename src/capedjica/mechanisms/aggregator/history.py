"""Records of a run kept by the aggregator: releases, progress events and the privacy statement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import Charge, PrivacyStatement


@dataclass(frozen=True)
class ReleaseRecord:
    """The record of one release.

    Attributes
    ----------
    label : str
        Label of the query.
    mu : dict
        Its cost for one subject of each site that was asked. It cannot be known whether a lost site had
        answered, so its cost counts. A site that answers states its own mu, which must match.
    participants : tuple of str
        The sites that were asked.
    aborted : bool
        Whether it was aborted because a participant did not answer; it stays charged.
    noise : float
        Standard deviation of the noise on each value of the mean.
    """

    label: str
    mu: Mapping[str, float]
    participants: tuple[str, ...]
    aborted: bool
    noise: float


@dataclass(frozen=True)
class Event:
    """The next step of the aggregator, and the sites involved.

    Attributes
    ----------
    doing : str
        "greeting", "greeted", "making masks", "making masks ahead", or "asking" and the label of the query.
    present : tuple of str
        The sites taking part; before a greeting, those that answered the last one.
    lost : dict
        The reason why each other site that was asked does not take part.
    """

    doing: str
    present: tuple[str, ...]
    lost: Mapping[str, str]


def privacy_statement(
    contract: Contract, releases: Iterable[ReleaseRecord], charged: Mapping[str, float] | None = None
) -> PrivacyStatement:
    """Return the privacy statement of a run: its guarantee and the budget spent.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    releases : iterable of ReleaseRecord
        The releases known to the aggregator.
    charged : dict, optional
        mu^2 of each site according to its ledger, which also contains releases lost to interruptions.
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
