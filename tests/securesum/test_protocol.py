"""The secure sum end to end: real sites, a real aggregator, sites lost at every step."""

import itertools
import tracemalloc

import numpy as np
import pytest

from capedjica.errors import ProtocolError
from capedjica.securesum.aggregator import AggregatorSum
from tests.securesum.consortium import ROUNDS, Consortium, carry


def check_sum(consortium, lost=()):
    """Run one sum; those lost before round 4 are left out of it, and nobody else."""
    lost = dict(lost)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    carry(sites, aggregator, lost)
    survivors = tuple(name for name in consortium.names if lost.get(name, ROUNDS) > 3)
    assert aggregator.survivors == survivors
    np.testing.assert_array_equal(aggregator.result, consortium.expected(survivors))
    for name, site in sites.items():
        assert site.done == (lost.get(name, ROUNDS + 1) > ROUNDS - 1), name
        if site.done:
            assert site.survivors == survivors


@pytest.mark.parametrize(("n_sites", "length"), [(2, 1000), (3, 1000), (4, 40_000), (7, 1000), (10, 1000)])
def test_sum_is_exact(n_sites, length):
    check_sum(Consortium(n_sites, length))


def test_sum_of_a_hundred_sites_is_exact_with_the_most_lost_sites():
    consortium = Consortium(100, length=50)
    lost = zip(consortium.names[::3], itertools.cycle((1, 2, 3, 3, 4)), strict=False)
    check_sum(consortium, itertools.islice(lost, 100 - consortium.threshold))


@pytest.mark.full
@pytest.mark.parametrize(("n_sites", "length"), [(2, 2_000_000), (10, 2_000_000), (100, 100_000)])
def test_long_sums_are_exact(n_sites, length):
    check_sum(Consortium(n_sites, length))


@pytest.mark.full
def test_long_sum_with_lost_sites_is_exact():
    consortium = Consortium(10, length=2_000_000)
    check_sum(consortium, {consortium.names[0]: 3, consortium.names[4]: 3, consortium.names[9]: 2})


def losses(names, most):
    """Every way in which at most ``most`` sites fall silent, each before any of its messages."""
    for size in range(most + 1):
        for lost in itertools.combinations(names, size):
            for steps in itertools.product(range(1, ROUNDS + 1), repeat=size):
                yield dict(zip(lost, steps, strict=True))


@pytest.mark.parametrize("n_sites", [4, 5, pytest.param(7, marks=pytest.mark.full)])
def test_every_set_of_lost_sites_at_every_step(n_sites):
    consortium = Consortium(n_sites)
    for lost in losses(consortium.names, n_sites - consortium.threshold):
        check_sum(consortium, lost)
        consortium.next_attempt()


@pytest.mark.parametrize("n_sites", [2, 5, 7])
@pytest.mark.parametrize("step", range(1, ROUNDS + 1))
def test_one_more_lost_site_ends_the_sum_and_is_named(n_sites, step):
    consortium = Consortium(n_sites)
    lost = dict.fromkeys(consortium.names[: n_sites - consortium.threshold + 1], step)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    with pytest.raises(ProtocolError) as caught:
        carry(sites, aggregator, lost)
    assert f"{consortium.threshold - 1} sites answered, {consortium.threshold} are needed" in str(
        caught.value
    )
    assert str(caught.value).endswith("missing: " + ", ".join(lost))
    assert not aggregator.done
    with pytest.raises(ProtocolError, match="not complete"):
        _ = aggregator.result


def test_missing_names_include_those_lost_in_earlier_rounds():
    consortium = Consortium(5)
    first, second = consortium.names[:2]
    with pytest.raises(ProtocolError, match=f"MaskedInput: .* missing: {first}, {second}$"):
        carry(consortium.sites(), AggregatorSum(consortium.parameters), {first: 1, second: 3})


