"""The layout of a block, known to both sides: the words of each slot and the plan of each release."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import Begin, SlotPlan
from capedjica.mechanisms.release import ReleasePlan, plan_release

# A block covers as many releases as fit into this many words (16 MiB), or one larger release.
BLOCK_WORDS: Final = 1 << 21
# A block that the first release waits for may have this many words (32 KiB, two round trips of a connection
# that was idle), however small that release is.
FIRST_WORDS: Final = 1 << 12
# Number of cached plans; the slots serve few stages and, after a secure sum, only one set of participants.
_KEPT_PLANS: Final = 64


class BlockLayout:
    """The consecutive slots of a block, and the plan of each release.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
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
        """Total number of words of all slots."""
        return int(self._edges[-1])

    def words(self, slot: int) -> slice:
        """Return the slice of the words of a slot."""
        return slice(int(self._edges[slot]), int(self._edges[slot + 1]))

    def plan(self, slot: int, participants: tuple[str, ...]) -> ReleasePlan:
        """Return the release plan of a slot."""
        return self._planned(self.begin.slots[slot], participants)

    def _plan(self, slot: SlotPlan, participants: tuple[str, ...]) -> ReleasePlan:
        query = self._contract.stages[slot.stage].query
        return plan_release(self._contract, query, slot.fraction, participants, tuple(self.begin.invited))
