"""Random and altered bytes against every party in every round: refused, and nothing changed."""

import random

import msgspec
import numpy as np
import pytest

from capedjica.errors import ProtocolError
from capedjica.securesum.aggregator import AggregatorSum
from capedjica.securesum.messages import _aggregator_decoder, sign
from tests.attacks.messages.party_state import aggregator_state, site_state
from tests.securesum.consortium import Consortium

KINDS = [
    "KeyList",
    "ShareList",
    "SurvivorList",
    "AgreementList",
    "Advertisement",
    "SharedKeys",
    "MaskedInput",
]


def mutate(data, corpus, rng):
    """Return other bytes than ``data``: damaged, spliced, restructured or invented."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        rng.choice((flip, overwrite, insert, cut, truncate, splice, invent, restructure))(
            damaged, corpus, rng
        )
    return bytes(damaged) if damaged != data else bytes(damaged) + b"\x00"


def flip(data, corpus, rng):
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data, corpus, rng):
    start = rng.randrange(len(data) + 1)
    piece = rng.choice((b"\x00", b"\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", rng.randbytes(8)))
    data[start : start + len(piece)] = piece


def insert(data, corpus, rng):
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 20))


def cut(data, corpus, rng):
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(1, 40)]


def truncate(data, corpus, rng):
    del data[rng.randrange(len(data) + 1) :]


def splice(data, corpus, rng):
    other = rng.choice(corpus)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def invent(data, corpus, rng):
    data[:] = rng.randbytes(rng.randrange(400))


def restructure(data, corpus, rng):
    """Replace a field by something of another type or value; a site's signature stays what it was."""
    for end in (len(data), len(data) - 64):
        try:
            fields = msgspec.msgpack.decode(bytes(data[: max(end, 0)]))
        except ValueError:
            continue
        if isinstance(fields, list) and fields:
            fields[rng.randrange(len(fields))] = anything(rng)
            data[:] = msgspec.msgpack.encode(fields) + bytes(data[end:])
        return


def anything(rng):
    return rng.choice(
        [
            None,
            True,
            -1,
            2**64 - 1,
            0.5,
            float("nan"),
            "",
            "site-000",
            "aggregator",
            "é" * 40,
            rng.randbytes(32),
            b"",
            [],
            [[]],
            {},
            {"site-000": rng.randbytes(33)},
            {1: 2},
            [rng.randbytes(9)] * 3,
            rng.choice(KINDS),
        ]
    )


def corpus_of(consortium):
    """Every message of a whole earlier sum among the same sites."""
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    answers, corpus = {name: site.start() for name, site in sites.items()}, []
    while not aggregator.done:
        for data in answers.values():
            aggregator.receive(data)
        requests = aggregator.advance()
        corpus += [*answers.values(), *requests.values()]
        answers = {name: sites[name].receive(data) for name, data in requests.items()}
    consortium.next_attempt()
    return corpus


def told(data):
    """What a message of the aggregator says, however it is spelt: kind, header, content; or None."""
    try:
        message = _aggregator_decoder.decode(data)
    except ValueError:
        return None
    *header, content = msgspec.structs.astuple(message)
    return type(message), header, set(content.items() if isinstance(content, dict) else content)


def bombard(receive, state, genuine, corpus, rng, count):
    """All of ``count`` mutants are refused, and nothing changes.

    Left out are those that say what is true or a part of it, in whatever bytes: an aggregator may say less.
    They are about 26 of 100,000.
    """
    before, truths = state(), [truth for truth in map(told, genuine) if truth]
    for _ in range(count):
        mutant = mutate(rng.choice(genuine), corpus, rng)
        said = told(mutant)
        if said and any(said[:2] == truth[:2] and said[2] <= truth[2] for truth in truths):
            continue
        with pytest.raises(ProtocolError):
            receive(mutant)
    assert state() == before


def survive(count, seed):
    """Run a sum, with every party bombarded before each genuine message; ``count`` mutants in all."""
    rng, consortium = random.Random(seed), Consortium(4)
    corpus = corpus_of(consortium)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    each = -(-count // (9 * len(sites)))
    answers = {name: site.start() for name, site in sites.items()}
    while not aggregator.done:
        genuine = list(answers.values())
        for data in genuine:
            bombard(aggregator.receive, lambda: aggregator_state(aggregator), genuine, corpus, rng, each)
            aggregator.receive(data)
        requests, answers = aggregator.advance(), {}
        for name, data in requests.items():
            site, genuine = sites[name], list(requests.values())
            bombard(site.receive, lambda site=site: site_state(site), genuine, corpus, rng, each)
            answers[name] = site.receive(data)
    np.testing.assert_array_equal(aggregator.result, consortium.expected(consortium.names))


def test_a_hundred_thousand_mutants_change_nothing():
    survive(100_000, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_million_mutants_change_nothing(seed):
    survive(200_000, seed)


def test_a_site_that_signs_nonsense_harms_itself_alone():
    """Mallory alters the payload of each answer and signs it: refused or taken, but never a crash.

    When taken, the sum ends with a result or with a ProtocolError; the other sites are never refused.
    """
    endings = [run_with_mallory(random.Random(seed)) for seed in range(150)]
    assert 0 < sum(ending == "" for ending in endings) < 150
    assert all(ending == "" or "mallory" in ending for ending in endings)


def run_with_mallory(rng):
    """Return the error that ended the sum, or nothing."""
    consortium = Consortium(4)
    mallory, strikes = consortium.names[rng.randrange(4)], rng.randrange(5)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    answers = {name: site.start() for name, site in sites.items()}
    for number in range(5):
        if number == strikes and mallory in answers:
            forge(aggregator, answers.pop(mallory), consortium.identities[mallory], rng)
        for data in answers.values():
            aggregator.receive(data)
        try:
            requests = aggregator.advance()
            answers = {name: sites[name].receive(data) for name, data in requests.items()}
        except ProtocolError as error:
            return str(error).replace(mallory, "mallory")
    return ""


def forge(aggregator, data, identity, rng):
    for _ in range(30):
        payload = bytearray(data[:-64])
        rng.choice((flip, overwrite, restructure, cut))(payload, [data], rng)
        try:
            return aggregator.receive(sign(payload, identity))
        except ProtocolError:
            pass
    return None