def test_a_round_can_still_be_closed_when_a_late_answer_arrives():
    consortium = Consortium(4)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    answers = carry(sites, aggregator, up_to=2)
    first, second = consortium.names[:2]
    late = [answers.pop(name) for name in (first, second)]
    for data in answers.values():
        aggregator.receive(data)
    with pytest.raises(ProtocolError, match=f"missing: {first}, {second}$"):
        aggregator.advance()
    for data in late:
        aggregator.receive(data)
    messages = aggregator.advance()
    for _ in range(2):
        for name, data in messages.items():
            aggregator.receive(sites[name].receive(data))
        messages = aggregator.advance()
    np.testing.assert_array_equal(aggregator.result, consortium.expected(consortium.names))


def test_vectors_need_not_be_contiguous_or_writeable():
    consortium = Consortium(3, length=1000)
    wide = {name: np.repeat(vector, 2) for name, vector in consortium.vectors.items()}
    wide["site-000"].setflags(write=False)
    consortium.vectors = {name: vector[::-2] for name, vector in wide.items()}
    check_sum(consortium)


def test_a_masked_input_looks_uniform_and_fresh():
    """Zero vectors, twice: the bits of each masked input are half ones, and no word repeats.

    64,000 fair bits stray by more than 5 standard deviations (632) with odds 6e-7; a repeated 64-bit word
    among 2,000 has odds 1e-13.
    """
    consortium = Consortium(2, length=1000)
    consortium.vectors = {name: np.zeros(1000, dtype=np.uint64) for name in consortium.names}
    seen = []
    for _ in range(2):
        answers = carry(consortium.sites(), AggregatorSum(consortium.parameters), up_to=2)
        words = np.frombuffer(answers[consortium.names[0]][-64 - 8000 : -64], dtype="<u8")
        assert abs(int(np.bitwise_count(words).sum()) - 32_000) < 632
        seen.append(words)
        consortium.next_attempt()
    assert len(np.unique(np.concatenate(seen))) == 2000


def test_bytes_on_the_wire():
    """Per site, for S <= 15 sites with names of n bytes, all answering, and L >= 8192 words.

    Sent 8L + S (191 + 4n) + 803 + 4n, received S (490 + 4n) + 296 - n: the overhead grows with S alone.
    """
    for n_sites, length in ((3, 8192), (5, 10_000), (5, 20_000)):
        consortium, n = Consortium(n_sites, length), len("site-000")
        sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
        answers, sent, received = {name: site.start() for name, site in sites.items()}, 0, 0
        while not aggregator.done:
            sent += sum(map(len, answers.values()))
            for data in answers.values():
                aggregator.receive(data)
            requests = aggregator.advance()
            received += sum(map(len, requests.values()))
            answers = {name: sites[name].receive(data) for name, data in requests.items()}
        assert sent == n_sites * (8 * length + n_sites * (191 + 4 * n) + 803 + 4 * n)
        assert received == n_sites * (n_sites * (490 + 4 * n) + 296 - n)


def peak_memory_of_masking(length):
    """Peak bytes allocated while a site answers the round of masked input, beyond its own vector."""
    consortium = Consortium(3, length)
    sites, aggregator = consortium.sites(), AggregatorSum(consortium.parameters)
    for data in carry(sites, aggregator, up_to=1).values():
        aggregator.receive(data)
    name, request = next(iter(aggregator.advance().items()))
    tracemalloc.start()
    try:
        answer = sites[name].receive(request)
        return len(answer), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_site_needs_memory_for_its_vector_the_masked_one_and_the_message():
    """Besides the input, at most two vectors at a time: under four in all."""
    length = 400_000
    size, peak = peak_memory_of_masking(length)
    assert 8 * length < size < 8 * length + 500
    assert peak < 2.2 * 8 * length


@pytest.mark.full
def test_a_site_stays_under_four_vectors_at_full_length():
    _, peak = peak_memory_of_masking(2_000_000)
    assert 8 * 2_000_000 + peak < 3.2 * 8 * 2_000_000
