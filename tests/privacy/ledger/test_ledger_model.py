"""The ledger against a model of twenty lines, over random lives of a site: restarts and crashes included."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capedjica.errors import BudgetExceededError, ProtocolError
from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Ledger, NotApprovedError, Policy, SlotBurntError, SlotUsedError
from tests.privacy.ledger.ledger_site import DELTA, SITES, Site, ask, digest, refuse_to_make

STUDIES = [digest("one"), digest("two")]
CAP = Cap(1.0, DELTA)
TOTAL = Cap(1.3, DELTA)

studies = st.sampled_from(STUDIES)
small = st.integers(0, 2)
# Powers of two: their squares are exact, so the model's sums are exact too.
mus = st.sampled_from([2.0**-k for k in range(2, 6)])


class SiteLife(RuleBasedStateMachine):
    """A site's ledger, and what it should be: messages, charges, owners of blocks, burnt slots."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.site = Site(self.directory)
        self.life = 0
        self.messages: dict[tuple, tuple[bytes, bytes, tuple]] = {}
        self.charges: dict[bytes, list[Fraction]] = {}
        self.owners: dict[tuple, int] = {}
        self.burnt: set[tuple] = set()
        self.revoked: set[bytes] = set()
        self.aborted: set[tuple] = set()
        self.lagging_head: bytes | None = None
        self.ledger: Ledger
        self.start()

    def start(self) -> None:
        self.ledger = self.site.open(policy=Policy(total=TOTAL, per_study=CAP))

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.directory)

    @initialize()
    def approve_first(self) -> None:
        self.approve(STUDIES[0])

    @rule(study=studies)
    def approve(self, study: bytes) -> None:
        if study in self.revoked:
            with pytest.raises(NotApprovedError):
                self.ledger.register_study(study, "A study", CAP)
        else:
            self.ledger.register_study(study, "A study", CAP)
            self.charges.setdefault(study, [])

    @rule(study=studies, block=small, attempt=small)
    def claim(self, study: bytes, block: int, attempt: int) -> None:
        earlier = [key[1:] for key in self.owners if key[0] == study]
        if (
            study not in self.charges
            or study in self.revoked
            or (block, attempt) <= max(earlier, default=(-1, -1))
        ):
            with pytest.raises(ProtocolError):
                self.ledger.claim(study, block, attempt)
        else:
            self.ledger.claim(study, block, attempt)
            self.owners[study, block, attempt] = self.life

    def expected(
        self, slot: tuple, request: bytes, names: tuple, mu: float
    ) -> type[Exception] | bytes | None:
        study = slot[0]
        if study not in self.charges or study in self.revoked:
            return NotApprovedError
        if slot in self.messages:
            message, *asked = self.messages[slot]
            return message if asked == [request, names] else SlotUsedError
        if slot[:3] not in self.owners:
            return ProtocolError
        if slot in self.burnt or self.owners[slot[:3]] != self.life:
            return SlotBurntError
        spent, everything = sum(self.charges[study]), sum(map(sum, self.charges.values()))
        over = spent + Fraction(mu) ** 2 > CAP.mu2 or everything + Fraction(mu) ** 2 > TOTAL.mu2
        return BudgetExceededError if over else None

    @rule(
        study=studies, block=small, attempt=small, place=small, query=small, n=st.integers(1, 2), mu=mus,
        fails=st.booleans(),
    )  # fmt: skip
    def release(self, study, block, attempt, place, query, n, mu, fails) -> None:
        slot, request, names = (study, block, attempt, place), digest(f"query {query}"), SITES[:n]
        expected = self.expected(slot, request, names, mu)
        call = {"study": study, "block": block, "attempt": attempt, "participants": names, "mu": mu}
        call |= {"request_hash": request, "make_message": refuse_to_make}
        if isinstance(expected, bytes):
            assert ask(self.ledger, place, **call) == expected
        elif expected is not None:
            with pytest.raises(expected):
                ask(self.ledger, place, **call)
        elif fails:
            with pytest.raises(AssertionError, match="make_message"):
                ask(self.ledger, place, **call)
            self.burnt.add(slot)
        else:
            message = ask(self.ledger, place, **call | {"make_message": lambda: os.urandom(12)})
            self.messages[slot] = (message, request, names)
            self.charges[study].append(Fraction(mu) ** 2)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def repeat(self, data) -> None:
        slot = data.draw(st.sampled_from(sorted(self.messages)))
        message, request, names = self.messages[slot]
        study, block, attempt, place = slot
        call = {"study": study, "block": block, "attempt": attempt, "participants": names, "mu": 0.5}
        call |= {"request_hash": request, "make_message": refuse_to_make}
        if study in self.revoked:
            with pytest.raises(NotApprovedError):
                ask(self.ledger, place, **call)
        else:
            assert ask(self.ledger, place, **call) == message

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def abort(self, data) -> None:
        slot = data.draw(st.sampled_from(sorted(self.messages)))
        self.ledger.record_abort(*slot, "a site vanished")
        self.aborted.add(slot)

    @precondition(lambda self: len(self.messages) > 4)
    @rule(study=studies)
    def revoke(self, study: bytes) -> None:
        if study in self.charges and study not in self.revoked:
            self.ledger.revoke(study, "no longer wanted")
            self.revoked.add(study)

    @rule(head_lags=st.booleans())
    def restart(self, head_lags: bool) -> None:
        """Start again; where the head lags, the process died between its last record and its head."""
        if head_lags and self.lagging_head is not None:
            self.site.head_path.write_bytes(self.lagging_head)
        self.lagging_head = self.ledger.head
        self.ledger.close()
        self.life += 1
        self.start()

    @invariant()
    def books_agree(self) -> None:
        totals = self.ledger.totals()
        for study, charges in self.charges.items():
            assert Fraction(totals.studies[study].mu2) == sum(charges)
            assert totals.studies[study].n_releases == len(charges)
            assert totals.studies[study].epsilon <= CAP.epsilon * (1 + 1e-12)
        assert Fraction(totals.overall.mu2) == sum(map(sum, self.charges.values()))
        assert totals.overall.n_aborted == len(self.aborted)
        assert math.isclose(totals.overall.cap.mu2, TOTAL.mu2)

    @invariant()
    def outbox_agrees(self) -> None:
        outbox = {tuple(item.slot): item.message for item in self.ledger.outbox()}
        assert outbox == {slot: message for slot, (message, *_) in self.messages.items()}
        self.ledger.verify_chain()


UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
TestSiteLife = SiteLife.TestCase
TestSiteLife.settings = settings(max_examples=30, stateful_step_count=30, **UNHURRIED)


@pytest.mark.full
class TestLongSiteLife(SiteLife.TestCase):
    settings = settings(max_examples=400, stateful_step_count=60, **UNHURRIED)
