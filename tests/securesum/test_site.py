"""What a site refuses, and that a refusal leaves it able to go on."""

import copy
import inspect
import os
import pickle
import secrets
import threading

import msgspec
import numpy as np
import pytest

from benchmarks.sum_in_process import MemoryBlockRegister
from capedjica.errors import InputError, ProtocolError
from capedjica.securesum import shamir
from capedjica.securesum import site as site_module
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.identity import AGGREGATOR, Identity
from capedjica.securesum.messages import (
    Advertisement,
    Agreement,
    AgreementList,
    KeyList,
    ShareList,
    SurvivorList,
    Unmasking,
    encode,
    encode_payload,
    header,
    read_aggregator_message,
    read_site_message,
    sign,
)
from capedjica.securesum.site import SiteSum
from tests.securesum.consortium import Consortium, carry

KINDS = [KeyList, ShareList, SurvivorList, AgreementList]


class Halfway:
    """A site that waits for the request of a given round (1 to 4), with the honest request at hand."""

    def __init__(self, rounds, n_sites=5, lost=()):
        self.consortium = Consortium(n_sites)
        self.sites = self.consortium.sites()
        self.aggregator = AggregatorSum(self.consortium.parameters)
        for data in carry(self.sites, self.aggregator, dict(lost), up_to=rounds - 1).values():
            self.aggregator.receive(data)
        self.requests = self.aggregator.advance()
        self.name, self.request = next(iter(self.requests.items()))
        self.site = self.sites[self.name]
        self.message = read_aggregator_message(self.request, self.parameters, KINDS[rounds - 1])

    @property
    def parameters(self):
        return self.consortium.parameters

    def altered(self, **changes):
        return encode(msgspec.structs.replace(self.message, **changes))

    def refuses(self, data, named):
        """Refused with the right words; and the right request is answered afterwards."""
        before = repr(self.site)
        with pytest.raises(ProtocolError, match=named):
            self.site.receive(data)
        assert repr(self.site) == before

    def accepts(self):
        assert self.site.receive(self.request)


def signed(consortium, name, kind, *fields, parameters=None):
    message = kind(*header(parameters or consortium.parameters, name), *fields)
    return sign(encode_payload(message), consortium.identities[name])


# Before the first message


def test_a_site_needs_its_pinned_identity_and_a_fitting_vector():
    consortium = Consortium(3)
    name, register = consortium.names[0], MemoryBlockRegister()
    identity, vector = consortium.identities[name], consortium.vectors[name]

    def refused(named, identity=identity, name=name, vector=vector):
        with pytest.raises(InputError, match=named):
            SiteSum(consortium.parameters, identity, name, vector, register)

    refused("not in the roster", name="nobody")
    refused("not the one pinned", identity=Identity.generate())
    refused("not the one pinned", name=consortium.names[1])
    refused(r"3 words of type uint64, got shape \(2,\)", vector=vector[:2])
    refused("type float64", vector=vector.astype(float))
    refused("type int64", vector=vector.view(np.int64))
    refused(r"shape \(3, 1\)", vector=vector[:, None])


def test_no_message_before_the_start():
    with pytest.raises(ProtocolError, match="not running"):
        Consortium(3).site("site-000").receive(b"")


def test_nothing_leaves_unless_the_block_is_claimed():
    consortium = Consortium(3)
    name = consortium.names[0]
    consortium.site(name).start()
    again = consortium.site(name)
    with pytest.raises(ProtocolError, match="only grow"):
        again.start()
    with pytest.raises(ProtocolError, match="not running"):
        again.receive(b"")


def test_start_repeats_its_bytes_until_it_is_answered():
    halfway = Halfway(1)
    assert halfway.site.start() == halfway.site.start()
    halfway.accepts()
    with pytest.raises(ProtocolError, match="already started this sum"):
        halfway.site.start()


def test_secrets_come_from_the_operating_system_unless_a_vector_is_made():
    for function in (SiteSum, shamir.split):
        assert inspect.signature(function).parameters["random_bytes"].default is secrets.token_bytes


# Round 1: the list of keys


