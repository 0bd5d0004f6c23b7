"""What the aggregator does about sites that are lost: how often it asks again, and with what it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from capedjica.errors import BudgetExceededError
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import MAX_AHEAD, Status
from capedjica.mechanisms.release import HEADROOM

# How often those are asked again whose answer to a release did not arrive.
# defence: a-late-answer
REPEATS: Final = 1
# How often a release is tried again after sites were lost.
MAX_ATTEMPTS: Final = 20
# How often a site that was there may fail the others, at their cost, before it is left out for good.
LEFT_OUT_AFTER: Final = 2
# A release is not made with less than this part of the budget that was planned for it.
LEAST_SHRINK: Final = 0.01
# What the headroom of earlier releases leaves over, at most, as part of the budget of a release.
ROUNDING: Final = 1e-6


def recalibrated(contract: Contract, done: Sequence[int], spent: float, before: float) -> float:
    """Spread what is left of the budget over the releases that are left.

    Parameters
    ----------
    contract : Contract
        What all parties agreed on.
    done : sequence of int
        How many means of each stage are complete.
    spent : float
        The part of its budget that the site with the least left has spent, on releases given up too.
    before : float
        What this function returned last, or 0.

    Returns
    -------
    float
        The part of its planned share that each coming release may cost, at most 1.

    Raises
    ------
    BudgetExceededError
        If noise would swallow what is left.
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
            "others were given up when sites were lost: noise would swallow them, so they are not made"
        )
    # A gain by rounding is left alone: seeded noise must not depend on how releases are cut into blocks.
    return before if before <= shrink <= before * (1 + ROUNDING) else shrink


def far_ahead(present: Mapping[str, Status]) -> set[str]:
    """Return the sites whose last block is so far ahead that the others would refuse the next one."""
    least = min((status.block for status in present.values()), default=-1)
    return {name for name, status in present.items() if status.block > least + MAX_AHEAD}
