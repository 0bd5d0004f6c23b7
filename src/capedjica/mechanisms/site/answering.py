"""A site's side of private means: every release is recorded and charged before its bytes leave.

The site computes the noise, the clip, the weights and its own mu from the contract and from the participants
that t sites agreed on. From the aggregator it takes only the public state that its statistics depend on, the
order of the releases, and the fraction of the budget that each may use. All sites of a block agree on these
fractions, because the secure sum of their masks is bound to them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capedjica.errors import BudgetExceededError, CapedjicaError, InputError, ProtocolError
from capedjica.mechanisms.block import BlockLayout
from capedjica.mechanisms.contract import SITES_ADD_NO_NOISE, Contract, Query, Statistics, Vectors
from capedjica.mechanisms.messages import (
    MAX_AHEAD,
    VERSION,
    Answer,
    Ask,
    Begin,
    CarrierName,
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
    question_hash,
    read_question,
    sign_reply,
)
from capedjica.mechanisms.release import HEADROOM, MAX_BLOCK_WORDS, ReleasePlan
from capedjica.mechanisms.site.clipping import sum_subjects
from capedjica.mechanisms.site.head_seal import HeadSeal
from capedjica.privacy.ledger import SlotBurntError, Summary, Totals
from capedjica.securesum.identity import Identity
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.parameters import SumParameters
from capedjica.securesum.site import SiteSum
from capedjica.tools.log_files import private_log


class SiteLedger(Protocol):
    """The ledger interface that a site needs (:class:`capedjica.privacy.ledger.Ledger`)."""

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        """Claim a block of masks, once."""

    def release(
        self,
        study: bytes,
        block: int,
        attempt: int,
        slot: int,
        participants: tuple[str, ...],
        request_hash: bytes,
        mu: float,
        make_message: Callable[[], bytes],
        summary: Summary,
    ) -> bytes:
        """Record, charge and return a message, or return the stored one."""

    def record_abort(self, study: bytes, block: int, attempt: int, slot: int, reason: str) -> None:
        """Record that a release was aborted."""

    def check_affordable(self, study: bytes, mu2: float) -> None:
        """Refuse charges that would exceed a cap."""

    def totals(self) -> Totals:
        """Return the cap and the charges of each study."""

    def last_block(self, study: bytes) -> int:
        """Return the last block claimed, -1 if none."""

    def spent(self, study: bytes) -> float:
        """Return the mu^2 charged to a study."""

    def check_against(self, head: bytes) -> None:
        """Compare the ledger with one of its own heads that the aggregator returned."""

    @property
    def head(self) -> bytes:
        """The signed head."""


@dataclass(frozen=True)
class SitePolicy:
    """The site's policy in addition to the caps of its ledger.

    Parameters
    ----------
    allow_unprotected : bool
        Whether to take part if the guarantee does not hold against the aggregator (``pooled``, ``none``) or
        the noise can be guessed (seeds); the ledger then charges an infinite cost.
    """

    allow_unprotected: bool = False


class Site:
    """One site of a study.

    Messages may arrive from several threads at once. These rules coordinate them:

    - One release is computed at a time. Other requests for a release wait; a repeated request then gets the
      stored bytes.
    - At most two blocks are held: the one in use and the next one, prepared ahead. An invitation to a block
      names the other block that stays and is used before it; any other block is discarded. The first request
      for a release from the next block also puts that block into use.
    - A block is not discarded while a release from it is being computed; a message that would discard it
      waits.
    - A block is started only if the budget covers it and all unused slots of the block that stays.
    - A release refers to the data published at the time of the request; data published while it is computed
      are for later releases.

    As a result, the slow part of a release, the sum over the subjects, delays neither greetings nor the
    secure sum that prepares the next block.

    Parameters
    ----------
    contract : Contract
        The contract that the site approved.
    name : str
        Its name in the roster.
    identity : Identity
        Its long-term key.
    ledger : SiteLedger
        The ledger; the contract must be registered there, with its ``cap`` or less.
    statistics : callable
        ``statistics(stage, published, state)`` yields the subjects' vectors, a few subjects at a time, in the
        form that :func:`capedjica.mechanisms.site.clipping.sum_subjects` expects.
    noise : NoiseSource
        Source of the privacy noise; the masks come from a branch of it.
    policy : SitePolicy
        The policy of the site.
    carrier : {"embedded", "user", "landlock", "none"}
        How the carrier is confined, to be reported in greetings.
    """

    def __init__(
        self,
        contract: Contract,
        name: str,
        identity: Identity,
        ledger: SiteLedger,
        statistics: Statistics,
        noise: NoiseSource,
        policy: SitePolicy = SitePolicy(),
        *,
        carrier: CarrierName = "embedded",
    ) -> None:
        contract.roster.site(name)
        # defence: policy-of-a-site
        if not contract.protects and not policy.allow_unprotected:
            raise InputError(
                f"site {name} does not take part in '{contract.title}': its policy does not allow mechanism "
                f"'{contract.mechanism}'{' with seeded noise' if contract.insecure_noise else ''}"
            )
        # defence: seed-against-the-contract
        if noise.secure == contract.insecure_noise:
            raise InputError(
                f"site {name}: the noise source and the contract disagree on whether noise is seeded"
            )
        self.contract, self.name, self.carrier = contract, name, carrier
        self.n_zero = 0
        self._identity, self._ledger, self._statistics, self._noise = identity, ledger, statistics, noise
        self._seal = HeadSeal(identity, contract, name)
        # A separate branch: with a seed, the noise of a release must not depend on when masks are made.
        self._mask_source = noise.branch("masks")
        self._log = private_log(name)
        self._block: _Block | None = None
        self._next: _Block | None = None
        # The first is held during a whole release. The second, always acquired after the first, is held by
        # any code that reads or changes blocks, published data and charges.
        self._releasing, self._state = threading.Lock(), threading.Lock()
        self._published = b""
        self._published_hash = publication_hash(b"")

    def handle(self, data: bytes) -> bytes:
        """Return the signed answer to a message of the aggregator; never raises, whatever the message."""
        return self.sign(question_hash(data), self._answer_or_refuse(data))

    def sign(self, hash: bytes, reply: Reply | bytes) -> bytes:
        """Return the signed bytes of a reply to the question with this hash."""
        return sign_reply(self._identity, hash, reply)

    def _answer_or_refuse(self, data: bytes) -> Reply | bytes:
        try:
            return self._answer(read_question(data, self.contract))
        except ProtocolError as error:
            reason = str(error)
        except BudgetExceededError as error:
            reason = f"the budget of site {self.name} does not allow it"
            self._log.warning("refused: %s", error)
        except CapedjicaError as error:
            # defence: silence-about-storage
            reason = f"site {self.name} cannot answer; its own log says why"
            self._log.error("refused: %s", error)
        # defence: refusals-without-words
        except Exception:
            # defence: silence-about-a-failure
            reason = f"site {self.name} cannot answer; its own log says why"
            self._log.exception("unexpected error")
        return Refusal(*self._header(), reason[:1000])

    def _header(self) -> tuple[int, bytes, str]:
        return VERSION, self.contract.hash, self.name

    def _answer(self, question: Question) -> Reply | bytes:
        # Refuses once the approval is revoked, even if the answer is in memory.
        # defence: revoked-in-the-middle-of-a-secure-sum
        self._ledger.spent(self.contract.hash)
        match question:
            case Hello():
                return self._status(question)
            case Begin():
                return SumAnswer(*self._header(), question.block, self._begin(question))
            case Sum():
                return SumAnswer(*self._header(), question.block, self._go_on(question))
            case Ask():
                return self._release(question)

    # Blocks

    def _status(self, hello: Hello) -> Status:
        # A release must be in the ledger before it can be recorded as aborted.
        with self._releasing if hello.aborted else nullcontext(), self._state:
            if hello.head:
                # defence: head-handed-back
                self._ledger.check_against(self._seal.unseal(hello.head))
            self._published, self._published_hash = hello.published, publication_hash(hello.published)
            for block, slot in hello.aborted:
                # A release that this site never made is ignored, whatever the aggregator reports.
                with suppress(ProtocolError):
                    self._ledger.record_abort(self.contract.hash, block, 0, slot, "a site did not answer")
            return self._present_status()

    def _present_status(self) -> Status:
        study, cap = self.contract.hash, self.contract.total_mu[self.name] ** 2
        spent = self._ledger.spent(study)
        # defence: what-is-spent-is-told
        part = 0.0 if cap == math.inf or not self.contract.protects else spent / cap
        # defence: used-blocks-are-told
        return Status(*self._header(), self._ledger.last_block(study), part, self._head(), self.carrier)

    def _head(self) -> bytes:
        """Return the ledger's head, encrypted so that the aggregator can return but not read it."""
        # defence: sealed-heads
        return self._seal.seal(self._ledger.head)

    def _begin(self, begin: Begin) -> bytes:
        with self._state:
            if self._block is None or self._block.begin.block == begin.after:
                return self._first_message(begin)
        # The block in use may have to be discarded.
        # defence: a-block-in-use-is-waited-for
        with self._releasing, self._state:
            return self._first_message(begin)

    def _first_message(self, begin: Begin) -> bytes:
        """Return the first message of a block: of one already held, or of a new one that is created."""
        repeated = next((held.first_message for held in self._blocks() if held.begin == begin), None)
        if repeated is not None:
            return repeated
        staying = next((held for held in self._blocks() if held.begin.block == begin.after), None)
        self._check(begin, staying.unused if staying else [])
        self._keep(staying)
        block = _Block(self, begin)
        self._block, self._next = (staying, block) if begin.ahead else (block, None)
        return block.first_message

    def _keep(self, staying: _Block | None) -> None:
        """Discard all blocks except one, which is then in use."""
        for block in self._blocks():
            if block is not staying:
                block.wipe()
        self._block, self._next = staying, None

    def _go_on(self, question: Sum) -> bytes:
        with self._state:
            for block in self._blocks():
                if block.begin.block == question.block:
                    return block.receive(question.data)
        raise ProtocolError(f"site {self.name} does not hold block {question.block}; a new block is needed")

    def _blocks(self) -> list[_Block]:
        return [block for block in (self._block, self._next) if block is not None]

    def _check(self, begin: Begin, unused: list[SlotPlan]) -> None:
        """Refuse a block that violates the contract, or exceeds the budget together with ``unused`` slots."""
        invited, roster = tuple(begin.invited), self.contract.roster
        if roster.in_order(invited) != invited or self.name not in invited:
            raise ProtocolError(f"site {self.name}: the invited sites are not sites of the roster in order")
        if any(slot.stage >= len(self.contract.stages) for slot in begin.slots):
            raise ProtocolError(f"site {self.name}: a slot belongs to a stage that is not in the contract")
        if sum(self.query(slot).size for slot in begin.slots) > MAX_BLOCK_WORDS:
            raise ProtocolError(f"site {self.name}: a block must not need more than {MAX_BLOCK_WORDS} words")
        last = self._ledger.last_block(self.contract.hash)
        # defence: blocks-only-grow
        if begin.block <= last:
            raise ProtocolError(f"site {self.name} claimed block {begin.block} before: block numbers grow")
        # defence: blocks-far-ahead-site
        if begin.block > last + MAX_AHEAD:
            raise ProtocolError(
                f"site {self.name}: block {begin.block} is far ahead of {last}, the last that it claimed"
            )
        self._check_budget(begin.slots + unused)

    def _check_budget(self, slots: list[SlotPlan]) -> None:
        """Refuse a block at its start rather than later, when other sites would be charged needlessly."""
        fraction = math.fsum(slot.fraction for slot in slots)
        if fraction > 1 + 1e-9:
            raise ProtocolError(f"site {self.name}: unused slots would use more than the whole budget")
        study, planned = self.contract.hash, fraction * self.contract.total_mu[self.name] ** 2
        self._check_approval()
        self._ledger.check_affordable(study, planned * (1 - HEADROOM) if self.contract.protects else math.inf)

    def _check_approval(self) -> None:
        """Refuse if the ledger would allow this study to spend more than its contract."""
        approved, cap = self._ledger.totals().studies.get(self.contract.hash), self.contract.cap(self.name)
        # defence: approval-within-the-contract
        if approved is not None and approved.cap.mu2 > cap.mu2:
            raise InputError(
                f"site {self.name} approved '{self.contract.title}' for {approved.cap}, more than the {cap} "
                "that its contract allows"
            )

    def query(self, slot: SlotPlan) -> Query:
        """Return the query of a slot."""
        return self.contract.stages[slot.stage].query

    # Releases

    def _release(self, ask: Ask) -> bytes:
        query = self._checked_query(ask)
        kind = "sum" if self.contract.mechanism in SITES_ADD_NO_NOISE else "noisy sum"
        summary = Summary(f"{kind} of '{query.label}' over the subjects of this site", query.size)
        place = self.contract.hash, ask.block, 0, ask.slot
        with self._releasing:
            mu, make_message = self._fresh_answer(ask)
            with self._state:
                return self._ledger.release(
                    *place, tuple(ask.participants), ask.hash, mu, make_message, summary
                )

    def _checked_query(self, ask: Ask) -> Query:
        """Return the query of a request; refuse a request that no block can serve."""
        participants = tuple(ask.participants)
        if ask.plan.stage >= len(self.contract.stages):
            raise ProtocolError(f"site {self.name}: a release belongs to a stage that is not in the contract")
        if self.name not in participants or self.contract.roster.in_order(participants) != participants:
            raise ProtocolError(f"site {self.name}: the participants are not sites of the roster in order")
        return self.query(ask.plan)

    def _fresh_answer(self, ask: Ask) -> tuple[float, Callable[[], bytes]]:
        """Return the charge and the function that creates the message, which fails if the mask is gone."""
        with self._state:
            block = self._unused(ask)
            if block is None:
                return 0.0, self._burnt
            plan, published = block.plan(ask), self._published
            if ask.published != self._published_hash:
                raise ProtocolError(
                    f"site {self.name} does not hold the published data that this release refers to"
                )
            if block is self._next:
                self._keep(block)
        total = self._sum_subjects(ask, plan, published)
        head = self._head()

        def make_message() -> bytes:
            words = block.use(ask.slot)
            words += total.view(np.uint64)
            words += self._draw(plan.noise[self.name], plan.query.size).view(np.uint64)
            return encode(
                Answer(*self._header(), ask.block, ask.slot, plan.mu[self.name], head, words.tobytes())
            )

        # defence: infinite-charge
        return plan.mu[self.name] if self.contract.protects else math.inf, make_message

    def _unused(self, ask: Ask) -> _Block | None:
        """Return the block that holds the unused mask of a request, or None."""
        held = [block for block in self._blocks() if block.begin.block == ask.block]
        # defence: slot-of-a-held-block
        return held[0] if held and ask.slot not in held[0].used else None

    def _sum_subjects(self, ask: Ask, plan: ReleasePlan, published: bytes) -> NDArray[np.int64]:
        def vectors() -> Iterable[Vectors]:
            return self._statistics(ask.plan.stage, published, ask.state)

        total, self.n_zero = sum_subjects(vectors, plan, self.name, self.contract.enrolled[self.name])
        # defence: silence-about-scans
        return total

    def _burnt(self) -> bytes:
        raise SlotBurntError(f"site {self.name} no longer holds the mask of this slot; a new block is needed")

    def _draw(self, scale: float, size: int) -> NDArray[np.int64]:
        # defence: noise-of-each-site
        return _gaussian(self._noise, scale, size)

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.contract.title!r})"


