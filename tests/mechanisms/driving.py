"""What drives sites by hand: blocks made and releases asked for in any order, and statistics that wait."""

from __future__ import annotations

import threading

from capedjica.mechanisms.aggregator.block_making import BlockMaking
from capedjica.mechanisms.messages import VERSION, Ask, Begin, SlotPlan, encode, publication_hash
from tests.mechanisms.consortium import DATA

# Longer than anything here takes; what waits this long has failed.
PATIENT = 60.0


class SlowStatistics:
    """Statistics of site s0 that begin, and end when they are told to."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()
        self.calls, self.n_active, self.most_active = [], 0, 0
        self._lock = threading.Lock()

    def __call__(self, stage, published, state):
        with self._lock:
            self.calls.append((published, state))
            self.n_active += 1
            self.most_active = max(self.most_active, self.n_active)
        self.started.set()
        assert self.go.wait(PATIENT)
        with self._lock:
            self.n_active -= 1
        return [DATA["s0"]]


def begin_of(contract, number, fractions, after=-1):
    return Begin(VERSION, contract.hash, number, list(DATA), [SlotPlan(0, f) for f in fractions], after)


def make_block(consortium, number, fractions, after=-1):
    """Make a block with all sites, to the end of its secure sum."""
    begin = begin_of(consortium.contract, number, fractions, after)
    block = BlockMaking(consortium.contract, consortium.exchange, begin).result()
    assert block is not None
    return block


def ask_of(block, slot, state=b"", published=b""):
    begin = block.begin
    names, plan = list(block.participants), begin.slots[slot]
    ask = Ask(VERSION, begin.contract, begin.block, slot, names, plan, publication_hash(published), state)
    return encode(ask)