def test_keys_forged_replayed_or_altered_are_refused():
    halfway = Halfway(1)
    consortium, ads = halfway.consortium, halfway.message.advertisements
    victim = consortium.names[1]
    old = signed(
        consortium, victim, Advertisement, b"\x01" * 32, b"\x02" * 32, parameters=other_block(consortium)
    )
    forged = bytearray(ads[1])
    forged[-1] ^= 1
    stranger = signed(
        Consortium(5), victim, Advertisement, b"\x01" * 32, b"\x02" * 32, parameters=halfway.parameters
    )
    own = signed(consortium, halfway.name, Advertisement, b"\x01" * 32, b"\x02" * 32)
    for wrong, named in [
        (old, "another block"),
        (bytes(forged), "not signed by that site's pinned key"),
        (stranger, "not signed by that site's pinned key"),
        (ads[1][:-64], "cannot be read|not signed"),
        (b"", "too short"),
    ]:
        halfway.refuses(halfway.altered(advertisements=(ads[0], wrong, *ads[2:])), named)
    halfway.refuses(halfway.altered(advertisements=(own, *ads[1:])), "not those it advertised")
    halfway.refuses(halfway.altered(advertisements=(*ads, ads[1])), "listed twice")
    halfway.refuses(halfway.altered(advertisements=ads[1:]), ": excluded")
    halfway.refuses(halfway.altered(advertisements=ads[:3]), "only 3 sites advertised keys, 4 are needed")
    halfway.refuses(halfway.altered(advertisements=()), "excluded")
    halfway.accepts()


def other_block(consortium):
    other = copy.copy(consortium)
    other.next_attempt(blocks=1)
    return other.parameters


def test_a_public_key_used_twice_is_refused():
    halfway = Halfway(1)
    consortium, ads = halfway.consortium, halfway.message.advertisements
    own, peer, third = (read_site_message(ad, halfway.parameters, Advertisement) for ad in ads[:3])
    for keys, named in [
        ((own.channel_key, third.mask_key), "same public key"),
        ((third.channel_key, own.mask_key), "same public key"),
        ((third.channel_key, own.channel_key), "same public key"),
        ((peer.channel_key, peer.mask_key), "same public key"),
        ((third.mask_key, third.mask_key), "same public key"),
    ]:
        copied = signed(consortium, third.sender, Advertisement, *keys)
        halfway.refuses(halfway.altered(advertisements=(*ads[:2], copied, *ads[3:])), named)
    halfway.accepts()


def test_a_key_of_low_order_is_refused_and_its_owner_named():
    halfway = Halfway(1)
    ads, third = halfway.message.advertisements, halfway.consortium.names[2]
    weak = signed(halfway.consortium, third, Advertisement, bytes(32), b"\x02" * 32)
    halfway.refuses(halfway.altered(advertisements=(*ads[:2], weak, *ads[3:])), f"site {third} advertised")
    halfway.accepts()


# Round 2: the shares


def test_shares_altered_misdirected_or_from_strangers_are_refused():
    halfway = Halfway(2, lost={"site-004": 2})
    envelopes = halfway.message.envelopes
    a, b = list(envelopes)[:2]
    flipped = bytes([envelopes[a][0] ^ 1]) + envelopes[a][1:]
    other = read_aggregator_message(halfway.requests[a], halfway.parameters, ShareList).envelopes
    for wrong, named in [
        ({**envelopes, a: flipped}, f"shares of site {a} for site {halfway.name} do not open"),
        ({**envelopes, a: envelopes[b]}, "do not open"),
        ({**envelopes, b: other[b]}, "do not open"),
        ({**envelopes, "site-004": bytes(82)}, "do not open"),
        ({**envelopes, halfway.name: bytes(82)}, "dealt itself"),
        ({**envelopes, "nobody": bytes(82)}, "cannot accept that nobody dealt shares"),
        ({a: envelopes[a], b: envelopes[b]}, "only 3 sites dealt shares, 4 are needed"),
        ({}, "only 1 sites"),
        ({**envelopes, a: bytes(81)}, "cannot be read"),
    ]:
        halfway.refuses(halfway.altered(envelopes=wrong), named)
    halfway.accepts()


def test_shares_of_another_attempt_do_not_open():
    halfway = Halfway(2)
    halfway.consortium.next_attempt()
    sites, aggregator = halfway.consortium.sites(), AggregatorSum(halfway.parameters)
    for data in carry(sites, aggregator, up_to=1).values():
        aggregator.receive(data)
    later = read_aggregator_message(aggregator.advance()[halfway.name], halfway.parameters, ShareList)
    halfway.refuses(encode(later), "another attempt")
    halfway.refuses(halfway.altered(envelopes=later.envelopes), "do not open")
    halfway.accepts()


# Round 3: the survivors