class _Block:
    """The masks of one block, in memory only, and the secure sum that publishes their total."""

    def __init__(self, site: Site, begin: Begin) -> None:
        self.begin = begin
        self.used: set[int] = set()
        self._site = site
        self._layout = BlockLayout(site.contract, begin)
        self._sum: SiteSum | None = None
        if site.contract.mechanism == "cape":
            self._masks = self._make_masks(tuple(begin.invited))
            roster, register = site.contract.roster, _Claim(site._ledger, site.contract.hash)
            parameters = SumParameters(begin.hash, roster, self._layout.n_words, begin.block)
            self._sum = SiteSum(parameters, site._identity, site.name, self._masks, register)
            self.first_message = self._sum.start()
        else:
            self._masks, self.first_message = np.zeros(self._layout.n_words, np.uint64), b""
            site._ledger.claim(site.contract.hash, begin.block, 0)

    def _make_masks(self, invited: tuple[str, ...]) -> NDArray[np.uint64]:
        """Draw the masks of all slots: uniform, or Gaussian with the scale planned for the invited sites."""
        site = self._site
        if site.contract.masking == "uniform":
            # defence: uniform-masks
            return site._mask_source.uniform(self._layout.n_words)
        plans = [self._layout.plan(slot, invited) for slot in range(len(self.begin.slots))]
        parts = [_gaussian(site._mask_source, plan.mask[site.name], plan.query.size) for plan in plans]
        return np.concatenate(parts).view(np.uint64)

    @property
    def unused(self) -> list[SlotPlan]:
        """The slots whose masks have not been used."""
        return [plan for slot, plan in enumerate(self.begin.slots) if slot not in self.used]

    def receive(self, data: bytes) -> bytes:
        """Return the site's answer in the secure sum."""
        if self._sum is None:
            raise ProtocolError(f"site {self._site.name}: this mechanism has no secure sum")
        return self._sum.receive(data)

    def plan(self, ask: Ask) -> ReleasePlan:
        """Return the plan of a release; refuse a release for which this block was not prepared."""
        name, participants = self._site.name, tuple(ask.participants)
        # defence: agreed-part-of-the-budget
        if ask.slot >= len(self.begin.slots) or self.begin.slots[ask.slot] != ask.plan:
            raise ProtocolError(
                f"site {name}: slot {ask.slot} of block {ask.block} was not agreed on as it is asked"
            )
        # defence: agreed-participants
        if self._sum is not None and participants != self._sum.survivors:
            raise ProtocolError(f"site {name}: the participants are not those that were agreed on")
        return self._layout.plan(ask.slot, participants)

    def use(self, slot: int) -> NDArray[np.uint64]:
        """Return the mask of a slot, once, and overwrite it."""
        # defence: slot-used-once
        if slot in self.used:
            raise SlotBurntError(f"site {self._site.name}: the mask of slot {slot} serves one message only")
        self.used.add(slot)
        mask = self._masks[self._layout.words(slot)]
        taken = mask.copy()
        # defence: a-mask-is-forgotten-once-used
        mask[:] = 0
        return taken

    def wipe(self) -> None:
        """Overwrite all masks and mark all slots as used."""
        # defence: a-wiped-mask-serves-nothing
        self.used.update(range(len(self.begin.slots)))
        self._masks[:] = 0
        if self._sum is not None:
            self._sum.wipe()


def _gaussian(source: NoiseSource, scale: float, size: int) -> NDArray[np.int64]:
    return source.discrete_gaussian(scale, size) if scale else np.zeros(size, dtype=np.int64)


class _Claim:
    """The ledger as the block register of a secure sum, which is bound to a block and not to the study."""

    def __init__(self, ledger: SiteLedger, study: bytes) -> None:
        self._ledger, self._study = ledger, study

    def claim(self, study_hash: bytes, block: int, attempt: int) -> None:
        self._ledger.claim(self._study, block, attempt)
