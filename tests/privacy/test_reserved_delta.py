"""What is held back of delta, and who may use how much of it."""

import math

import pytest

from capedjica.errors import InputError
from capedjica.privacy.reserved_delta import (
    RESERVED_DELTA,
    STREAM_EPSILON,
    check_reserve,
    difference,
    stream_delta,
)


def test_a_stream_counts_once_for_each_neighbour():
    """Two laws at distance rho from ideals that are equal: epsilon = 0 leaves delta = 2 rho, no less."""
    assert stream_delta(1e-20, 0.0) == pytest.approx(2e-20, rel=1e-12)
    assert stream_delta(1e-20, 3.0) == pytest.approx((1 + math.exp(3)) * 1e-20, rel=1e-12)
    assert stream_delta(0.0, 3.0) == 0.0
    assert stream_delta(1e-20, 1e4) == 1.0
    with pytest.raises(InputError, match="epsilon"):
        stream_delta(1e-20, math.nan)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, STREAM_EPSILON])
def test_shares_never_overdraw_the_reserve(epsilon):
    """Both parts at their largest, for any shares that add up to one, fit into what was held back."""
    delta, spent = 1e-5, 0.0
    for share in (0.5, 0.3, 0.1, 0.1):
        half = delta * RESERVED_DELTA / 2 * share
        rho = half / (1 + math.exp(epsilon)) * (1 - 1e-9)
        check_reserve(epsilon, delta, share, half, rho)
        spent += half + stream_delta(rho, epsilon)
        with pytest.raises(InputError, match="grid"):
            check_reserve(epsilon, delta, share, half * (1 + 1e-9), rho)
        with pytest.raises(InputError, match="stream"):
            check_reserve(epsilon, delta, share, half, rho * (1 + 1e-8))
    assert spent <= delta * RESERVED_DELTA


def test_beyond_the_largest_epsilon_the_distance_itself_is_held_below_the_reserve():
    rho = difference(1e-5)
    check_reserve(100.0, 1e-5, 1.0, 0.0, rho)
    with pytest.raises(InputError, match="stream"):
        check_reserve(100.0, 1e-5, 1.0, 0.0, rho * (1 + 1e-9))
