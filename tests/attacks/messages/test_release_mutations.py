"""Random, altered and plausible bytes against sites and aggregator, in every state of a study.

Nothing authenticates the aggregator to a site, so many a mutant is a message that a malicious aggregator
might send, and may be obeyed. What must hold whatever arrives: an answer of the protocol and no exception;
one message for one mask, ever; every message recorded and charged first; the cap.
"""

import logging
import random
from collections import Counter
from contextlib import suppress

import msgspec
import pytest

from capedjica.errors import BudgetExceededError, ProtocolError
from capedjica.mechanisms.messages import (
    Answer,
    Refusal,
    Status,
    SumAnswer,
    publication_hash,
    question_hash,
    read_reply,
)
from capedjica.securesum.identity import SIGNATURE_BYTES
from tests.attacks.messages.test_securesum_mutations import mutate
from tests.mechanisms.world import make_data, make_study, reply

DATA = make_data((12, 9, 15, 8), 5)
NAMES = list(DATA)
EXPECTED = {"Status": Status, "SumAnswer": SumAnswer, "Answer": Answer}


def plausible(rng):
    """A value that some field of some message could have."""
    return rng.choice(
        [
            rng.randrange(3),
            rng.randrange(70),
            2**62,
            rng.random(),
            1e-12,
            rng.sample(NAMES, rng.randrange(5)),
            NAMES,
            [[0, rng.random() / 3]] * rng.randrange(1, 5),
            [[0, 10 ** rng.uniform(-323, 0)]],
            [0, 0.2],
            [[0, 0], [1, 1]],
            rng.random() < 0.5,
            b"",
            b"a projection",
            publication_hash(b"a projection"),
            rng.randbytes(128),
        ]
    )


def twist(data, rng):
    """Change one or two fields of a message to what another message could have there."""
    fields = msgspec.msgpack.decode(data)
    for _ in range(rng.choice((1, 1, 2))):
        fields[rng.randrange(3, len(fields))] = plausible(rng)
    return msgspec.msgpack.encode(fields)


def content(letter):
    """The message in a letter, without the signature of an answer."""
    return letter.data if letter.direction == "question" else letter.data[SIGNATURE_BYTES:]


def mutant(genuine, corpus, rng):
    data = rng.choice(genuine if rng.random() < 0.7 else corpus)
    return rng.choice((twist(data, rng), mutate(data, corpus, rng), data))


class Watch:
    """A site under fire, and what an outsider can hold against it."""

    def __init__(self, site, contract):
        self.site, self.contract, self.name = site, contract, site.name
        self.ledger = site._ledger
        self.answers, self.last_block = {}, -1

    def handle(self, data):
        answer = self.site.handle(data)
        said = read_reply(answer, self.contract, self.name, question_hash(data))
        if isinstance(said, Refusal):
            assert said.reason.isprintable()
        if isinstance(said, Answer):
            first = self.answers.setdefault((said.block, said.slot), answer)
            assert first == answer, "two messages under one mask"
        return answer

    def check(self):
        recorded = {(sent.slot.block, sent.slot.slot): sent for sent in self.ledger.outbox()}
        left = {place: data[SIGNATURE_BYTES:] for place, data in self.answers.items()}
        assert {place: sent.message for place, sent in recorded.items()} == left
        for sent in recorded.values():
            mu = msgspec.msgpack.decode(sent.message, type=Answer).mu
            assert sent.mu2 >= mu**2 * (1 - 1e-15)
        assert self.ledger.spent(self.contract.hash) <= self.contract.total_mu[self.name] ** 2
        block = self.ledger.last_block(self.contract.hash)
        assert block >= self.last_block
        self.last_block = block


