"""What both sides know of a block: where the words of each slot are, and what each release asks of whom."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import Begin, SlotPlan
from capedjica.mechanisms.release import ReleasePlan, plan_release

# Blocks are made for as many releases as fit into this many numbers (16 MiB), or for one larger one.
BLOCK_WORDS: Final = 1 << 21
# Plans that a block keeps; its slots serve few stages, and after a secure sum only one set of participants.
_KEPT_PLANS: Final = 64


class BlockLayout:
    """The slots of a block one after the other, and the plan of each release.

    Parameters
    ----------
    contract : Contract
        What was agreed.
    begin : Begin
        The block.
    """

    def __init__(self, contract: Contract, begin: Begin) -> None:
        self.begin = begin
        self._contract = contract
        sizes = [contract.stages[slot.stage].query.size for slot in begin.slots]
        self._edges = np.concatenate([[0], np.cumsum(sizes)])
        self._planned = lru_cache(_KEPT_PLANS)(self._plan)

    @property
    def n_words(self) -> int:
        """Words of all slots together."""
        return int(self._edges[-1])

    def words(self, slot: int) -> slice:
        """Return where the words of a slot are."""
        return slice(int(self._edges[slot]), int(self._edges[slot + 1]))

    def plan(self, slot: int, participants: tuple[str, ...]) -> ReleasePlan:
        """Return what every participant does in a slot."""
        return self._planned(self.begin.slots[slot], participants)

    def _plan(self, slot: SlotPlan, participants: tuple[str, ...]) -> ReleasePlan:
        query = self._contract.stages[slot.stage].query
        return plan_release(self._contract, query, slot.fraction, participants, tuple(self.begin.invited))
