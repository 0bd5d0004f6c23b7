"""An aggregator that makes blocks, asks, publishes and repeats itself from many threads at once.

It has no order of its own: whatever the sites answer, there must be one message for one mask, every message
recorded and charged first, the cap, two blocks at most, and no message without a mask.
"""

import logging
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from capedjica.mechanisms.aggregator.block_making import BlockMaking
from capedjica.mechanisms.messages import VERSION, Ask, Begin, SlotPlan, encode, publication_hash
from tests.attacks.messages.test_release_mutations import Watch
from tests.mechanisms.world import hello, make_data, make_study, reply

DATA = make_data((12, 9, 15, 8), 5)
NAMES = list(DATA)
N_BLOCKS = 40


class Aggregators:
    """Threads that drive the same sites, with nothing but the numbers of blocks in common."""

    def __init__(self, seed):
        self.study = make_study(DATA, count=6, epsilon=9.0, masking="uniform")
        for site in self.study.sites.values():
            site._statistics = self.slow(site._statistics)
        self.contract = self.study.contract
        self.watches = {name: Watch(site, self.contract) for name, site in self.study.sites.items()}
        self.seed, self.stop, self.lock = seed, threading.Event(), threading.Lock()
        self.numbers, self.blocks, self.said, self.kinds = 0, [], [], Counter()

    def slow(self, statistics):
        def waiting(stage, published, state):
            time.sleep(0.003)
            return statistics(stage, published, state)

        return waiting

    def tell(self, name, data):
        self.said.append(data)
        answer = self.watches[name].handle(data)
        self.kinds[type(reply(answer)).__name__] += 1
        assert len(self.study.sites[name]._blocks()) <= 2
        return answer

    def exchange(self, questions):
        return {name: self.tell(name, data) for name, data in questions.items()}

    def make_block(self, rng):
        with self.lock:
            number, self.numbers = self.numbers, self.numbers + 1
        slots = [SlotPlan(0, 10 ** rng.uniform(-4, -2)) for _ in range(rng.randrange(1, 4))]
        after = max(-1, number - rng.choice((1, 1, 1, 1, 2, 3, number + 1)))
        begin = Begin(VERSION, self.contract.hash, number, NAMES, slots, after)
        block = BlockMaking(self.contract, self.exchange, begin).result()
        if block is not None:
            self.blocks.append(block)

    def ask(self, rng):
        if not self.blocks:
            time.sleep(0.001)
            return
        block = rng.choice(self.blocks[-3:])
        slot = rng.randrange(len(block.begin.slots))
        published = publication_hash(rng.choice((b"", b"", b"a projection")))
        plan, state = block.begin.slots[slot], rng.choice((b"", b"", b"another"))
        ask = Ask(VERSION, self.contract.hash, block.begin.block, slot, NAMES, plan, published, state)
        for name in rng.sample(NAMES, rng.randrange(1, 5)):
            self.tell(name, encode(ask))

    def greet(self, rng):
        aborted = [(rng.randrange(1 + self.numbers), 0)] if rng.random() < 0.3 else []
        published = rng.choice((b"", b"", b"a projection"))
        self.tell(rng.choice(NAMES), hello(self.contract, published, aborted))

    def repeat(self, rng):
        if self.said:
            self.tell(rng.choice(NAMES), rng.choice(self.said[-300:]))

    def keep_making(self):
        """Make blocks, and give the others some time to use each."""
        try:
            rng = random.Random(self.seed)
            for _ in range(N_BLOCKS):
                self.make_block(rng)
                time.sleep(0.02)
        finally:
            self.stop.set()

    def keep_acting(self, name, *acts):
        rng = random.Random(f"{self.seed} {name}")
        while not self.stop.is_set():
            rng.choice(acts)(rng)

    def disturb(self, rng):
        rng.choices((self.greet, self.repeat, self.make_block), (20, 20, 1))[0](rng)
        time.sleep(0.001)

    def run(self):
        with ThreadPoolExecutor(5) as pool:
            threads = [pool.submit(self.keep_making), pool.submit(self.keep_acting, "d", self.disturb)]
            threads += [pool.submit(self.keep_acting, str(number), self.ask) for number in range(3)]
            for thread in threads:
                thread.result()


def words_of(watch):
    return [reply(data).words for data in watch.answers.values()]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_threads_get_one_message_for_one_mask_and_nothing_uncharged(seed, caplog):
    caplog.set_level(logging.ERROR, logger="capedjica-site")
    aggregators = Aggregators(seed)
    aggregators.run()
    for watch in aggregators.watches.values():
        watch.check()
        for words in words_of(watch):
            # Under a uniform mask all 5 words lie below 2^55 with odds of 2^-40.
            assert np.abs(np.frombuffer(words, "<i8").astype(float)).max() > 2**55
    assert not caplog.records
    # not for want of trying
    assert set(aggregators.kinds) == {"Status", "SumAnswer", "Answer", "Refusal"}
    assert sum(len(watch.answers) for watch in aggregators.watches.values()) > 20
