"""The aggregator's side of private means: it drives, adds up, and is trusted with nothing.

It talks to the sites through one function, ``exchange``: messages by site in, answers of those that answered
in time out. What carries them (a function call, a network) is not its business.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import BudgetExceededError, InputError, ProtocolError
from capedjica.mechanisms.block import BlockLayout
from capedjica.mechanisms.contract import Contract, Query
from capedjica.mechanisms.messages import (
    MAX_SLOTS,
    VERSION,
    Answer,
    Ask,
    Begin,
    Hello,
    Question,
    Refusal,
    Reply,
    SlotPlan,
    Status,
    Sum,
    SumAnswer,
    encode,
    publication_hash,
    read_reply,
)
from capedjica.mechanisms.release import HEADROOM, ReleasePlan
from capedjica.securesum import AggregatorSum, SumParameters
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.ring import lift

Exchange = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
_Answer = TypeVar("_Answer", bound=Reply)

# Blocks are made for as many releases as fit into this many numbers (16 MiB), or for one larger one.
BLOCK_WORDS: Final = 1 << 21
# A release is not made with less than this part of the budget that was planned for it.
LEAST_SHRINK: Final = 0.01
# How often those are asked again whose answer to a release did not arrive.
REPEATS: Final = 1
# How often a release is tried again after sites were lost.
MAX_ATTEMPTS: Final = 20
# How often a site that was there may fail the others, at their cost, before it is left out for good.
PATIENCE: Final = 2
# A refusal is quoted to people up to this length.
_LONGEST_REASON: Final = 200


@dataclass(frozen=True)
class Release:
    """One release as it happened.

    Attributes
    ----------
    label : str
        Of the query.
    mu : dict
        What it cost one subject of each site that was asked: whether a site that is lost had answered
        cannot be known, so it counts. A site that answers states its mu itself, and must agree.
    participants : tuple of str
        The sites it was meant for.
    aborted : bool
        Whether it was given up because a participant did not answer; it stays charged.
    noise : float
        Standard deviation of the noise on each number of the mean.
    """

    label: str
    mu: Mapping[str, float]
    participants: tuple[str, ...]
    aborted: bool
    noise: float


class Aggregator:
    """Runs the releases of a contract, one private mean at a time.

    Parameters
    ----------
    contract : Contract
        What all parties agreed on.
    exchange : callable
        Sends bytes to sites by name and returns the answers that came back in time.
    noise : NoiseSource, optional
        For ``mechanism="pooled"``, where the aggregator is the trusted curator who adds the noise.
    done : sequence of Release
        What an earlier aggregator of the same contract made, before it was interrupted.
    n_done : sequence of int
        How many means of each stage it completed.
    """

    def __init__(
        self,
        contract: Contract,
        exchange: Exchange,
        noise: NoiseSource | None = None,
        done: Sequence[Release] = (),
        n_done: Sequence[int] = (),
    ) -> None:
        if contract.mechanism == "pooled":
            if noise is None:
                raise InputError("mechanism 'pooled' needs the curator's source of noise")
            if noise.secure == contract.insecure_noise:
                raise InputError("the curator's noise and the contract disagree on whether noise is seeded")
        self.contract = contract
        self.releases: list[Release] = list(done)
        self.refusals: dict[str, str] = {}
        self._exchange, self._noise = exchange, noise
        self._done = list(n_done) or [0] * len(contract.stages)
        self._aborted: list[tuple[int, int]] = []
        self._heads: dict[str, bytes] = {}
        self._failures: Counter[str] = Counter()
        self._block: _OpenBlock | None = None
        self._published = b""

    def publish(self, data: bytes) -> None:
        """Hand public data to all sites for the releases that follow, in place of any published before."""
        self._published = data
        informed = self._hello()
        # A participant that does not know the data would refuse, and the others be charged in vain.
        if self._block is not None and not informed.keys() >= set(self._block.participants):
            self._block = None

    def mean(self, stage: int, state: bytes = b"") -> NDArray[np.float64]:
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
            If too few sites are left, naming the missing.
        BudgetExceededError
            If the stage was asked for more often than agreed, or the budget does not allow it.
        """
        if self._done[stage] >= self.contract.stages[stage].count:
            raise BudgetExceededError(
                f"'{self._query(stage).label}' was agreed on {self.contract.stages[stage].count} times; "
                "it cannot be asked once more"
            )
        for _ in range(MAX_ATTEMPTS):
            if self._block is None or not self._block.serves(stage):
                self._block = self._open_block(stage)
            if self._block is not None:
                value = self._ask(self._block, stage, state)
                if value is not None:
                    self._done[stage] += 1
                    return value
                self._block = None
        raise ProtocolError(f"'{self._query(stage).label}' failed {MAX_ATTEMPTS} times: {self._blame()}")

    def charged(self) -> dict[str, float]:
        """Ask the sites for the mu^2 that their ledgers have charged to this contract."""
        if not self.contract.protects:
            return dict.fromkeys(self._wanted(), math.inf)
        total = self.contract.total_mu
        return {name: status.spent * total[name] ** 2 for name, status in self._hello().items()}

    def _query(self, stage: int) -> Query:
        return self.contract.stages[stage].query

    def _header(self) -> tuple[int, bytes]:
        return VERSION, self.contract.hash

    # Talking

    def _ask_all(self, questions: Mapping[str, Question], expected: type[_Answer]) -> dict[str, _Answer]:
        """Return the answers of the expected kind; a refusal or a broken message is as good as none."""
        replies = self._exchange({name: encode(question) for name, question in questions.items()})
        answers: dict[str, _Answer] = {}
        for name in questions:
            if name in replies:
                self._take(name, replies[name], expected, answers)
            else:
                self.refusals[name] = "no answer"
        return answers

    def _take(self, name: str, data: bytes, expected: type[_Answer], answers: dict[str, _Answer]) -> None:
        try:
            reply = read_reply(data, self.contract)
        except ProtocolError as error:
            self.refusals[name] = str(error)
            return
        if reply.sender != name:
            self.refusals[name] = f"an answer in the name of site {reply.sender}"
        elif isinstance(reply, Refusal):
            self.refusals[name] = _one_line(reply.reason)
        elif isinstance(reply, expected):
            answers[name] = reply
        else:
            self.refusals[name] = f"answered with {type(reply).__name__}, expected {expected.__name__}"

    def _blame(self) -> str:
        return (
            "; ".join(f"{name}: {reason}" for name, reason in sorted(self.refusals.items()))
            or "nobody refused"
        )

    # Blocks

    def _open_block(self, stage: int) -> _OpenBlock | None:
        """Make a block for the coming releases; None if sites were lost on the way: try again."""
        present = self._greet()
        slots = self._coming_slots(stage, max(status.spent for status in present.values()))
        number = 1 + max(status.block for status in present.values())
        invited = self.contract.roster.in_order(present)
        begin = Begin(*self._header(), number, list(invited), slots)
        first = self._ask_for_block(begin, dict.fromkeys(invited, begin))
        if self.contract.mechanism != "cape":
            participants = self.contract.roster.in_order(first)
            return _OpenBlock(self.contract, begin, participants, None) if participants else None
        return self._sum_masks(begin, first)

    def _ask_for_block(self, begin: Begin, questions: Mapping[str, Question]) -> dict[str, bytes]:
        """Return the sites' messages of the secure sum; an answer about another block is as good as none."""
        answers = self._ask_all(questions, SumAnswer)
        return {name: answer.data for name, answer in answers.items() if answer.block == begin.block}

    def _wanted(self) -> tuple[str, ...]:
        """Return the sites to work with: all but those that failed the others too often."""
        alone = self.contract.mechanism == "local"
        names = (self.contract.alone,) if alone else self.contract.roster.names
        return tuple(name for name in names if self._failures[name] < PATIENCE)

    def _hello(self) -> dict[str, Status]:
        """Tell the sites what is published and was given up, hand each its last head, and see who answers."""
        told = *self._header(), self._published, self._aborted
        questions = {name: Hello(*told, self._heads.get(name, b"")) for name in self._wanted()}
        present = self._ask_all(questions, Status)
        self._heads |= {name: status.head for name, status in present.items()}
        return present

    def _greet(self) -> dict[str, Status]:
        """Return the sites that are there; refuse to go on with too few."""
        roster = self.contract.roster
        present = self._hello()
        needed = roster.threshold if self.contract.mechanism == "cape" else 1
        if len(present) < needed:
            missing = ", ".join(name for name in roster.names if name not in present)
            raise ProtocolError(
                f"{len(present)} sites answered, {needed} are needed; missing: {missing} ({self._blame()})"
            )
        self._aborted = []
        return present

    def _coming_slots(self, stage: int, spent: float) -> list[SlotPlan]:
        """Return the slots for this stage and those after it, what is left of the budget spread over them."""
        left = [
            (index, agreed.share / agreed.count * (1 - self.contract.reserve))
            for index, agreed in enumerate(self.contract.stages)
            for _ in range(agreed.count - self._done[index])
        ]
        shrink = min(1.0, (1 - spent) * (1 - HEADROOM) / math.fsum(share for _, share in left))
        if shrink < LEAST_SHRINK:
            raise BudgetExceededError(
                f"only {max(0.0, 1 - spent):.2g} of the budget is left for {len(left)} releases, because "
                "others were given up when sites were lost: noise would swallow them, so they are not made"
            )
        coming = [(index, share) for index, share in left if index >= stage]
        slots: list[SlotPlan] = []
        words = 0
        for index, share in coming[:MAX_SLOTS]:
            words += self._query(index).size
            if slots and words > BLOCK_WORDS:
                break
            slots.append(SlotPlan(index, share * shrink))
        return slots

    def _sum_masks(self, begin: Begin, answers: dict[str, bytes]) -> _OpenBlock | None:
        """Run the secure sum of the masks; the block is usable only if all its survivors are still there."""
        length = sum(self._query(slot.stage).size for slot in begin.slots)
        total = AggregatorSum(SumParameters(begin.hash, self.contract.roster, length, begin.block))
        accepted: set[str] = set()
        try:
            while True:
                accepted = {name for name, data in answers.items() if self._feed(total, name, data)}
                questions = total.advance()
                if total.done:
                    break
                header = *self._header(), begin.block
                answers = self._ask_for_block(
                    begin, {name: Sum(*header, data) for name, data in questions.items()}
                )
        except ProtocolError as error:
            self.refusals["secure sum"] = str(error)
            self._note_missing(begin.invited, accepted)
            return None
        # A survivor that did not finish does not know the participants, so it would refuse every release.
        if not accepted.issuperset(total.survivors):
            self._note_missing(total.survivors, accepted)
            return None
        return _OpenBlock(self.contract, begin, total.survivors, total.result)

    def _note_missing(self, expected: Collection[str], present: Collection[str]) -> None:
        """Remember who was missing when a block or a release was given up."""
        self._failures.update(name for name in expected if name not in present)

    def _feed(self, total: AggregatorSum, name: str, data: bytes) -> bool:
        """Hand a site's message to the secure sum; whether it was accepted."""
        try:
            total.receive(data)
        except ProtocolError as error:
            self.refusals[name] = str(error)
            return False
        return True

    # Releases

    def _ask(self, block: _OpenBlock, stage: int, state: bytes) -> NDArray[np.float64] | None:
        """Ask for one release; None, with what was sent charged, if a participant did not answer."""
        slot = block.take(stage)
        plan = block.plan(slot)
        ask = Ask(
            *self._header(),
            block.begin.block,
            slot,
            list(plan.participants),
            block.begin.slots[slot],
            self._published_hash(),
            state,
        )
        answers = self._ask_until_complete(ask, plan)
        aborted = len(answers) < len(plan.participants)
        self.releases.append(
            Release(
                label=plan.query.label,
                mu=plan.mu,
                participants=plan.participants,
                aborted=aborted,
                noise=plan.output_std,
            )
        )
        self._heads |= {name: answer.head for name, answer in answers.items()}
        if aborted:
            self._aborted.append((block.begin.block, slot))
            self._note_missing(plan.participants, answers)
            return None
        return self._combine(block, slot, plan, [answer.words for answer in answers.values()])

    def _ask_until_complete(self, ask: Ask, plan: ReleasePlan) -> dict[str, Answer]:
        """Ask, and ask those again whose answer got lost: they repeat it as it was, uncharged."""
        answers: dict[str, Answer] = {}
        for _ in range(1 + REPEATS):
            missing = [name for name in plan.participants if name not in answers]
            if missing:
                given = self._ask_all(dict.fromkeys(missing, ask), Answer)
                answers |= {name: answer for name, answer in given.items() if self._fits(answer, ask, plan)}
        return answers

    def _published_hash(self) -> bytes:
        return publication_hash(self._published)

    def _fits(self, answer: Answer, ask: Ask, plan: ReleasePlan) -> bool:
        if (answer.block, answer.slot) != (ask.block, ask.slot) or len(answer.words) != 8 * plan.query.size:
            self.refusals[answer.sender] = "an answer to another release than the one asked for"
            return False
        if not math.isclose(answer.mu, plan.mu[answer.sender], rel_tol=1e-9):
            self.refusals[answer.sender] = f"claims mu {answer.mu:.6g}, planned {plan.mu[answer.sender]:.6g}"
            return False
        return True

    def _combine(
        self, block: _OpenBlock, slot: int, plan: ReleasePlan, parts: list[bytes]
    ) -> NDArray[np.float64]:
        """Add up, take the masks off, and return to real numbers."""
        total = np.zeros(plan.query.size, dtype=np.uint64)
        for part in parts:
            total += np.frombuffer(part, dtype="<u8")
        total -= block.masks(slot)
        if plan.curator_noise:
            assert self._noise is not None
            total += self._noise.discrete_gaussian(plan.curator_noise, plan.query.size).view(np.uint64)
        return lift(total) * np.float64(plan.step / plan.n_subjects)


