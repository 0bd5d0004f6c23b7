"""What the aggregator refuses, and that one bad site does not stop the others."""

import dataclasses

import msgspec
import numpy as np
import pytest

from capedjica.errors import ProtocolError
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.commitments import share_commitment
from capedjica.securesum.messages import (
    Advertisement,
    Agreement,
    MaskedInput,
    SharedKeys,
    Unmasking,
    encode_payload,
    read_site_message,
    sign,
)
from capedjica.securesum.shamir import evaluate
from tests.attacks.messages.party_state import aggregator_state
from tests.securesum.consortium import Consortium, carry

KINDS = [Advertisement, SharedKeys, MaskedInput, Agreement, Unmasking]


class Waiting:
    """An aggregator that waits for the answers of a given round (1 to 5), with the honest answers at hand."""

    def __init__(self, rounds, n_sites=5, lost=()):
        self.consortium = Consortium(n_sites)
        self.sites = self.consortium.sites()
        self.aggregator = AggregatorSum(self.parameters)
        if rounds == 1:
            self.answers = {name: site.start() for name, site in self.sites.items()}
        else:
            self.answers = carry(self.sites, self.aggregator, dict(lost), up_to=rounds - 1)
        self.kind = KINDS[rounds - 1]
        self.name = next(iter(self.answers))

    @property
    def parameters(self):
        return self.consortium.parameters

    def read(self, name):
        return read_site_message(self.answers[name], self.parameters, self.kind)

    def altered(self, name=None, **changes):
        """A message that the site itself altered and signed."""
        name = name or self.name
        message = msgspec.structs.replace(self.read(name), **changes)
        return sign(encode_payload(message), self.consortium.identities[name])

    def refuses(self, data, named):
        aggregator = self.aggregator
        before = aggregator_state(aggregator)
        with pytest.raises(ProtocolError, match=named):
            aggregator.receive(data)
        assert aggregator_state(aggregator) == before

    def finish(self, without=()):
        """Deliver the honest answers of all others, and go on to the end."""
        answers = {name: data for name, data in self.answers.items() if name not in without}
        while not self.aggregator.done:
            for data in answers.values():
                self.aggregator.receive(data)
            messages = self.aggregator.advance()
            answers = {name: self.sites[name].receive(data) for name, data in messages.items()}
        survivors = self.aggregator.survivors
        np.testing.assert_array_equal(self.aggregator.result, self.consortium.expected(survivors))
        return survivors


@pytest.mark.parametrize("rounds", range(1, 6))
def test_messages_of_other_rounds_attempts_and_senders_are_refused(rounds):
    waiting = Waiting(rounds)
    waiting.refuses(waiting.altered(roster_hash=bytes(32)), "another roster hash")
    waiting.refuses(waiting.altered(attempt=1), "another attempt")
    waiting.refuses(waiting.altered(block=1), "another block")
    waiting.refuses(waiting.altered(version=2), "another version")
    waiting.refuses(waiting.altered(study_hash=bytes(32)), "another study hash")
    waiting.refuses(waiting.altered(sender="nobody"), "no site 'nobody'")
    waiting.refuses(waiting.altered(sender=waiting.consortium.names[1]), "not signed")
    waiting.refuses(waiting.answers[waiting.name][:-1], "cannot be read|not signed")
    assert waiting.finish() == waiting.consortium.names


@pytest.mark.parametrize("rounds", range(1, 6))
def test_a_second_answer_is_refused_and_the_first_stands(rounds):
    waiting = Waiting(rounds)
    first = waiting.answers.pop(waiting.name)
    waiting.aggregator.receive(first)
    waiting.refuses(first, "already answered this round")
    waiting.finish()


@pytest.mark.parametrize("rounds", range(2, 6))
def test_an_earlier_rounds_answer_is_refused(rounds):
    waiting = Waiting(rounds)
    fields = (b"\x01" * 32, b"\x02" * 32)
    message = Advertisement(*msgspec.structs.astuple(waiting.read(waiting.name))[:6], *fields)
    data = sign(encode_payload(message), waiting.consortium.identities[waiting.name])
    waiting.refuses(data, f"sent Advertisement in the round of {waiting.kind.__name__}")
    waiting.finish()


def test_a_later_rounds_answer_is_refused():
    waiting = Waiting(3)
    early = waiting.aggregator
    answers = dict(waiting.answers)
    for data in answers.values():
        early.receive(data)
    messages = early.advance()
    agreement = waiting.sites[waiting.name].receive(messages[waiting.name])
    fresh = AggregatorSum(waiting.parameters)
    with pytest.raises(ProtocolError, match="sent Agreement in the round of Advertisement"):
        fresh.receive(agreement)


def test_a_site_that_missed_a_round_stays_out():
    waiting = Waiting(2)
    late = waiting.answers.pop("site-004")
    for data in waiting.answers.values():
        waiting.aggregator.receive(data)
    waiting.aggregator.advance()
    with pytest.raises(ProtocolError, match="sent SharedKeys in the round of MaskedInput"):
        waiting.aggregator.receive(late)
    data = sign(
        encode_payload(
            MaskedInput(
                *msgspec.structs.astuple(waiting.read("site-000"))[:5], "site-004", memoryview(bytes(24))
            )
        ),
        waiting.consortium.identities["site-004"],
    )
    with pytest.raises(ProtocolError, match="site-004 is excluded from this sum"):
        waiting.aggregator.receive(data)