def test_lists_of_survivors_that_cannot_be_true_are_refused():
    halfway = Halfway(3, lost={"site-004": 2})
    alive = halfway.message.survivors
    for wrong, named in [
        (alive[1:], "site-000 is not among the sites listed as having sent a masked input"),
        (alive[:3], "only 3 sites sent a masked input, 4 are needed"),
        ((*alive, "site-004"), "cannot accept that site-004 sent a masked input"),
        ((*alive, "nobody"), "cannot accept that nobody"),
        ((*alive, alive[0]), "twice"),
        ((), "not among"),
    ]:
        halfway.refuses(halfway.altered(survivors=wrong), named)
    halfway.accepts()


def test_a_refusal_stays_short_however_long_the_lie():
    consortium = Consortium(3, length=50_000)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    for data in carry(sites, aggregator, up_to=2).values():
        aggregator.receive(data)
    aggregator.advance()
    lie = (*consortium.names, *(f"stranger-{i}" for i in range(20_000)))
    with pytest.raises(ProtocolError, match="and 19990 more") as caught:
        sites["site-000"].receive(encode(SurvivorList(*header(consortium.parameters, AGGREGATOR), lie)))
    assert len(str(caught.value)) < 400


def test_a_second_list_of_survivors_is_refused():
    """A server that calls a site dead after it called it alive, to the same site."""
    halfway = Halfway(3)
    halfway.accepts()
    halfway.refuses(
        halfway.altered(survivors=halfway.message.survivors[:4]), "SurvivorList in the round of AgreementList"
    )


# Round 4: the agreements


def test_a_site_called_dead_to_one_and_alive_to_another_stops_the_unmasking():
    consortium = Consortium(5)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    for data in carry(sites, aggregator, up_to=2).values():
        aggregator.receive(data)
    requests = aggregator.advance()
    message = read_aggregator_message(requests["site-000"], consortium.parameters, SurvivorList)
    without = encode(msgspec.structs.replace(message, survivors=message.survivors[:4]))
    told = {name: without if name in ("site-000", "site-001") else data for name, data in requests.items()}
    agreements = {name: sites[name].receive(data) for name, data in told.items()}
    everything = encode(AgreementList(*header(consortium.parameters, AGGREGATOR), tuple(agreements.values())))
    for name in consortium.names:
        with pytest.raises(ProtocolError, match="were told of different survivors"):
            sites[name].receive(everything)
        like_minded = tuple(agreements[peer] for peer in consortium.names if told[peer] == told[name])
        with pytest.raises(ProtocolError, match="agreed on the survivors, 4 are needed"):
            sites[name].receive(
                encode(AgreementList(*header(consortium.parameters, AGGREGATOR), like_minded))
            )


def test_agreements_forged_repeated_or_too_few_are_refused():
    halfway = Halfway(4, lost={"site-004": 3})
    consortium, agreements = halfway.consortium, halfway.message.agreements
    agreed = read_site_message(agreements[0], halfway.parameters, Agreement).survivors_hash
    dead = signed(consortium, "site-004", Agreement, agreed)
    old = signed(consortium, "site-001", Agreement, agreed, parameters=other_block(consortium))
    forged = signed(Consortium(5), "site-001", Agreement, agreed, parameters=halfway.parameters)
    for wrong, named in [
        (agreements[:3], "only 3 sites agreed"),
        ((*agreements[:3], agreements[0]), "listed twice"),
        ((*agreements[:3], dead), "cannot accept that site-004 agreed"),
        ((agreements[0], old, *agreements[2:]), "another block"),
        ((agreements[0], forged, *agreements[2:]), "not signed"),
        ((), "not among"),
    ]:
        halfway.refuses(halfway.altered(agreements=wrong), named)
    halfway.accepts()


# Each round once


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_the_same_request_gets_the_same_bytes_and_no_other_gets_any(rounds):
    halfway = Halfway(rounds)
    answer = halfway.site.receive(halfway.request)
    assert halfway.site.receive(halfway.request) == answer
    assert halfway.site.receive(bytes(bytearray(halfway.request))) == answer
    other = encode(msgspec.structs.replace(halfway.message, **reordered(halfway.message)))
    with pytest.raises(ProtocolError, match=r"in the round of|not running"):
        halfway.site.receive(other)
    assert halfway.site.receive(halfway.request) == answer


