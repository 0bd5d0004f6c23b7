"""Preparation of a block by the aggregator: invite the sites and compute the secure sum of their masks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, Future, wait
from typing import Self

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import ProtocolError
from capedjica.mechanisms.aggregator.conversation import Conversation, Exchange
from capedjica.mechanisms.block import BlockLayout
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import VERSION, Begin, Question, SlotPlan, Sum, SumAnswer
from capedjica.mechanisms.release import ReleasePlan
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.parameters import SumParameters


class OpenBlock:
    """The unused slots of a block, and the sum of the masks of each slot.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    begin : Begin
        The block.
    participants : tuple of str
        The sites whose masks are in the sum.
    total : array of uint64, optional
        The sum of the masks; without a secure sum there are no masks.
    """

    def __init__(
        self,
        contract: Contract,
        begin: Begin,
        participants: tuple[str, ...],
        total: NDArray[np.uint64] | None = None,
    ) -> None:
        self.begin, self.participants = begin, participants
        self._layout = BlockLayout(contract, begin)
        self._total = np.zeros(self._layout.n_words, dtype=np.uint64) if total is None else total
        self._next = 0

    @property
    def unused(self) -> list[SlotPlan]:
        """The unused slots."""
        return self.begin.slots[self._next :]

    def serves(self, stage: int) -> bool:
        """Return whether a slot for this stage is left; :meth:`take` skips slots of earlier stages."""
        return any(slot.stage == stage for slot in self.unused)

    def take(self, stage: int) -> int:
        """Return the next slot for this stage and mark it as used."""
        while self.begin.slots[self._next].stage != stage:
            self._next += 1
        self._next += 1
        return self._next - 1

    def plan(self, slot: int) -> ReleasePlan:
        """Return the release plan of a slot."""
        return self._layout.plan(slot, self.participants)

    def masks(self, slot: int) -> NDArray[np.uint64]:
        """Return the sum of a slot's masks."""
        return self._total[self._layout.words(slot)]


class BlockMaking:
    """One attempt to prepare a block.

    It may run in its own thread during a release, so failures of sites are recorded here and reported only
    when the aggregator requests the result.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    exchange : callable
        Sends bytes to sites by name and returns the answers received in time.
    begin : Begin
        The block to prepare.

    Attributes
    ----------
    missing : tuple of str
        The sites whose failure ended the attempt.
    """

    def __init__(self, contract: Contract, exchange: Exchange, begin: Begin) -> None:
        self.missing: tuple[str, ...] = ()
        self._contract, self._begin = contract, begin
        self._conversation = Conversation(contract, exchange)
        self._abandoned = threading.Event()
        self._future: Future[OpenBlock | None] | None = None

    @property
    def refusals(self) -> Mapping[str, str]:
        """The reasons why sites did not give a valid answer."""
        return self._conversation.refusals

    def start(self, worker: Executor) -> Self:
        """Start the attempt in another thread."""
        self._future = worker.submit(self._make)
        return self

    def result(self) -> OpenBlock | None:
        """Prepare the block, or wait until it is ready; return None if sites were lost."""
        return self._make() if self._future is None else self._future.result()

    def abandon(self) -> None:
        """Cancel an attempt in another thread, and return when it sends no more messages."""
        self._abandoned.set()
        if self._future is not None:
            wait([self._future])

    def _make(self) -> OpenBlock | None:
        invited = self._begin.invited
        answers = self._ask(dict.fromkeys(invited, self._begin))
        if self._contract.mechanism == "cape":
            return self._sum_masks(answers)
        participants = self._contract.roster.in_order(answers)
        return OpenBlock(self._contract, self._begin, participants) if participants else None

    def _ask(self, questions: Mapping[str, Question]) -> dict[str, bytes]:
        """Return the sites' messages of the secure sum, ignoring answers about another block."""
        answers = self._conversation.ask(questions, SumAnswer)
        return {name: answer.data for name, answer in answers.items() if answer.block == self._begin.block}

    def _sum_masks(self, answers: dict[str, bytes]) -> OpenBlock | None:
        """Run the secure sum of the masks, round by round."""
        length = BlockLayout(self._contract, self._begin).n_words
        total = AggregatorSum(
            SumParameters(self._begin.hash, self._contract.roster, length, self._begin.block)
        )
        header = VERSION, self._contract.hash, self._begin.block
        while True:
            accepted = {name for name, data in answers.items() if self._feed(total, name, data)}
            try:
                questions = total.advance()
            except ProtocolError as error:
                self._conversation.refusals["secure sum"] = str(error)
                self._note_missing(self._begin.invited, accepted)
                return None
            if total.done:
                # A survivor that did not finish does not know the participants and would refuse every
                # release, so the block is usable only if all its survivors finished.
                if not set(total.survivors) <= accepted:
                    self._note_missing(total.survivors, accepted)
                    return None
                return OpenBlock(self._contract, self._begin, total.survivors, total.result)
            if self._abandoned.is_set():
                return None
            answers = self._ask({name: Sum(*header, data) for name, data in questions.items()})

    def _note_missing(self, expected: Collection[str], present: Collection[str]) -> None:
        self.missing = tuple(name for name in expected if name not in present)

    def _feed(self, total: AggregatorSum, name: str, data: bytes) -> bool:
        """Pass a site's message to the secure sum; return whether it was accepted."""
        try:
            total.receive(data)
        except ProtocolError as error:
            self._conversation.refusals[name] = str(error)
            return False
        return True
