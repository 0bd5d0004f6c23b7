"""The guarantee of a contract, with the releases that were made under it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from capedjica.mechanisms.aggregator.history import ReleaseRecord
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import Charge, PrivacyStatement


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
