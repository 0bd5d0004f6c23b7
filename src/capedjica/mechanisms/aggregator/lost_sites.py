"""Handling of lost sites by the aggregator: number of repeats, and recalibration of the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from capedjica.errors import BudgetExceededError
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import MAX_AHEAD, Status
from capedjica.mechanisms.release import HEADROOM

# How often the request for a release is repeated if an answer did not arrive.
# defence: a-late-answer
REPEATS: Final = 1
# Number of attempts at one release when sites are lost.
MAX_ATTEMPTS: Final = 20
# Number of failures, each at the cost of the other sites, after which a site is permanently excluded.
LEFT_OUT_AFTER: Final = 2
# A release is not made with less than this fraction of its planned budget.
LEAST_SHRINK: Final = 0.01
# Largest leftover from the headroom of earlier releases, as a fraction of the budget of one release.
ROUNDING: Final = 1e-6


def recalibrated(contract: Contract, done: Sequence[int], spent: float, before: float) -> float:
    """Return the factor that distributes the remaining budget over the remaining releases.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    done : sequence of int
        Number of completed means of each stage.
    spent : float
        Largest fraction of its budget that any site has spent, including aborted releases.
    before : float
        The previous return value of this function, or 0.

    Returns
    -------
    float
        The fraction of its planned share that each remaining release may cost, at most 1.

    Raises
    ------
    BudgetExceededError
        If the remaining budget is too small for useful results.
    """
    left = math.fsum(
        (agreed.count - n_done) * contract.planned_share(agreed)
        for agreed, n_done in zip(contract.stages, done, strict=True)
    )
    # defence: what-is-left-of-the-budget
    shrink = min(1.0, (1 - spent) * (1 - HEADROOM) / left)
    if shrink < LEAST_SHRINK:
        n_left = sum(agreed.count for agreed in contract.stages) - sum(done)
        raise BudgetExceededError(
            f"only {max(0.0, 1 - spent):.2g} of the budget is left for {n_left} releases, because "
            "others were aborted when sites were lost; the noise would be too large, so the run stops"
        )
    # A gain from rounding is ignored: seeded noise must not depend on how releases are split into blocks.
    return before if before <= shrink <= before * (1 + ROUNDING) else shrink


def far_ahead(present: Mapping[str, Status]) -> set[str]:
    """Return the sites whose last block is so far ahead that the others would refuse the next one."""
    least = min((status.block for status in present.values()), default=-1)
    return {name for name, status in present.items() if status.block > least + MAX_AHEAD}
