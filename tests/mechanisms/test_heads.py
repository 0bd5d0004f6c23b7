"""The head that leaves with every answer: the site reads it when it comes back, and nobody else ever."""

import struct

import pytest

from capedjica.mechanisms.messages import (
    VERSION,
    Answer,
    Begin,
    Refusal,
    SlotPlan,
    Status,
    Sum,
    SumAnswer,
    encode,
)
from capedjica.privacy.ledger.head import HEAD_BYTES
from tests.mechanisms.consortium import DATA, Consortium, reply
from tests.mechanisms.world import hello

SEALED_BYTES = HEAD_BYTES + 12 + 16


@pytest.fixture
def consortium(tmp_path):
    with Consortium(tmp_path) as made:
        yield made


def greet(consortium, name, head=b""):
    return reply(consortium.sites[name].handle(hello(consortium.contract, head=head)))


def parts(head):
    """What a head is made of: the ledger's name, the number and the hash of its last entry, a signature."""
    return [head[8:24], head[24:32], head[32:64], head[64:]]


def test_what_happens_at_a_site_besides_is_not_in_what_it_sends(consortium):
    """Some notes more between two releases: the messages have the same shape and nothing of the ledger."""
    ledger, heads = consortium.ledgers["s0"], []
    for _ in range(3):
        heads.append(ledger.head)
        consortium.aggregator.mean(0)
        heads.append(ledger.head)
        ledger.note("a participant withdrew consent")
        heads.append(ledger.head)
        consortium.aggregator.publish(b"")
    sent = [answers["s0"] for _, answers in consortium.calls if "s0" in answers]
    told = [message for message in map(reply, sent) if isinstance(message, Status | Answer)]
    assert {type(message) for message in told} == {Status, Answer}
    assert {len(message.head) for message in told} == {SEALED_BYTES}
    known = {part for head in heads for part in parts(head)}
    assert struct.pack(">Q", len(ledger.entries())) in known
    # By chance eight given bytes are in these with odds below 1e-14.
    assert not [part for part in known for message in told if part in message.head]


def test_twice_the_same_head_looks_like_two(consortium):
    first, second = (greet(consortium, "s0").head for _ in range(2))
    assert first[:12] != second[:12]
    assert first[12:28] != second[12:28]


def test_a_head_comes_back_to_its_site_only(consortium, tmp_path):
    (tmp_path / "other").mkdir()
    head = greet(consortium, "s0").head
    assert isinstance(greet(consortium, "s0", head), Status)
    consortium.start("s0")
    assert isinstance(greet(consortium, "s0", head), Status)
    assert isinstance(greet(consortium, "s1", head), Refusal)
    with Consortium(tmp_path / "other", epsilon=4.0) as other:
        other.identities["s0"] = consortium.identities["s0"]
        other.ledgers["s0"], other.open_ledger = consortium.ledgers["s0"], consortium.open_ledger
        other.start("s0")
        consortium.ledgers["s0"] = other.ledgers["s0"]
        assert isinstance(greet(other, "s0"), Status)
        assert isinstance(greet(other, "s0", head), Refusal)


def test_a_head_that_was_not_sealed_by_the_site_is_refused(consortium, caplog):
    head = greet(consortium, "s0").head
    bent = [bytes([*head[:place], head[place] ^ 1, *head[place + 1 :]]) for place in range(len(head))]
    plain = consortium.ledgers["s0"].head
    for wrong in [*bent, head[:-1], head + b"\0", head[:12], head[:5], b"\0", plain]:
        refused = greet(consortium, "s0", wrong)
        assert isinstance(refused, Refusal)
        assert refused.reason == "site s0 cannot answer; its own log says why"
    assert "the head that came back was not sealed by this site in this study" in caplog.text
    assert isinstance(greet(consortium, "s0", head), Status)


def test_no_round_of_a_secure_sum_is_answered_after_the_approval_was_revoked(consortium):
    """Not the rounds, nor the invitation again, although all that they need is in memory."""
    site, contract = consortium.sites["s0"], consortium.contract
    consortium.aggregator.mean(0)
    ask, _ = consortium.last_ask()
    begin = encode(Begin(VERSION, contract.hash, 2, list(DATA), [SlotPlan(0, 0.1)]))
    first = site.handle(begin)
    assert isinstance(reply(first), SumAnswer)
    assert site.handle(begin) == first
    consortium.ledgers["s0"].revoke(contract.hash, "the board said so")
    go_on = encode(Sum(VERSION, contract.hash, 2, b"the next round"))
    for question in (begin, go_on, hello(contract), ask):
        refused = reply(site.handle(question))
        assert isinstance(refused, Refusal)
        assert refused.reason == "the approval of study 'once' was revoked at this site; nothing was sent"