def test_bad_keys_exclude_only_their_owner():
    waiting = Waiting(1)
    bad = waiting.consortium.names[4]
    good = waiting.read("site-000")
    for name in ("site-000", "site-001"):
        waiting.aggregator.receive(waiting.answers.pop(name))
    waiting.refuses(waiting.altered(bad, mask_key=bytes(32)), f"site {bad} advertised a public key")
    waiting.refuses(waiting.altered(bad, channel_key=(1).to_bytes(32, "little")), "no secret can be agreed")
    waiting.refuses(waiting.altered(bad, mask_key=good.mask_key), "advertised the same public key")
    waiting.refuses(waiting.altered(bad, mask_key=waiting.read(bad).channel_key), "the same public key")
    assert waiting.finish(without={bad}) == waiting.consortium.names[:4]


def test_bad_deals_exclude_only_their_dealer():
    waiting = Waiting(2)
    bad = waiting.consortium.names[4]
    deal = waiting.read(bad)
    for field in ("envelopes", "seed_share_commitments", "key_share_commitments"):
        value = dict(getattr(deal, field))
        first = next(iter(value))
        content = value.pop(first)
        waiting.refuses(
            waiting.altered(bad, **{field: value}),
            f"for different sites than requested; the sets differ in: {first}",
        )
        waiting.refuses(
            waiting.altered(bad, **{field: {**value, first: content, "nobody": content}}), "nobody"
        )
    assert waiting.finish(without={bad}) == waiting.consortium.names[:4]


def test_a_masked_input_of_the_wrong_length_excludes_only_its_sender():
    waiting = Waiting(3)
    for size in (0, 16, 23, 25, 32):
        waiting.refuses(waiting.altered(words=memoryview(bytes(size))), f"has {size} bytes, expected 24")
    assert waiting.finish(without={waiting.name}) == waiting.consortium.names[1:]


def test_a_wrong_agreement_excludes_only_its_sender():
    waiting = Waiting(4)
    wrong = waiting.altered(survivors_hash=bytes(32))
    waiting.refuses(wrong, "agreed on different survivors than it was sent")
    assert waiting.finish(without={waiting.name}) == waiting.consortium.names


def test_shares_for_other_sites_than_asked_are_refused():
    waiting = Waiting(5, lost={"site-004": 3})
    unmasking = waiting.read(waiting.name)
    both = {**unmasking.seed_shares, **unmasking.key_shares}
    waiting.refuses(waiting.altered(seed_shares=both), "shares of seeds for different sites than requested")
    waiting.refuses(waiting.altered(key_shares=both), "shares of keys for different sites than requested")
    waiting.refuses(waiting.altered(key_shares={}), "site-004")
    waiting.finish()


def wrong_shares(waiting, name):
    """An answer in which every share is off by one bit."""
    message = waiting.read(name)

    def spoil(shares):
        return {dealer: share[:-1] + bytes([share[-1] ^ 1]) for dealer, share in shares.items()}

    return waiting.altered(name, seed_shares=spoil(message.seed_shares), key_shares=spoil(message.key_shares))


def test_wrong_shares_are_left_aside():
    """Seven sites, t = 5: with all answering, any two may lie in everything they return."""
    waiting = Waiting(5, n_sites=7)
    for name in ("site-000", "site-003"):
        waiting.answers[name] = wrong_shares(waiting, name)
    assert waiting.finish() == waiting.consortium.names


def test_wrong_shares_of_a_lost_sites_key_are_left_aside():
    waiting = Waiting(5, n_sites=7, lost={"site-001": 3})
    waiting.answers["site-006"] = wrong_shares(waiting, "site-006")
    waiting.finish()


def test_too_many_wrong_shares_are_noticed_and_their_senders_named():
    waiting = Waiting(5, n_sites=7)
    liars = ("site-000", "site-003")
    late = waiting.answers.pop("site-001")
    for name, data in waiting.answers.items():
        waiting.aggregator.receive(wrong_shares(waiting, name) if name in liars else data)
    with pytest.raises(
        ProtocolError, match="the seed of site site-000 cannot be recovered: got 4 valid shares, 5 are needed"
    ):
        waiting.aggregator.advance()
    with pytest.raises(ProtocolError, match=r"came from: site-000, site-003$"):
        waiting.aggregator.advance()
    waiting.aggregator.receive(late)
    waiting.aggregator.advance()
    np.testing.assert_array_equal(
        waiting.aggregator.result, waiting.consortium.expected(waiting.consortium.names)
    )


@pytest.mark.parametrize("value", [5, 2**256 + 296])
def test_a_dealer_that_committed_to_another_secret_is_named(value):
    """The dealer's shares are consistent with its commitments, but not with its seed or key."""
    for lost, kind in (((), "seed"), ({"site-000": 3}, "key")):
        waiting = Waiting(5, lost=lost)
        aggregator, dealer = waiting.aggregator, "site-000"
        forged = evaluate([value, 1, 2, 3], range(1, 6))
        points = waiting.parameters.roster.points
        commitments = {
            holder: share_commitment(waiting.parameters, kind, dealer, holder, forged[points[holder]])
            for holder in waiting.consortium.names
        }
        field = f"{kind}_share_commitments"
        aggregator._deals[dealer] = msgspec.structs.replace(aggregator._deals[dealer], **{field: commitments})
        for name in waiting.answers:
            field = f"{kind}_shares"
            shares = {**getattr(waiting.read(name), field), dealer: forged[points[name]]}
            aggregator.receive(waiting.altered(name, **{field: shares}))
        with pytest.raises(ProtocolError, match=f"site {dealer} dealt shares of a different {kind}"):
            aggregator.advance()


def test_nothing_is_taken_or_closed_after_the_end():
    waiting = Waiting(5)
    answers = dict(waiting.answers)
    waiting.finish()
    assert waiting.aggregator.done
    with pytest.raises(ProtocolError, match="no more messages"):
        waiting.aggregator.receive(answers[waiting.name])
    with pytest.raises(ProtocolError, match="no round to close"):
        waiting.aggregator.advance()


def test_parameters_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Consortium(2).parameters.block = 3
