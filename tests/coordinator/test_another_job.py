"""How long a site is waited for when another job took the place of one that died."""

from __future__ import annotations

import pytest

from capedjica.coordinator.flare import transport
from capedjica.coordinator.flare.transport import Patience

PATIENCE = Patience(joining=90.0, silence=20.0, release=1000.0)
ASK = b"\x98\xa3Ask"


@pytest.fixture
def at(monkeypatch):
    """Return what sets the clock."""

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(transport.time, "monotonic", lambda: seconds)

    set_clock(0.0)
    return set_clock


def test_a_site_that_is_silent_is_given_up(at):
    trip = transport._Trip(ASK, PATIENCE)
    at(20.0)
    assert trip.over(False) is None
    at(20.1)
    assert trip.over(False) == "no reply"


def test_after_another_job_was_submitted_a_site_has_as_long_as_for_joining(at):
    trip = transport._Trip(ASK, PATIENCE)
    at(100.0)
    trip.excuse()
    at(190.0)
    assert trip.over(False) is None
    at(190.1)
    assert trip.over(False) == "no reply"
