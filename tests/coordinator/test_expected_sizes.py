"""No message of a study is longer than it was said to be before it began."""

import dataclasses

import msgspec
import numpy as np
import pytest

from capedjica.coordinator.flare import expected_sizes
from capedjica.coordinator.flare.expected_sizes import largest_message
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.aggregator import driving as aggregator_module
from capedjica.mechanisms.contract import Query, Stage
from capedjica.mechanisms.messages import MAX_SLOTS, Begin, Refusal, SlotPlan, encode
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster
from tests.mechanisms.world import make_data

SIZES = (12, 9, 15, 8)


def longest_letter(stages, mechanism, published=b"", state=b""):
    """Run a study to its end; return its contract and the length of its longest message."""
    data = make_data(SIZES, 1)
    study = EmbeddedStudy(
        "sizes",
        dict(zip(data, SIZES, strict=True)),
        {name: lambda stage, published, state: np.zeros((0, 1)) for name in data},
        stages,
        in_process(epsilon=3.0, mechanism=mechanism),
    )
    study.engine.keep_transcript = True
    study.publish(published)
    for index, stage in enumerate(stages):
        for _ in range(stage.count):
            study.mean(index, state)
    return study.contract, max(len(letter.data) for letter in study.engine.transcript)


def stages(*parts):
    return [Stage(Query(f"query {size}", size, 1.0), count, 1 / len(parts)) for size, count in parts]


@pytest.mark.parametrize(
    "parts",
    [((30_000, 1),), ((20_000, 3), (10_000, 2)), ((50_000, 2), (100, 4)), ((1, 1),)],
    ids=str,
)
@pytest.mark.parametrize("mechanism", ["cape", "conventional"])
def test_the_bound_holds_and_is_tight(parts, mechanism, monkeypatch):
    """Blocks hold 45,000 numbers here: less than some of the queries, and than most of the studies."""
    for module in (aggregator_module, expected_sizes):
        monkeypatch.setattr(module, "BLOCK_WORDS", 45_000)
    contract, longest = longest_letter(stages(*parts), mechanism)
    assert longest <= largest_message(contract) <= 1.2 * longest + 20_000


def test_what_is_published_counts():
    contract, longest = longest_letter(stages((10, 1)), "cape", published=bytes(100_000))
    assert largest_message(contract) < longest <= largest_message(contract, 100_000) < 1.2 * longest
    contract, longest = longest_letter(stages((10, 1)), "cape", state=bytes(200_000))
    assert largest_message(contract) < longest <= largest_message(contract, 200_000) < 1.2 * longest


def test_the_longest_invitation_and_the_longest_refusal_are_within_the_bound():
    names = [f"{number:03d}{'x' * 61}" for number in range(100)]
    roster = Roster.of([Identity.generate().public(name) for name in names])
    contract, _ = longest_letter(stages((1, 1)), "conventional")
    contract = dataclasses.replace(
        contract,
        roster=roster,
        subjects=(5,) * 100,
        epsilon=(1.0,) * 100,
        stages=(Stage(Query("small", 1, 1.0), 10_000),),
    )
    begin = Begin(1, contract.hash, 2**62, names, [SlotPlan(1 << 16, 0.1)] * MAX_SLOTS, 2**62)
    refusal = Refusal(1, contract.hash, names[0], "\U0001f600" * 1000)
    assert msgspec.msgpack.decode(encode(begin), type=Begin) == begin
    assert max(len(encode(begin)), len(encode(refusal))) <= largest_message(contract)
