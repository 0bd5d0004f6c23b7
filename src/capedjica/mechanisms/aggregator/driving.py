"""The aggregator's side of private means: runs the releases and adds up the answers, without being trusted.

It communicates with the sites through one function, ``exchange``, which takes messages by site and returns
the answers received in time. The transport (a function call or a network) is not its concern.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice

import numpy as np

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.mechanisms.aggregator.block_making import BlockMaking, OpenBlock
from capedjica.mechanisms.aggregator.conversation import Conversation, Exchange
from capedjica.mechanisms.aggregator.history import Event, ReleaseRecord
from capedjica.mechanisms.aggregator.lost_sites import (
    MAX_ATTEMPTS,
    REPEATS,
    recalibrated,
)
from capedjica.mechanisms.aggregator.standing import Standing
from capedjica.mechanisms.block import BLOCK_WORDS, FIRST_WORDS
from capedjica.mechanisms.contract import Contract, Query
from capedjica.mechanisms.messages import (
    MAX_SLOTS,
    NONCE_BYTES,
    VERSION,
    Answer,
    Ask,
    Begin,
    Hello,
    SlotPlan,
    Status,
    publication_hash,
)
from capedjica.mechanisms.release import ReleasePlan
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.ring import lift
from capedjica.tools.arrays import FloatArray

__all__ = ["Aggregator", "Exchange"]


class Aggregator:
    """Runs the releases of a contract, one private mean at a time.

    Without ``ahead``, a block of masks is prepared before the first of as many releases as fit into it. With
    ``ahead``, the first block is for the first release and for those that cost little more
    (:meth:`_first_slots`); while the sites compute these, the next block, for as many releases as fit, is
    prepared in another thread, and so on. A failure of a block prepared ahead is detected when the block is
    needed. When a site is lost during a release, both blocks are discarded, and the remaining budget is
    distributed over the remaining releases.

    Parameters
    ----------
    contract : Contract
        The agreed contract.
    exchange : callable
        Sends bytes to sites by name and returns the answers received in time.
    noise : NoiseSource, optional
        For ``mechanism="pooled"``, where the aggregator is the trusted curator that adds the noise.
    done : sequence of ReleaseRecord
        The releases of an earlier aggregator of the same contract that was interrupted.
    n_done : sequence of int
        Number of means of each stage that it completed.
    ahead : bool
        Whether to prepare blocks while the sites compute; ``exchange`` is then called from two threads.
    on_event : callable, optional
        Called with each :class:`Event` before it happens, in the thread of the caller.
    standing : Standing, optional
        The record of the sites, possibly of an earlier aggregator; empty by default.

    Attributes
    ----------
    releases : list of ReleaseRecord
        The releases so far, in order.
    refusals : dict
        The most recent reason for each site that did not give a valid answer.
    standing : Standing
        The record of the sites.
    """

    def __init__(
        self,
        contract: Contract,
        exchange: Exchange,
        noise: NoiseSource | None = None,
        done: Sequence[ReleaseRecord] = (),
        n_done: Sequence[int] = (),
        *,
        ahead: bool = False,
        on_event: Callable[[Event], None] | None = None,
        standing: Standing | None = None,
    ) -> None:
        if contract.mechanism == "pooled":
            if noise is None:
                raise InputError("mechanism 'pooled' needs the curator's source of noise, got None")
            if noise.secure == contract.insecure_noise:
                raise InputError("the curator's noise and the contract disagree on whether noise is seeded")
        self.contract = contract
        self.releases: list[ReleaseRecord] = list(done)
        self.standing = Standing() if standing is None else standing
        self._conversation = Conversation(contract, exchange)
        self.refusals = self._conversation.refusals
        self._exchange, self._noise, self._on_event = exchange, noise, on_event
        self._done = list(n_done) or [0] * len(contract.stages)
        self._aborted: list[tuple[int, int]] = []
        self._heads: dict[str, bytes] = {}
        self._shrink = 0.0
        self._block: OpenBlock | None = None
        self._next: BlockMaking | None = None
        self._worker = ThreadPoolExecutor(1, "capedjica-masks") if ahead else None
        self._published = b""
        self._informed: Collection[str] = ()

    def publish(self, data: bytes) -> None:
        """Send public data to all sites for later releases, replacing the data published before."""
        self._published = data
        self._hello()
        if self._block is not None and not self._knows_what_is_published(self._block):
            self._block = None

    def mean(self, stage: int, state: bytes = b"") -> FloatArray:
        """Return the private mean of a stage's query over all subjects of the participants.

        Parameters
        ----------
        stage : int
            Index of the stage in the contract.
        state : bytes
            The public state on which the subjects' vectors depend.

        Raises
        ------
        ProtocolError
            If too few sites are left; the message names the missing sites.
        BudgetExceededError
            If the stage was requested more often than agreed, or the budget does not allow it.
        """
        if self._done[stage] >= self.contract.stages[stage].count:
            raise BudgetExceededError(
                f"the contract allows {self.contract.stages[stage].count} releases of "
                f"'{self._query(stage).label}'; it cannot be requested again"
            )
        for _ in range(MAX_ATTEMPTS):
            if self._block is None or not self._block.serves(stage):
                self._block = self._take_next(stage) or self._open_block(stage)
            if self._block is not None:
                self._make_next(self._block, stage)
                value = self._ask(self._block, stage, state)
                if value is not None:
                    self._done[stage] += 1
                    return value
                self._give_up_blocks()
        raise ProtocolError(f"'{self._query(stage).label}' failed {MAX_ATTEMPTS} times: {self._blame()}")

    def charged(self) -> dict[str, float]:
        """Return the mu^2 that the ledger of each site has charged to this contract."""
        if not self.contract.protects:
            return dict.fromkeys(self._wanted(), math.inf)
        total = self.contract.total_mu
        return {name: status.spent * total[name] ** 2 for name, status in self._hello().items()}

    def close(self) -> None:
        """Stop preparing a block ahead, and return when no more messages will be sent."""
        self._give_up_blocks()
        if self._worker is not None:
            self._worker.shutdown()

    def _query(self, stage: int) -> Query:
        return self.contract.stages[stage].query

    def _header(self) -> tuple[int, bytes]:
        return VERSION, self.contract.hash

    def _tell(self, doing: str, present: Collection[str]) -> None:
        if self._on_event is not None:
            roster = self.contract.roster
            others = [name for name in roster.names if name in self.refusals and name not in present]
            lost = {name: self.refusals[name] for name in others}
            self._on_event(Event(doing, roster.in_order(present), lost))

    def _blame(self) -> str:
        return (
            "; ".join(f"{name}: {reason}" for name, reason in sorted(self.refusals.items()))
            or "no site refused"
        )

    # Greetings

    def _wanted(self) -> tuple[str, ...]:
        """Return the sites to work with: all except dishonest ones and those that failed too often."""
        alone = self.contract.mechanism == "local"
        names = (self.contract.alone,) if alone else self.contract.roster.names
        # defence: patience-with-a-site
        return tuple(name for name in names if not self.standing.leaves_out(name))

    def _hello(self) -> dict[str, Status]:
        """Send the published data, aborted releases and last head to each site; return the replies."""
        told, nonce = (*self._header(), self._published, self._aborted), secrets.token_bytes(NONCE_BYTES)
        questions = {name: Hello(*told, self._heads.get(name, b""), nonce) for name in self._wanted()}
        self._tell("greeting", self._informed)
        answers = self._conversation.ask(questions, Status)
        # Excludes sites that misreport what they claimed or spent.
        left_out = self.standing.judge(self.contract, answers)
        self.refusals.update(left_out)
        present = {name: status for name, status in answers.items() if name not in left_out}
        self.standing.note_carriers(present)
        self._heads |= {name: status.head for name, status in present.items()}
        self._informed = present.keys()
        self._tell("greeted", self._informed)
        return present

    def _note_failures(self, names: Iterable[str]) -> None:
        """Record which sites failed, and why."""
        self.standing.fail({name: self.refusals.get(name, "no answer") for name in names})

    @property
    def _needed(self) -> int:
        """The number of sites that must be present."""
        return self.contract.roster.threshold if self.contract.mechanism == "cape" else 1

    def _greet(self) -> dict[str, Status]:
        """Return the sites that are present; refuse to continue with too few."""
        present = self._hello()
        if len(present) < self._needed:
            missing = ", ".join(name for name in self.contract.roster.names if name not in present)
            raise ProtocolError(
                f"{len(present)} sites answered, {self._needed} are needed; missing: {missing} "
                f"({self._blame()})"
            )
        self._aborted = []
        return present

    def _knows_what_is_published(self, block: OpenBlock) -> bool:
        """Return whether all have the published data; others would refuse after some sites are charged."""
        return set(block.participants) <= set(self._informed)

    # Blocks

    def _open_block(self, stage: int) -> OpenBlock | None:
        """Prepare a block for the next releases; return None if sites were lost and it must be repeated."""
        present = self._greet()
        self._calibrate(max(status.spent for status in present.values()))
        slots = self._coming_slots(stage)
        invited = self.contract.roster.in_order(present)
        begin = Begin(
            *self._header(),
            _number_after(present),
            list(invited),
            slots if self._worker is None else self._first_slots(slots),
        )
        self._tell("making masks", invited)
        self.standing.begin(begin.block)
        return self._result(BlockMaking(self.contract, self._exchange, begin))

    def _make_next(self, block: OpenBlock, stage: int) -> None:
        """Start preparing the block after this one, unless that was already done."""
        if self._worker is None or self._next is not None:
            return
        slots = self._coming_slots(stage, block.unused)
        if not slots:
            return
        invited, number = block.participants, block.begin.block + 1
        # The sites of a block prepared ahead were greeted long ago; others may have joined since.
        if block.begin.ahead:
            present = self._hello()
            invited = self.contract.roster.in_order(present)
            if len(invited) < self._needed:
                return
            number = _number_after(present)
        begin = Begin(*self._header(), number, list(invited), slots, after=block.begin.block)
        self._tell("making masks ahead", invited)
        self.standing.begin(begin.block)
        self._next = BlockMaking(self.contract, self._exchange, begin).start(self._worker)

    def _take_next(self, stage: int) -> OpenBlock | None:
        """Return the block that was prepared ahead, if it can be used."""
        if self._next is None:
            return None
        block, self._next = self._result(self._next), None
        usable = block is not None and block.serves(stage) and self._knows_what_is_published(block)
        return block if usable else None

    def _result(self, making: BlockMaking) -> OpenBlock | None:
        """Return the finished block, and record the failures of sites."""
        block = making.result()
        self.refusals.update(making.refusals)
        self._note_failures(making.missing)
        return block

    def _give_up_blocks(self) -> None:
        """Discard all blocks."""
        self._block = None
        if self._next is not None:
            # Its failures are not recorded: a site lost once would be counted twice.
            self._next.abandon()
            self._next = None

    def _calibrate(self, spent: float) -> None:
        """Distribute the remaining budget over the remaining releases."""
        self._shrink = recalibrated(self.contract, self._done, spent, self._shrink)

    def _coming_slots(self, stage: int, held: Sequence[SlotPlan] = ()) -> list[SlotPlan]:
        """Return the next slots, from this stage on, that fit into a block, excluding those already held."""
        n_held = Counter(slot.stage for slot in held)
        coming = (
            SlotPlan(index, self.contract.planned_share(agreed) * self._shrink)
            for index, agreed in enumerate(self.contract.stages[stage:], start=stage)
            for _ in range(agreed.count - self._done[index] - n_held[index])
        )
        slots: list[SlotPlan] = []
        words = 0
        for slot in islice(coming, MAX_SLOTS):
            words += self._query(slot.stage).size
            if slots and words > BLOCK_WORDS:
                break
            slots.append(slot)
        return slots

    def _first_slots(self, slots: Sequence[SlotPlan]) -> list[SlotPlan]:
        """Return the slots of a block that the first release waits for, if the next can be prepared ahead.

        A block takes five rounds, whatever its size. A connection that was idle doubles what it sends with
        every round trip, so a block of twice the size takes at most one round trip more, and a small one
        none. Further slots up to that size therefore take less time here than in a block of their own.
        """
        sizes = [self._query(slot.stage).size for slot in slots]
        most = max(2 * sizes[0], FIRST_WORDS)
        return [slot for slot, words in zip(slots, accumulate(sizes), strict=True) if words <= most]

    # Releases

    def _ask(self, block: OpenBlock, stage: int, state: bytes) -> FloatArray | None:
        """Request one release; return None if a participant did not answer (answers sent stay charged)."""
        slot = block.take(stage)
        plan = block.plan(slot)
        self._tell(f"asking {plan.query.label}", plan.participants)
        ask = Ask(
            *self._header(),
            block.begin.block,
            slot,
            list(plan.participants),
            block.begin.slots[slot],
            publication_hash(self._published),
            state,
        )
        # defence: what-is-asked-is-written-down
        self.standing.ask(plan.participants, ask.plan.fraction)
        answers = self._ask_until_complete(ask, plan)
        aborted = len(answers) < len(plan.participants)
        self.releases.append(
            ReleaseRecord(
                label=plan.query.label,
                # defence: what-was-given-up-stays-charged
                mu=plan.mu,
                participants=plan.participants,
                aborted=aborted,
                noise=plan.output_std,
            )
        )
        self._heads |= {name: answer.head for name, answer in answers.items()}
        if aborted:
            self._aborted.append((block.begin.block, slot))
            self._note_failures(name for name in plan.participants if name not in answers)
            return None
        return self._combine(block, slot, plan, [answer.words for answer in answers.values()])

    def _ask_until_complete(self, ask: Ask, plan: ReleasePlan) -> dict[str, Answer]:
        """Send a request, and repeat it for sites whose answer was lost; repeats are not charged."""
        answers: dict[str, Answer] = {}
        for _ in range(1 + REPEATS):
            missing = [name for name in plan.participants if name not in answers]
            if missing:
                given = self._conversation.ask(dict.fromkeys(missing, ask), Answer)
                answers |= {name: answer for name, answer in given.items() if self._fits(answer, ask, plan)}
        return answers

    def _fits(self, answer: Answer, ask: Ask, plan: ReleasePlan) -> bool:
        # defence: answers-that-fit
        if (answer.block, answer.slot) != (ask.block, ask.slot) or len(answer.words) != 8 * plan.query.size:
            self.refusals[answer.sender] = "an answer to another release than the one asked for"
            return False
        if not math.isclose(answer.mu, plan.mu[answer.sender], rel_tol=1e-9):
            self.refusals[answer.sender] = f"claims mu {answer.mu:.6g}, planned {plan.mu[answer.sender]:.6g}"
            return False
        return True

    def _combine(self, block: OpenBlock, slot: int, plan: ReleasePlan, parts: list[bytes]) -> FloatArray:
        """Add up the answers, subtract the masks and decode to real numbers."""
        total = np.zeros(plan.query.size, dtype=np.uint64)
        for part in parts:
            total += np.frombuffer(part, dtype="<u8")
        total -= block.masks(slot)
        if plan.curator_noise:
            assert self._noise is not None
            total += self._noise.discrete_gaussian(plan.curator_noise, plan.query.size).view(np.uint64)
        return lift(total) * np.float64(plan.step / plan.n_subjects)


def _number_after(present: Mapping[str, Status]) -> int:
    """Return the number of a block that all these sites can claim."""
    return 1 + max(status.block for status in present.values())
