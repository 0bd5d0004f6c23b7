"""The releases of a contract as a run makes them when no site is lost and nothing is asked twice."""

from __future__ import annotations

import math

from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.release import HEADROOM, ReleasePlan, plan_release


def fractions(contract: Contract) -> list[float]:
    """Return the part of the budget (of mu^2) that each release of a stage may use, stage by stage."""
    shares = [contract.planned_share(stage) for stage in contract.stages]
    counts = [stage.count for stage in contract.stages]
    total = math.fsum(share * count for share, count in zip(shares, counts, strict=True))
    shrink = min(1.0, (1 - HEADROOM) / total)
    return [share * shrink for share in shares]


def planned_releases(contract: Contract) -> list[ReleasePlan]:
    """Return what each participant does in a release of each stage; InputError where it cannot be made."""
    sites = tuple(contract.participants)
    return [
        plan_release(contract, stage.query, fraction, sites)
        for stage, fraction in zip(contract.stages, fractions(contract), strict=True)
    ]


def spendable_delta(contract: Contract) -> float:
    """Return the delta that Gaussian noise may use up; the grid and the stream have the rest."""
    return contract.cap(contract.roster.names[0]).delta
