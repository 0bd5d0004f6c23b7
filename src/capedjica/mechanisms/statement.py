"""The guarantee of a contract, with the releases that were made under it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from capedjica.mechanisms.aggregator import Release
from capedjica.mechanisms.contract import Contract
from capedjica.privacy.statement import Charge, PrivacyStatement


def privacy_statement(
    contract: Contract, releases: Iterable[Release], charged: Mapping[str, float] | None = None
) -> PrivacyStatement:
    """Return what was guaranteed and what was spent.

    Parameters
    ----------
    contract : Contract
        What was agreed.
    releases : iterable of Release
        What the aggregator knows of.
    charged : dict, optional
        mu^2 by site as the sites' ledgers say, which also know of what was lost to interruptions.
    """
    caps = dict(zip(contract.roster.names, contract.epsilon, strict=False))
    return PrivacyStatement(
        epsilon=max(caps.values(), default=math.inf),
        delta=contract.delta,
        mu=max(contract.total_mu.values()),
        releases=tuple(Charge(r.label, r.mu, r.noise, r.aborted) for r in releases),
        site_epsilon=caps,
        mechanism=contract.mechanism,
        n_sites=len(contract.subjects),
        n_colluding=contract.roster.n_colluding,
        secure=not contract.insecure_noise,
        charged=charged,
    )
