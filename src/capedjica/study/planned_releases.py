"""The planned releases of a contract: those of a run without lost sites or repeated requests."""

from __future__ import annotations

import math

from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.release import HEADROOM, ReleasePlan, plan_release


def fractions(contract: Contract) -> list[float]:
    """Return, for each stage, the fraction of the budget (of mu^2) that one of its releases may use."""
    shares = [contract.planned_share(stage) for stage in contract.stages]
    counts = [stage.count for stage in contract.stages]
    total = math.fsum(share * count for share, count in zip(shares, counts, strict=True))
    shrink = min(1.0, (1 - HEADROOM) / total)
    return [share * shrink for share in shares]


def planned_releases(contract: Contract) -> list[ReleasePlan]:
    """Return the plan of one release of each stage; raise InputError if a release is not possible."""
    sites = tuple(contract.participants)
    return [
        plan_release(contract, stage.query, fraction, sites)
        for stage, fraction in zip(contract.stages, fractions(contract), strict=True)
    ]


def spendable_delta(contract: Contract) -> float:
    """Return the delta available to Gaussian noise; rounding and the random stream use the rest."""
    return contract.cap(contract.roster.names[0]).delta