def reordered(message):
    """The last field of a request in another order: the same content in other bytes."""
    field = message.__struct_fields__[-1]
    value = getattr(message, field)
    return {field: dict(reversed(value.items())) if isinstance(value, dict) else value[::-1]}


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_requests_of_other_rounds_are_refused(rounds):
    halfway = Halfway(rounds)
    p = halfway.parameters
    for number, kind in enumerate(KINDS, start=1):
        if number != rounds:
            fields = {"advertisements": (), "envelopes": {}, "survivors": (), "agreements": ()}
            request = encode(kind(*header(p, AGGREGATOR), fields[kind.__struct_fields__[-1]]))
            halfway.refuses(request, f"sent {kind.__name__} in the round of {KINDS[rounds - 1].__name__}")
    halfway.accepts()


def test_two_threads_cannot_get_two_answers():
    """Eight threads ask for different survivors at once: one is answered, and the others are refused."""
    for _ in range(20):
        halfway = Halfway(3, n_sites=7)
        alive = halfway.message.survivors
        requests = [halfway.altered(survivors=tuple(n for n in alive if n != out)) for out in alive[1:]]
        barrier, answers, refusals = threading.Barrier(len(requests)), [], []

        def ask(request, halfway=halfway, barrier=barrier, answers=answers, refusals=refusals):
            barrier.wait()
            try:
                answers.append(halfway.site.receive(request))
            except ProtocolError as error:
                refusals.append(error)

        threads = [threading.Thread(target=ask, args=(request,)) for request in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 1
        assert len(refusals) == len(requests) - 1


@pytest.mark.parametrize(("rounds", "wiping"), [(2, "wipe_keys"), (4, "wipe")])
def test_an_interruption_while_wiping_leaves_no_round_to_repeat(monkeypatch, rounds, wiping):
    """Were the round open, the next answer would be made with secrets that are zero."""
    halfway = Halfway(rounds)

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(site_module._Secrets, wiping, interrupted)
    with pytest.raises(KeyboardInterrupt):
        halfway.site.receive(halfway.request)
    with pytest.raises(ProtocolError, match=r"in the round of|not running"):
        halfway.site.receive(halfway.altered(**reordered(halfway.message)))
    halfway.aggregator.receive(halfway.site.receive(halfway.request))


def test_a_forked_copy_answers_nothing(monkeypatch):
    halfway = Halfway(3)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    halfway.refuses(halfway.request, "only the process that started a sum")
    monkeypatch.undo()
    halfway.accepts()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_site_is_not_duplicated(duplicate):
    with pytest.raises(TypeError, match="two copies could answer differently"):
        duplicate(Halfway(3).site)


# Secrets


def secret_bytes(site):
    held = site._secrets
    return [
        held.channel_secret,
        held.mask_secret,
        held.seed,
        *held.unseal.values(),
        *sum(held.shares.values(), ()),
    ]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_no_secret_in_repr_and_none_left_after_wiping(rounds):
    halfway = Halfway(rounds)
    held = secret_bytes(halfway.site)
    assert any(any(secret) for secret in held)
    shown = repr(halfway.site) + repr(halfway.site._secrets) + repr(halfway.message)
    assert not any(
        any(secret) and (repr(bytes(secret))[2:-1] in shown or secret.hex() in shown) for secret in held
    )
    halfway.site.wipe()
    assert not any(any(secret) for secret in held)
    with pytest.raises(ProtocolError, match="not running"):
        halfway.site.receive(halfway.request)
    with pytest.raises(ProtocolError, match="already started this sum"):
        halfway.site.start()


def test_keys_are_wiped_once_the_input_is_masked_and_shares_at_the_end():
    halfway = Halfway(2)
    keys = secret_bytes(halfway.site)[: 3 + 4]
    halfway.accepts()
    assert not any(any(secret) for secret in keys)
    halfway = Halfway(4)
    shares = secret_bytes(halfway.site)
    halfway.accepts()
    assert not any(any(secret) for secret in shares)
    assert halfway.site._secrets is None


def test_a_finished_site_keeps_the_survivors_when_wiped():
    halfway = Halfway(4)
    with pytest.raises(ProtocolError, match="not agreed on yet"):
        _ = halfway.site.survivors
    halfway.accepts()
    halfway.site.wipe()
    assert halfway.site.survivors == halfway.consortium.names


def test_shares_are_of_the_seed_for_survivors_and_of_the_key_for_the_lost():
    halfway = Halfway(4, n_sites=7, lost={"site-002": 2, "site-005": 3})
    answer = read_site_message(halfway.site.receive(halfway.request), halfway.parameters, Unmasking)
    assert set(answer.seed_shares) == {"site-000", "site-001", "site-003", "site-004", "site-006"}
    assert set(answer.key_shares) == {"site-005"}
