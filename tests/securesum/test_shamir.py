import itertools
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capedjica.errors import InputError, ProtocolError
from capedjica.securesum.shamir import (
    PRIME,
    SHARE_BYTES,
    combine,
    decode_shares,
    evaluate,
    lagrange_weights,
    split,
)

secret_bytes = st.binary(min_size=32, max_size=32)


def test_modulus_is_prime():
    """Pocklington would prove it; 64 rounds of Miller-Rabin leave odds of 4^-64 that it is composite."""
    odd = PRIME - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for _ in range(64):
        x = pow(2 + secrets.randbelow(PRIME - 3), odd, PRIME)
        orbit = [pow(x, 2**k, PRIME) for k in range(twos)]
        assert x == 1 or PRIME - 1 in orbit
    assert PRIME > 2**256


@st.composite
def sharing(draw):
    n = draw(st.integers(1, 12))
    points = draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n, unique=True))
    return draw(secret_bytes), draw(st.integers(1, n)), points


@given(sharing(), st.randoms())
def test_any_threshold_of_shares_recovers_the_secret(case, random):
    secret, threshold, points = case
    shares = split(secret, threshold, points)
    for size in {threshold, len(points)}:
        some = random.sample(points, size)
        assert combine({point: shares[point] for point in some}) == secret


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 128, 129, 400])
def test_values_are_those_of_the_polynomial_however_many_coefficients(size):
    """Also across the reductions between chunks of coefficients."""
    coefficients = [secrets.randbelow(PRIME) for _ in range(size)]
    for point, share in evaluate(coefficients, [1, 2, 999, 10**6]).items():
        value = sum(c * pow(point, k, PRIME) for k, c in enumerate(coefficients)) % PRIME
        assert share == value.to_bytes(SHARE_BYTES)


def test_every_subset_of_threshold_shares_recovers_the_secret():
    secret = secrets.token_bytes(32)
    shares = split(secret, 4, range(1, 8))
    for subset in itertools.combinations(shares, 4):
        assert combine({point: shares[point] for point in subset}) == secret


@given(sharing().filter(lambda case: case[1] > 1), secret_bytes)
def test_fewer_shares_fit_every_secret(case, other):
    """For any other secret there is one polynomial of the same degree through the shares seen."""
    secret, threshold, points = case
    shares = split(secret, threshold, points)
    seen = {point: shares[point] for point in points[: threshold - 1]}
    unseen = points[threshold - 1]
    # Choose the unseen value so that the secret comes out as `other`: linear in it, weight never zero.
    weights = dict(zip((*seen, unseen), lagrange_weights((*seen, unseen)), strict=True))
    known = sum(weights[point] * int.from_bytes(share) for point, share in seen.items())
    value = (int.from_bytes(other) - known) * pow(weights[unseen], -1, PRIME) % PRIME
    assert combine({**seen, unseen: value.to_bytes(SHARE_BYTES)}) == other


def test_one_share_alone_is_spread_over_the_field():
    """Top bytes of 4000 shares of one secret: chi-square with 255 degrees stays below 420.

    P(chi2_255 > 420) = 2e-10; shares that did not depend on fresh coefficients would all be equal.
    """
    counts = [0] * 256
    for _ in range(4000):
        counts[split(bytes(32), 2, [1, 2])[1][1]] += 1
    assert sum((c - 4000 / 256) ** 2 / (4000 / 256) for c in counts) < 420


def test_same_secret_is_never_shared_the_same_way_twice():
    assert split(bytes(32), 2, [1, 2]) != split(bytes(32), 2, [1, 2])


def test_extreme_secrets():
    for secret in (bytes(32), b"\xff" * 32, (1).to_bytes(32)):
        shares = split(secret, 67, range(1, 101))
        assert combine({point: shares[point] for point in range(34, 101)}) == secret


def test_evaluate_is_the_polynomial():
    coefficients = [5, PRIME - 1, 7]
    for point, share in evaluate(coefficients, [1, 2, 99]).items():
        assert int.from_bytes(share) == (5 - point + 7 * point**2) % PRIME


@settings(max_examples=30)
@given(st.integers(2, 40), st.data())
def test_weights_interpolate_every_power_at_zero(count, data):
    points = tuple(data.draw(st.permutations(range(1, 60)))[:count])
    weights = lagrange_weights(points)
    for power in range(count):
        value = sum(w * pow(x, power, PRIME) for w, x in zip(weights, points, strict=True)) % PRIME
        assert value == (power == 0)


def test_a_wrong_share_changes_the_secret():
    """False alarm, or a refusal, only if the random share is one of a few: below 2^-240."""
    secret = secrets.token_bytes(32)
    shares = split(secret, 3, [1, 2, 3])
    for point in shares:
        assert combine({**shares, point: bytes([0]) + secrets.token_bytes(32)}) != secret


def test_value_beyond_32_bytes_is_refused():
    with pytest.raises(ProtocolError, match="do not belong to one secret"):
        combine(evaluate([2**256 + 5, 3], [1, 2]))


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), PRIME.to_bytes(33), b"\xff" * 33])
def test_malformed_shares_are_refused(share):
    with pytest.raises(ProtocolError, match="below the prime"):
        decode_shares([bytes(33), share])


@pytest.mark.parametrize(
    ("secret", "threshold", "points", "named"),
    [
        (bytes(31), 2, [1, 2], "32 bytes"),
        (bytes(32), 3, [1, 2], "threshold"),
        (bytes(32), 0, [1, 2], "threshold"),
        (bytes(32), 2, [0, 1], "at least 1"),
        (bytes(32), 2, [1, 1], "distinct"),
    ],
)
def test_bad_sharings_are_refused(secret, threshold, points, named):
    with pytest.raises(InputError, match=named):
        split(secret, threshold, points)