class _OpenBlock:
    """The slots of a block that are still to be used, and the sum of each one's masks."""

    def __init__(
        self,
        contract: Contract,
        begin: Begin,
        participants: tuple[str, ...],
        total: NDArray[np.uint64] | None,
    ) -> None:
        self.begin, self.participants = begin, participants
        self._layout = BlockLayout(contract, begin)
        # Without a secure sum there are no masks.
        self._total = np.zeros(self._layout.n_words, dtype=np.uint64) if total is None else total
        self._next = 0

    def serves(self, stage: int) -> bool:
        """Whether a slot for this stage is left; slots of earlier stages are passed over for good."""
        return any(slot.stage == stage for slot in self.begin.slots[self._next :])

    def take(self, stage: int) -> int:
        """Use up the next slot for this stage."""
        while self.begin.slots[self._next].stage != stage:
            self._next += 1
        self._next += 1
        return self._next - 1

    def plan(self, slot: int) -> ReleasePlan:
        """Return what every participant does in a slot."""
        return self._layout.plan(slot, self.participants)

    def masks(self, slot: int) -> NDArray[np.uint64]:
        """Return the sum of a slot's masks."""
        return self._total[self._layout.words(slot)]


def _one_line(text: str) -> str:
    """Return a site's words as a person may see them: short, and nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_REASON])