class Bombardment:
    """One study after the other, its parties under fire before each genuine message."""

    EACH = 12

    def __init__(self, count, seed, **options):
        self.count, self.rng, self.options = count, random.Random(seed), options
        self.fired, self.corpus, self.kinds, self.questions = 0, [], Counter(), {}
        while self.fired < count:
            self.run()

    def run(self):
        self.study = make_study(DATA, count=6, epsilon=9.0, reserve=0.5, **self.options)
        self.corpus = self.corpus[-200:]
        self.watches = {name: Watch(site, self.study.contract) for name, site in self.study.sites.items()}
        self.study.engine.sites, self.study.engine.carrier = self.watches, self.carry
        with suppress(ProtocolError, BudgetExceededError):
            self.study.publish(b"a projection")
            for _ in range(6):
                self.study.mean(0, self.rng.randbytes(3))
        for watch in self.watches.values():
            watch.check()

    def carry(self, letter):
        if letter.direction == "question":
            self.questions[letter.site] = letter.data
        self.corpus.append(content(letter))
        self.fired += self.EACH
        fire = self.at_site if letter.direction == "question" else self.at_aggregator
        for _ in range(self.EACH):
            fire(letter, mutant([content(letter)], self.corpus, self.rng))
        return [letter.data]

    def at_site(self, letter, data):
        answer = self.watches[letter.site].handle(data)
        self.kinds[type(reply(answer)).__name__] += 1
        self.watches[letter.site].check()

    def at_aggregator(self, letter, data):
        """What a site signed, and what somebody else made of a genuine answer."""
        expected = EXPECTED.get(type(reply(letter.data)).__name__, Answer)
        question, answers = self.questions[letter.site], {}
        signed = self.study.sites[letter.site].sign(question_hash(question), data)
        conversation = self.study.aggregator._conversation
        conversation.take(letter.site, question, signed, expected, answers)
        damaged = mutate(letter.data, self.corpus, self.rng)
        for forged in (data, letter.data[:SIGNATURE_BYTES] + data, damaged):
            if forged not in (letter.data, signed):
                forgeries = {}
                conversation.take(letter.site, question, forged, expected, forgeries)
                assert not forgeries


def survive(count, seed, caplog, **options):
    """Fire ``count`` mutants; return how often a site answered them with what."""
    caplog.set_level(logging.ERROR, logger="capedjica-site")
    kinds = Bombardment(count, seed, **options).kinds
    assert not [record for record in caplog.records if record.message == "unexpected error"]
    return kinds


@pytest.mark.parametrize("mask", ["uniform", "paper"])
def test_ten_thousand_mutants_get_no_second_message_and_nothing_uncharged(mask, caplog):
    kinds = survive(10_000, 1, caplog, masking=mask)
    assert min(kinds[kind] for kind in ("Status", "SumAnswer", "Answer", "Refusal")) > 0


def test_mutants_where_there_is_no_secure_sum(caplog):
    kinds = survive(5_000, 2, caplog, mechanism="conventional")
    assert min(kinds[kind] for kind in ("Status", "SumAnswer", "Answer", "Refusal")) > 0


@pytest.mark.full
@pytest.mark.parametrize("mask", ["uniform", "paper"])
@pytest.mark.parametrize("seed", range(10, 13))
def test_a_hundred_thousand_mutants_get_no_second_message_and_nothing_uncharged(seed, mask, caplog):
    survive(100_000, seed, caplog, masking=mask)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_through_a_wire_that_damages_everything_now_and_then(seed):
    """One letter in 40 is replaced by a mutant: a result or an error of the product, in the end."""
    rng = random.Random(seed)
    study = make_study(DATA, count=4, epsilon=9.0, reserve=0.5)
    corpus = []

    def carrier(letter):
        corpus.append(content(letter))
        return [mutant([content(letter)], corpus, rng) if rng.random() < 1 / 40 else letter.data]

    study.engine.carrier = carrier
    with suppress(ProtocolError, BudgetExceededError):
        for _ in range(4):
            study.mean(0)
    for name, site in study.sites.items():
        assert site._ledger.spent(study.contract.hash) <= study.contract.total_mu[name] ** 2


def test_the_watch_notices_a_second_message_under_one_mask():
    """The control: a ledger that forgets lets the site answer twice, and the watch sees it."""
    study = make_study(DATA, count=6, epsilon=9.0)
    watch = Watch(study.sites["s0"], study.contract)
    study.engine.sites = {**study.sites, "s0": watch}
    asks = []
    study.engine.carrier = lambda letter: asks.append(content(letter)) or [letter.data]
    study.mean(0)
    ask = next(data for data in reversed(asks) if msgspec.msgpack.decode(data)[0] == "Ask")
    books = watch.ledger._chain.books
    books.releases.clear()
    watch.ledger._touched.clear()
    watch.site._block.used.clear()
    with pytest.raises(AssertionError, match="two messages under one mask"):
        watch.handle(twist_state(ask))


def twist_state(ask):
    fields = msgspec.msgpack.decode(ask)
    fields[-1] = b"another state"
    return msgspec.msgpack.encode(fields)
