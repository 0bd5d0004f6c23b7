"""What a guarantee protects, and what k units of it cost together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capedjica.errors import InputError
from capedjica.privacy import Cape, gaussian_epsilon
from capedjica.privacy.neighbour import ProtectedUnit
from capedjica.privacy.reserved_delta import RESERVED_DELTA


@given(st.integers(1, 5000), st.floats(1e-3, 5), st.floats(1e-12, 1e-2))
def test_k_units_have_k_times_the_mu(k, mu, delta):
    unit = ProtectedUnit("sample", k)
    assert unit.subject_mu(mu) == k * mu
    exact = gaussian_epsilon(k * mu, delta)
    assert exact <= unit.subject_epsilon(mu, delta) <= exact * (1 + 1e-2) + 1e-9


def test_k_units_move_the_view_of_cape_k_times_as_far():
    cape = Cape(math.inf, [0.1, 0.2, 0.3], [0.2, 0.3, 0.5], 1)
    assert cape.mu(7 * 0.01) == pytest.approx(ProtectedUnit("sample", 7).subject_mu(1.0) * cape.mu(0.01))


def test_more_units_than_delta_has_room_for_are_not_bounded():
    assert ProtectedUnit("sample", math.ceil(1 / RESERVED_DELTA)).subject_epsilon(0.1, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (("person",), "neighbour must be 'subject' or 'sample', got 'person'"),
        ((None,), "neighbour must be 'subject' or 'sample', got None"),
        (("sample", 0), "units_per_subject must be a whole number of at least 1, got 0"),
        (("subject", 2), "units_per_subject must be 1 if neighbour is 'subject', got 2"),
    ],
)
def test_what_is_no_unit(unit, message):
    with pytest.raises(InputError, match=message):
        ProtectedUnit(*unit)
